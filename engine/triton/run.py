"""A run: one choice of one prompt, one request to Triton; what came of it, and how it ended."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec
from tritonclient.grpc import service_pb2

from engine.triton.chances import Chances
from engine.triton.failures import Failure
from engine.triton.fitted import Fitted
from engine.triton.interface import Tensor
from engine.triton.tensors import decode
from engine.triton.text import Text

__all__ = ["End", "Reader", "Run", "RunOwner"]

_FINISHES = {"length": "length", "max_tokens": "length", "content_filter": "content_filter"}
_STOPPED = frozenset({"abort", "cancelled", "canceled"})
_UNSAID = frozenset({"", "none", "null", "not_finished"})
_BYTES_A_TOKEN = 4
"""of English text, about; where the model doesn't count"""


class End(msgspec.Struct, kw_only=True):
    """How a run ended."""

    finish: str = "stop"
    input_tokens: int = 0
    output_tokens: int = 0
    vector: list[float] = []
    run_ms: int = 0
    derived: set[str] = set()
    """parts that the model didn't tell: usage, finish_reason"""


class RunOwner(Protocol):
    """What a run belongs to."""

    def piece(self, run: Run, text: str) -> None:
        """Take more text."""

    def ended(self, run: Run, end: End) -> None:
        """Take the end of a run that went well."""

    def failed(self, run: Run, failure: Failure) -> None:
        """Take the end of one that didn't."""


class Run:
    """One request to Triton."""

    __slots__ = (
        "ask", "began", "chances", "deadline", "epoch", "given_up", "index", "interactive", "losses", "max_tokens", "owner",
        "prompt", "said", "stops", "tries",
    )  # fmt: skip

    def __init__(self, owner: RunOwner, index: int, ask: service_pb2.ModelInferRequest, prompt: str) -> None:
        """The `index`-th of its owner."""
        self.owner = owner
        self.index = index
        self.ask = ask
        self.prompt = prompt
        self.stops: list[str] = []
        self.max_tokens = 0
        self.interactive = False
        self.deadline = 0.0
        """by the monotonic clock; 0: none"""
        self.chances: Chances | None = None
        """None: no log-probabilities are wanted"""
        self.said = False
        """whether its owner was given text: then it can't be sent again"""
        self.losses = 0
        self.tries = 0
        self.given_up = 0.0
        """until when it waits while Triton is away; 0: it doesn't wait yet"""
        self.began = 0.0
        self.epoch = 0
        """of the pump's width, when it was sent"""


class Reader:
    """Reads the responses to a run."""

    def __init__(self, fitted: Fitted, run: Run) -> None:
        """Nothing has come."""
        self._fitted = fitted
        self._run = run
        self._text = Text(run.stops, accumulates=fitted.accumulates)
        self._finish = ""
        self._input_tokens = 0
        self._output_tokens = 0
        self._bytes = 0
        self._vector: list[float] = []
        if run.chances is not None:
            run.chances.forget()

    def read(self, response: service_pb2.ModelInferResponse) -> str:
        """Take a response; the text that it adds. Raises Failure when it isn't what the model promised."""
        fitted = self._fitted
        raw = dict(zip((output.name for output in response.outputs), response.raw_output_contents, strict=False))
        types = {output.name: output.datatype for output in response.outputs}

        def values(tensor: Tensor | None) -> list[Any]:
            if tensor is None or tensor.name not in raw:
                return []
            return decode(types[tensor.name], raw[tensor.name])

        try:
            texts, finishes = values(fitted.text), values(fitted.finish_reason)
            inputs, outputs = values(fitted.input_tokens), values(fitted.output_tokens)
            self._vector += map(float, values(fitted.embedding))
            if self._run.chances is not None and fitted.logprobs is not None:
                self._run.chances.add(b"".join(values(fitted.logprobs[1])[:1]))
        except ValueError as error:
            raise Failure("failed", f"a response can't be read: {error}") from None
        self._input_tokens = int(inputs[0]) if inputs else self._input_tokens
        self._output_tokens += int(outputs[0]) if outputs else 0
        said = finishes[0].decode("utf-8", "replace").lower() if finishes else ""
        self._finish = said if said not in _UNSAID else self._finish
        if not texts:
            return ""
        self._bytes += len(texts[0])
        return self._text.add(texts[0])

    @property
    def stopped(self) -> bool:
        """Whether a stop string came: nothing more is wanted."""
        return self._text.stopped

    def end(self) -> tuple[str, End]:
        """Give the rest of the text, and the end. Raises Failure when Triton stopped it by itself."""
        if self._finish in _STOPPED:
            raise Failure("stopped", f"the request was stopped in Triton: {self._finish}")
        if self._fitted.embedding is not None and not self._vector:
            raise Failure("failed", "the response has no vector")
        rest = self._text.add(b"", last=True)
        end = End(vector=self._vector, derived=set())
        end.input_tokens, end.output_tokens = self._input_tokens, self._output_tokens
        if not self._input_tokens or (self._bytes and not self._output_tokens):
            end.derived.add("usage")
            end.input_tokens = self._input_tokens or -(-len(self._run.prompt.encode()) // _BYTES_A_TOKEN)
            end.output_tokens = self._output_tokens or -(-self._bytes // _BYTES_A_TOKEN)
        if self._text.stopped:
            end.finish = "stop"
        elif self._finish:
            end.finish = _FINISHES.get(self._finish, "stop")
        else:
            end.derived.add("finish_reason")
            if self._output_tokens and 0 < self._run.max_tokens <= self._output_tokens:
                end.finish = "length"
        return rest, end
