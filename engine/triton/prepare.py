"""From a request's bytes to what Triton is asked: prompts, and the values of the model's tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from tritonclient.grpc import service_pb2

from engine import invalid
from engine.chat import ChatRequest, parse_chat
from engine.completion import CompletionRequest, EmbeddingRequest, Input, parse_completion, parse_embedding
from engine.triton.fitted import Fitted
from engine.triton.interface import Tensor
from engine.triton.template import TextTemplate
from engine.triton.tensors import encode, largest
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import TritonSettings

__all__ = ["CHAT", "COMPLETIONS", "EMBEDDINGS", "Prepared", "Preparer"]

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
EMBEDDINGS: Final = "/v1/embeddings"
_COMPLETION_TOKENS: Final = 16
"""what /v1/completions generates when a request doesn't say, as the public API does"""
_ALWAYS: Final = frozenset({"model", "user", "metadata", "stream", "stream_options", "n"})
_SEEDS: Final = 2**63


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is ready: what to send for each choice, and what its answer is to look like."""

    request: ChatRequest | CompletionRequest | EmbeddingRequest
    prompts: list[str]
    asks: list[service_pb2.ModelInferRequest]
    """for each prompt each of its choices"""
    stops: list[str] = []
    max_tokens: int = 0
    """0: the model has no tensor for it"""
    seed: int | None = None
    """the one that was sent; None where nothing is drawn"""
    chances: int = -1
    """how many of the likeliest tokens are told beside the chosen one; -1: no log-probabilities"""


class Preparer:
    """Prepares requests for one model."""

    def __init__(self, fitted: Fitted, settings: TritonSettings) -> None:
        """Read the chat template, if there is one. Raises SettingsError."""
        self._fitted = fitted
        self._settings = settings
        wanted = bool(settings.template) and fitted.text is not None
        self._template = TextTemplate(Path(settings.template), with_bos=settings.template_bos) if wanted else None
        self._chat_fields, self._completion_fields = self._fields()
        self._embedding_fields = frozenset({"model", "input", "encoding_format", "user"})
        self._bases = {stream: self._base(stream=stream) for stream in (False, True)}
        self._fillers = [(tensor, data) for tensor, data in fitted.constants.values() if tensor in fitted.fields.values()]

    @property
    def endpoints(self) -> list[str]:
        """What can be answered: without a template no chats."""
        if self._fitted.embedding is not None:
            return [EMBEDDINGS]
        return [CHAT, COMPLETIONS] if self._template is not None else [COMPLETIONS]

    @property
    def fields(self) -> list[str]:
        """Body fields that are honoured, on any endpoint."""
        if self._fitted.embedding is not None:
            return sorted(self._embedding_fields)
        return sorted(self._completion_fields | (self._chat_fields if self._template is not None else frozenset()))

    def _fields(self) -> tuple[frozenset[str], frozenset[str]]:
        carried = _ALWAYS | self._fitted.honoured
        chat = carried | {"messages", "chat_template_kwargs"}
        if "max_tokens" in carried:
            chat |= {"max_completion_tokens"}
        return chat, carried | {"prompt", "echo"}

    def prepare(self, sequence: pb.Sequence) -> Prepared:
        """Make it ready. Raises InvalidRequest."""
        body = sequence.request
        if sequence.endpoint == EMBEDDINGS:
            embedding = parse_embedding(body, self._embedding_fields)
            prompts = [_text(given, "input") for given in embedding.inputs]
            return Prepared(request=embedding, prompts=prompts, asks=[self._ask(prompt, {}) for prompt in prompts])
        stream = sequence.stream and self._fitted.stream is not None
        if sequence.endpoint == CHAT and self._template is not None:
            chat = parse_chat(body, self._chat_fields)
            values = {"max_tokens": chat.max_output or self._settings.max_tokens}
            if chat.logprobs:
                values["logprobs"] = chat.top_logprobs or 0
            return self._generating(chat, [self._template.render(chat)], values, stream)
        completion = parse_completion(body, self._completion_fields)
        prompts = [_text(given, "prompt") for given in completion.prompts]
        values = {"max_tokens": completion.max_tokens or _COMPLETION_TOKENS}
        if completion.logprobs is not None:
            values["logprobs"] = completion.logprobs
            if completion.echo:
                raise invalid.invalid_value("echo", "it is not possible with 'logprobs', which are of generated tokens only")
        return self._generating(completion, prompts, values, stream)

    def _generating(
        self, request: ChatRequest | CompletionRequest, prompts: list[str], values: dict[str, Any], stream: bool
    ) -> Prepared:
        """Make the asks; `values` has what the endpoint's own fields say."""
        honoured = self._fitted.honoured
        max_tokens, chances = values["max_tokens"], values.get("logprobs", -1)
        values |= self._values(request)
        seed: int | None = None
        if request.temperature and "seed" in honoured:
            given = int.from_bytes(os.urandom(4)) if request.seed is None else request.seed
            seed = given % _SEEDS
        asks = []
        for prompt in prompts:
            for index in range(request.choices):
                if seed is not None:
                    values["seed"] = (seed + index) % _SEEDS
                asks.append(self._ask(prompt, values, stream=stream))
        return Prepared(
            request=request,
            prompts=prompts,
            asks=asks,
            stops=request.stops,
            max_tokens=max_tokens if "max_tokens" in honoured else 0,
            seed=seed,
            chances=chances,
        )

    def _values(self, request: ChatRequest | CompletionRequest) -> dict[str, Any]:
        """Give the values by field; as everywhere in Haywain, no temperature means the most likely token."""
        values: dict[str, Any] = {}
        if request.temperature:
            values |= {"temperature": request.temperature, "top_p": request.top_p, "min_p": request.min_p}
            if self._fitted.greedy_top_k:  # these models' own defaults are greedy
                values |= {"top_k": max(0, request.top_k or 0), "top_p": 1.0 if request.top_p is None else request.top_p}
            elif request.top_k and request.top_k > 0:
                values["top_k"] = request.top_k
        else:
            values |= {"top_k": 1} if self._fitted.greedy_top_k else {"temperature": 0.0}
        values |= {
            "stop": request.stops or None,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "repeat_penalty": request.repeat_penalty,
            "response_format": _guide(request),
        }
        return {field: value for field, value in values.items() if value is not None}

    def _ask(self, prompt: str, values: Mapping[str, Any], *, stream: bool = False) -> service_pb2.ModelInferRequest:
        fitted = self._fitted
        ask = service_pb2.ModelInferRequest()
        ask.CopyFrom(self._bases[stream])
        _put(ask, fitted.prompt, [prompt], "prompt")
        if fitted.parameters is not None:
            _put(ask, fitted.parameters, [msgspec.json.encode(self._members(values)).decode()], "")
        if fitted.logprobs is not None and "logprobs" in values:
            _put(ask, fitted.logprobs[0], [True], "logprobs")
        if fitted.guide is not None and "response_format" in values:
            kind, schema = values["response_format"]
            _put(ask, fitted.guide[0], [kind], "response_format")
            if schema is not None:
                _put(ask, fitted.guide[1], [msgspec.json.encode(schema).decode()], "response_format")
        filled = set()
        for field, tensor in fitted.fields.items():
            if field in values:
                value = values[field]
                if field == "seed":
                    value %= largest(tensor.datatype) + 1
                _put(ask, tensor, value if isinstance(value, list) else [value], field)
                filled.add(tensor.name)
        for tensor, data in self._fillers:
            if tensor.name not in filled:
                _add(ask, tensor, 1, data)
        return ask

    def _members(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Give what goes as JSON."""
        fitted = self._fitted
        members = {fitted.members[field]: value for field, value in values.items() if field in fitted.members}
        if fitted.guided and "response_format" in values:
            _, schema = values["response_format"]
            members[fitted.guided] = msgspec.json.encode({"json_object": True} if schema is None else {"json": schema}).decode()
        if fitted.logprobs is not None and "logprobs" in values:
            members["logprobs"] = values["logprobs"]
        return members

    def _base(self, *, stream: bool) -> service_pb2.ModelInferRequest:
        """Make what all requests have in common."""
        fitted = self._fitted
        base = service_pb2.ModelInferRequest(model_name=fitted.interface.model, model_version=self._settings.version)
        for tensor, data in fitted.constants.values():
            if tensor != fitted.stream and tensor not in fitted.fields.values():
                _add(base, tensor, 1, data)
        if fitted.stream is not None:
            _put(base, fitted.stream, [stream], "stream")
        return base


def _put(ask: service_pb2.ModelInferRequest, tensor: Tensor, values: list[Any], field: str) -> None:
    try:
        data = encode(tensor.datatype, values)
    except ValueError as error:
        raise invalid.invalid_value(field, str(error)) from None
    _add(ask, tensor, len(values), data)


def _add(ask: service_pb2.ModelInferRequest, tensor: Tensor, count: int, data: bytes) -> None:
    ask.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape(count))
    ask.raw_input_contents.append(data)


def _guide(request: ChatRequest | CompletionRequest) -> tuple[str, dict[str, Any] | None] | None:
    """Give what guides decoding, by TensorRT-LLM's names, and its schema."""
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object" or wanted.json_schema is None:
        return "json", None
    return "json_schema", wanted.json_schema.schema


def _text(given: Input, field: str) -> str:
    if isinstance(given, str):
        return given
    raise invalid.invalid_value(field, "this model takes texts, not token ids")
