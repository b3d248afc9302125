"""One request on its way: as many runs as it has choices, one answer."""

from __future__ import annotations

import time

from engine import answers
from engine.backend import Emit
from engine.llamacpp.messages import Begin, Delta, Ended
from engine.llamacpp.prepare import Prepared
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import Unavailable

__all__ = ["Row"]


class Row:
    """Gathers what decoders say about a request's runs and answers when the last one has ended."""

    def __init__(self, sequence: pb.Sequence, emit: Emit) -> None:
        """Begin with a request that is not prepared yet."""
        self.sequence_id = sequence.sequence_id
        self.lane = int(sequence.lane)
        self.cancelled = False
        self.runs: list[int] = []
        self._emit = emit
        self._stream = sequence.stream
        self._model = sequence.model
        self._arrived = time.monotonic()
        self._prepared: Prepared | None = None
        self._ended: dict[int, Ended] = {}
        self._texts: list[list[str]] = []

    def begin(self, prepared: Prepared, first_run: int, fingerprint: str) -> list[Begin]:
        """Give the runs to start, numbered from `first_run` on."""
        self._prepared = prepared
        self._answer = answers.ChatAnswer(self._model, fingerprint=fingerprint)
        self._texts = [[] for _ in prepared.samplings]
        self.runs = list(range(first_run, first_run + len(prepared.samplings)))
        if self._stream:
            for index in range(len(self.runs)):
                self._emit.delta(self.sequence_id, self._answer.role_chunk(index))
        return [
            Begin(
                run=run,
                tokens=prepared.prompt,
                max_output=prepared.max_output,
                stops=prepared.stops,
                sampling=sampling,
                lane=self.lane,
                stream=self._stream,
            )
            for run, sampling in zip(self.runs, prepared.samplings, strict=True)
        ]

    def delta(self, event: Delta) -> None:
        """Take more text of a run."""
        index = self.runs.index(event.run)
        self._texts[index].append(event.text)
        self._emit.delta(self.sequence_id, self._answer.content_chunk(event.text, index))

    def ended(self, event: Ended) -> bool:
        """Take the end of a run; True when it was the last and the request is answered."""
        index = self.runs.index(event.run)
        self._ended[index] = event
        self._texts[index].append(event.text)
        if self._stream and event.finish in {"stop", "length"}:
            if event.text:
                self._emit.delta(self.sequence_id, self._answer.content_chunk(event.text, index))
            self._emit.delta(self.sequence_id, self._answer.final_chunk(event.finish, index))
        if len(self._ended) < len(self.runs):
            return False
        self._finish()
        return True

    def refuse(self, result: pb.SequenceResult) -> None:
        """Answer with an error."""
        self._emit.result(result)

    def lose(self, how: str) -> None:
        """Answer that a decoder died with it."""
        message = f"The decoder process that ran this request ended: {how}. Please retry."
        self._emit.result(answers.error_result(self.sequence_id, Unavailable(message, code="engine_error"), retryable=True))

    def _finish(self) -> None:
        prepared = self._prepared
        ends = [self._ended[index] for index in range(len(self.runs))]
        finishes = {end.finish for end in ends}
        if prepared is None or "cancelled" in finishes:
            self._emit.result(answers.cancelled(self.sequence_id))
            return
        if "error" in finishes:
            self._emit.result(answers.engine_error(self.sequence_id, "The model's logits were not finite numbers."))
            return
        usage = openai.CompletionUsage.of(
            prepared.prompt_tokens, sum(end.output_tokens for end in ends), min(end.cached_tokens for end in ends)
        )
        choices = [
            openai.ChatChoice(index=index, message=openai.ChatMessage(content="".join(texts)), finish_reason=end.finish)
            for index, (texts, end) in enumerate(zip(self._texts, ends, strict=True))
        ]
        if self._stream and prepared.request.include_usage:
            self._emit.delta(self.sequence_id, self._answer.usage_chunk(usage))
        run_ms = max(end.run_ms for end in ends)
        queue_ms = max(0, int((time.monotonic() - self._arrived) * 1000) - run_ms)
        body = self._answer.whole(choices, usage)
        result = answers.answer_result(self.sequence_id, body, usage, queue_ms=queue_ms, run_ms=run_ms)
        if prepared.seed is not None and abs(prepared.seed) < 2**63:
            result.seed = prepared.seed
        self._emit.result(result)
