"""From a request's bytes to what decoders run: checked, rendered, tokenised, and within the context."""

from __future__ import annotations

import os

import msgspec
import numpy as np

from engine import invalid
from engine.chat import ChatRequest, parse_chat
from engine.llamacpp import policy
from engine.llamacpp.messages import Sampling
from engine.prompt import ChatTemplate
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import InvalidRequest

__all__ = ["FIELDS", "Prepared", "prepare"]

FIELDS = frozenset(
    {
        "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed",
        "presence_penalty", "frequency_penalty", "repeat_penalty", "logit_bias", "n", "chat_template_kwargs", "user", "metadata",
        "stream", "stream_options",
    }
)  # fmt: skip
"""Body fields that are honoured."""

_SEEDS = 2**63


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is ready to run."""

    request: ChatRequest
    prompt: bytes
    """tokens, int32 each"""
    prompt_tokens: int
    max_output: int
    stops: list[bytes]
    samplings: list[Sampling]
    """one for each of the `n` choices"""
    seed: int | None
    """the one that was used, None where nothing is drawn"""


def prepare(sequence: pb.Sequence, template: ChatTemplate, context_length: int, vocabulary_size: int) -> Prepared:
    """Make it ready. Raises InvalidRequest; code `context_length_exceeded` when the prompt leaves no room for a token."""
    request = parse_chat(sequence.request, FIELDS)
    strange = next((token for token in request.logit_bias or {} if len(token) > 9 or int(token) >= vocabulary_size), None)
    if strange is not None:
        raise invalid.invalid_value("logit_bias", f"token ids are below {vocabulary_size}, but one is {strange[:20]}")
    tokens = template.tokens(request.for_template(), request.chat_template_kwargs)
    if not tokens:
        raise InvalidRequest("The prompt has no tokens.", param="messages")
    max_output = policy.fit(len(tokens), request.max_output, context_length)
    if max_output < 1:
        raise InvalidRequest(
            f"This model's maximum context length is {context_length} tokens. However, your messages resulted in {len(tokens)} "
            "tokens, and at least 1 is needed for the answer.",
            code="context_length_exceeded",
            param="messages",
        )
    samplings, seed = _samplings(request)
    return Prepared(
        request=request,
        prompt=np.asarray(tokens, np.int32).tobytes(),
        prompt_tokens=len(tokens),
        max_output=max_output,
        stops=[stop.encode() for stop in request.stops],
        samplings=samplings,
        seed=seed,
    )


def _samplings(request: ChatRequest) -> tuple[list[Sampling], int | None]:
    """Give how each choice is drawn; choice i's seed is the request's plus i, so that choices differ and repeat."""
    temperature = request.temperature or 0.0
    seed = request.seed if request.seed is not None or not temperature else int.from_bytes(os.urandom(4))
    first = Sampling(
        temperature=temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        top_k=max(0, request.top_k or 0),
        min_p=request.min_p or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repeat_penalty=request.repeat_penalty or 1.0,
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
        seed=(seed or 0) % _SEEDS,
    )
    later = (msgspec.structs.replace(first, seed=(first.seed + index) % _SEEDS) for index in range(1, request.choices))
    return [first, *later], seed
