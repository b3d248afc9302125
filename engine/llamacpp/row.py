"""One request on its way: as many runs as it has prompts times choices, one answer."""

from __future__ import annotations

import time

from engine import answers
from engine.backend import Emit
from engine.llamacpp.messages import Begin, Delta, Ended
from engine.llamacpp.prepare import Prepared
from engine.llamacpp.reply import Choice
from haywain import openai
from haywain.engine.v1 import engine_pb2 as pb
from haywain.errors import Unavailable

__all__ = ["Row"]

_DEFECTS = {
    "error": "The model's logits were not finite numbers.",
    "stuck": "No token of the model's vocabulary fits the grammar of the response_format or the tools here.",
}


class Row:
    """Gathers what decoders say about a request's runs and answers when the last one has ended."""

    def __init__(self, sequence: pb.Sequence, emit: Emit) -> None:
        """Begin with a request that is not prepared yet."""
        self.sequence_id = sequence.sequence_id
        self.lane = int(sequence.lane)
        self.cancelled = False
        self.runs: range = range(0)
        self._emit = emit
        self._stream = sequence.stream
        self._model = sequence.model
        self._exact = sequence.deterministic
        self._pack = sequence.pack and not sequence.deterministic
        self._arrived = time.monotonic()
        self._prepared: Prepared | None = None
        self._choices: list[Choice] = []
        self._open = 0

    def begin(self, prepared: Prepared, first_run: int, fingerprint: str) -> list[Begin]:
        """Give the runs to start, numbered from `first_run` on: every prompt with every sampling."""
        self._prepared = prepared
        self._reply = prepared.reply(self._model, fingerprint)
        pairs = [(prompt, sampling) for prompt in prepared.prompts for sampling in prepared.samplings]
        self._choices = [Choice(prompt.echo, prepared.logprobs >= 0) for prompt, _ in pairs]
        self._open = len(pairs)
        self.runs = range(first_run, first_run + len(pairs))
        for index, choice in enumerate(self._choices if self._stream else ()):
            if opening := self._reply.opening(index, choice):
                self._emit.delta(self.sequence_id, opening)
        return [
            Begin(
                run=run,
                tokens=prompt.tokens,
                max_output=prompt.max_output,
                stops=prepared.stops,
                sampling=sampling,
                lane=self.lane,
                stream=self._stream,
                grammar=prepared.grammar,
                logprobs=prepared.logprobs,
                shown=prepared.shown,
                mark=prepared.mark,
                exact=self._exact,
                pack=self._pack,
            )
            for run, (prompt, sampling) in zip(self.runs, pairs, strict=True)
        ]

    def delta(self, event: Delta) -> None:
        """Take more text of a run."""
        index = event.run - self.runs.start
        choice = self._choices[index]
        choice.texts.append(event.text)
        choice.chances += event.chances
        self._say(self._reply.piece(index, choice, event.text, event.chances))

    def _say(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self._emit.delta(self.sequence_id, chunk)

    def ended(self, event: Ended) -> bool:
        """Take the end of a run; True when it was the last and the request is answered."""
        index = event.run - self.runs.start
        choice = self._choices[index]
        choice.end = event
        choice.texts.append(event.text)
        choice.chances += event.chances
        if self._stream and event.finish in {"stop", "length"}:
            if event.text or event.chances:
                self._say(self._reply.piece(index, choice, event.text, event.chances))
            self._say(self._reply.closing(index, choice))
        self._open -= 1
        if self._open:
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
        ends = [choice.end for choice in self._choices if choice.end is not None]
        finishes = {end.finish for end in ends}
        if prepared is None or "cancelled" in finishes:
            self._emit.result(answers.cancelled(self.sequence_id))
            return
        if defects := sorted(finishes & _DEFECTS.keys()):
            self._emit.result(answers.engine_error(self.sequence_id, _DEFECTS[defects[0]]))
            return
        usage = _usage(prepared, ends, sum(self._reply.reasoning_tokens(choice) for choice in self._choices))
        if self._stream and prepared.include_usage:
            self._emit.delta(self.sequence_id, self._reply.usage(usage))
        run_ms = max(end.run_ms for end in ends)
        queue_ms = max(0, int((time.monotonic() - self._arrived) * 1000) - run_ms)
        body = self._reply.whole(self._choices, usage)
        result = answers.answer_result(self.sequence_id, body, usage, queue_ms=queue_ms, run_ms=run_ms)
        if prepared.seed is not None and abs(prepared.seed) < 2**63:
            result.seed = prepared.seed
        self._emit.result(result)


def _usage(prepared: Prepared, ends: list[Ended], reasoning: int) -> openai.CompletionUsage:
    """Count: a prompt once for all its choices, and of it as cached what no choice had to evaluate."""
    many = len(prepared.samplings)
    prompts = sum(prompt.count for prompt in prepared.prompts)
    cached = sum(min(end.cached_tokens for end in ends[start : start + many]) for start in range(0, len(ends), many))
    return openai.CompletionUsage.of(prompts, sum(end.output_tokens for end in ends), cached, reasoning)
