"""One request on its way: a run for each choice of each prompt, one answer."""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Callable

from engine import answers
from engine.backend import Emit
from engine.completion import EmbeddingRequest
from engine.relay.holding import gone_back
from engine.triton.chances import Chances
from engine.triton.failures import Failure
from engine.triton.prepare import CHAT, EMBEDDINGS, Prepared
from engine.triton.run import End, Run
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["Row"]


class Row:
    """Gathers what its runs say, and answers when the last has ended. A `RunOwner`."""

    def __init__(self, sequence: pb.Sequence, prepared: Prepared, emit: Emit, over: Callable[[Row], None]) -> None:
        """`over` is called once it is answered, with runs that may be left to stop."""
        self.sequence_id = sequence.sequence_id
        self._prepared = prepared
        self._emit = emit
        self._over = over
        self._stream = sequence.stream
        self._endpoint = sequence.endpoint
        self._arrived = time.monotonic()
        self._texts: list[list[str]] = [[] for _ in prepared.asks]
        self._ends: list[End | None] = [None] * len(prepared.asks)
        self._open = len(prepared.asks)
        self._chat = answers.ChatAnswer(prepared.request.model)
        self._text = answers.TextAnswer(prepared.request.model)
        self._answered = False
        choices = len(prepared.asks) // len(prepared.prompts)
        self.runs = [Run(self, index, ask, prepared.prompts[index // choices]) for index, ask in enumerate(prepared.asks)]
        deadline = sequence.deadline.ToNanoseconds() / 1e9 - time.time() + self._arrived if sequence.HasField("deadline") else 0.0
        for run in self.runs:
            run.stops = prepared.stops
            run.max_tokens = prepared.max_tokens
            run.interactive = sequence.lane == pb.LANE_INTERACTIVE
            run.deadline = deadline
            run.chances = Chances(prepared.chances) if prepared.chances >= 0 else None
        self._echo = bool(getattr(prepared.request, "echo", False))

    @property
    def unfinished(self) -> bool:
        """Whether it has runs that have not ended."""
        return self._open > 0

    def begin(self) -> None:
        """Tell how a streamed answer begins."""
        for run in self.runs if self._stream else ():
            if self._endpoint == CHAT:
                self._emit.delta(self.sequence_id, self._chat.role_chunk(run.index))
            elif self._echo:
                self._emit.delta(self.sequence_id, self._text.chunk(run.prompt, run.index))

    def piece(self, run: Run, text: str) -> None:
        """Take more text of a run."""
        if self._answered:
            return
        self._texts[run.index].append(text)
        if self._stream:
            told = run.chances.of(text, chat=self._endpoint == CHAT) if run.chances is not None else None
            chunk = self._chat.content_chunk if self._endpoint == CHAT else self._text.chunk
            self._emit.delta(self.sequence_id, chunk(text, run.index, logprobs=told))

    def ended(self, run: Run, end: End) -> None:
        """Take the end of a run."""
        if self._answered:
            return
        self._ends[run.index] = end
        self._open -= 1
        if self._stream and self._endpoint == CHAT:
            self._emit.delta(self.sequence_id, self._chat.final_chunk(end.finish, run.index))
        elif self._stream:
            self._emit.delta(self.sequence_id, self._text.chunk("", run.index, finish_reason=end.finish))
        if not self._open:
            self._finish([end for end in self._ends if end is not None])

    def failed(self, run: Run, failure: Failure) -> None:
        """Take the end of a run that failed: the row fails."""
        if failure.kind == "late":
            self.end(answers.row_timeout(self.sequence_id, time.monotonic() - self._arrived))
            return
        if failure.kind == "away":
            self.end(gone_back(self.sequence_id, "Triton", failure.reason))
        else:
            self.end(answers.error_result(self.sequence_id, failure.error, retryable=failure.kind != "refused"))

    def cancel(self) -> None:
        """End it; whoever calls stops the runs."""
        self.end(answers.cancelled(self.sequence_id))

    def end(self, result: pb.SequenceResult) -> None:
        """Answer."""
        if not self._answered:
            self._answered = True
            self._emit.result(result)
            self._over(self)

    def _finish(self, ends: list[End]) -> None:
        prepared = self._prepared
        usage = self._usage(ends)
        if self._stream and getattr(prepared.request, "include_usage", False):
            last = self._chat.usage_chunk(usage) if self._endpoint == CHAT else self._text.whole([], usage)
            self._emit.delta(self.sequence_id, last)
        run_ms = max(end.run_ms for end in ends)
        queue_ms = max(0, int((time.monotonic() - self._arrived) * 1_000) - run_ms)
        result = answers.answer_result(self.sequence_id, self._body(ends, usage), usage, queue_ms=queue_ms, run_ms=run_ms)
        if prepared.seed is not None:
            result.seed = prepared.seed
        result.derived.extend(sorted(set().union(*(end.derived for end in ends))))
        self.end(result)

    def _body(self, ends: list[End], usage: openai.CompletionUsage) -> bytes:
        if self._endpoint == EMBEDDINGS:
            return self._vectors(ends, usage)
        texts = ["".join(pieces) for pieces in self._texts]
        told = [
            run.chances.whole(text, chat=self._endpoint == CHAT) if run.chances is not None else None
            for run, text in zip(self.runs, texts, strict=True)
        ]
        if self._endpoint == CHAT:
            chosen = [
                openai.ChatChoice(index=at, message=openai.ChatMessage(content=text), finish_reason=end.finish, logprobs=told[at])
                for at, (text, end) in enumerate(zip(texts, ends, strict=True))
            ]
            return self._chat.whole(chosen, usage)
        echoes = [run.prompt if self._echo else "" for run in self.runs]
        made = [
            openai.TextChoice(index=index, text=echo + text, finish_reason=end.finish, logprobs=told[index])
            for index, (echo, text, end) in enumerate(zip(echoes, texts, ends, strict=True))
        ]
        return self._text.whole(made, usage)

    def _vectors(self, ends: list[End], usage: openai.CompletionUsage) -> bytes:
        request = self._prepared.request
        packs = isinstance(request, EmbeddingRequest) and request.encoding_format == "base64"
        data = []
        for index, end in enumerate(ends):
            packed = base64.b64encode(struct.pack(f"<{len(end.vector)}f", *end.vector)).decode() if packs else None
            data.append(openai.Embedding(index=index, embedding=end.vector if packed is None else packed))
        count = openai.EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens)
        return openai.encode(openai.EmbeddingList(data=data, model=request.model, usage=count))

    def _usage(self, ends: list[End]) -> openai.CompletionUsage:
        """Count: a prompt once for all its choices."""
        choices = len(ends) // len(self._prepared.prompts)
        prompts = sum(end.input_tokens for end in ends[::choices])
        return openai.CompletionUsage.of(prompts, sum(end.output_tokens for end in ends))
