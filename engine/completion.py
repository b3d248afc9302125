"""The requests of /v1/completions and /v1/embeddings: decoded and checked, their inputs made a list."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from engine import invalid
from engine.sampling import FORMATS, MAX_INT, Sampling
from haywain.openai import COMPLETION_FIELDS, EMBEDDING_FIELDS, asks_for_nothing

__all__ = ["CompletionRequest", "EmbeddingRequest", "Input", "parse_completion", "parse_embedding"]

MAX_INPUTS: Final = 2_048
_Token = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT)]
_Given = str | list[str | _Token | list[_Token]]
Input = str | list[int]
"""a text, or token ids"""


class CompletionRequest(Sampling, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A body of /v1/completions. None: not given; a null counts as not given."""

    prompt: _Given
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=5)] | None = None
    echo: bool | None = None

    @property
    def prompts(self) -> list[Input]:
        """The prompts, each of which gets `choices` answers."""
        return _inputs(self.prompt)


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A body of /v1/embeddings. None: not given; a null counts as not given."""

    model: str
    input: _Given
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=8_192)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    @property
    def inputs(self) -> list[Input]:
        """The inputs, each of which gets a vector."""
        return _inputs(self.input)


_R = TypeVar("_R", CompletionRequest, EmbeddingRequest)
_completion_decoder = msgspec.json.Decoder(CompletionRequest)
_embedding_decoder = msgspec.json.Decoder(EmbeddingRequest)
_ALLOWED: Final = {"response_format.type": FORMATS, "encoding_format": ("float", "base64")}


def parse_completion(body: bytes, honoured: frozenset[str] = COMPLETION_FIELDS) -> CompletionRequest:
    """Decode and check a body of /v1/completions, as `parse_chat` does for its endpoint."""
    request = _parse(body, _completion_decoder, COMPLETION_FIELDS, honoured)
    request.check()
    _check_inputs(request.prompt, "prompt")
    return request


def parse_embedding(body: bytes, honoured: frozenset[str] = EMBEDDING_FIELDS) -> EmbeddingRequest:
    """Decode and check a body of /v1/embeddings, as `parse_chat` does for its endpoint."""
    request = _parse(body, _embedding_decoder, EMBEDDING_FIELDS, honoured)
    _check_inputs(request.input, "input")
    if "" in request.inputs:
        raise invalid.invalid_value("input", "a text has at least 1 character, but one has 0")
    return request


def _parse(body: bytes, decoder: msgspec.json.Decoder[_R], fields: frozenset[str], honoured: frozenset[str]) -> _R:
    request = invalid.decode(body, decoder, _ALLOWED, fields)
    for field in sorted(fields - honoured - {"model", "prompt", "input"}):
        if not asks_for_nothing(field, getattr(request, field)):
            raise invalid.unsupported_parameter(field)
    return request


def _check_inputs(given: Any, field: str) -> None:
    """Check that a list is of one kind and neither empty nor too long."""
    if isinstance(given, str):
        return
    kinds = {type(entry) for entry in given}
    if len(kinds) > 1:
        raise invalid.invalid_value(field, "its elements are of several types, expected only strings, token ids, or lists of them")
    many = 1 if kinds == {int} else len(given)
    if not 1 <= many <= MAX_INPUTS:
        raise invalid.invalid_value(field, f"expected 1 to {MAX_INPUTS} inputs, but got {many}")
    if [] in given:
        raise invalid.invalid_value(field, "a list of token ids has at least 1 element, but one has 0")


def _inputs(given: Any) -> list[Input]:
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return list(given)
