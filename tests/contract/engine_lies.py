"""One lie a rule of `haywain engines check`. A class tells the lie about the rule whose name its docstring is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine_liar import Liar, changed
from grpc_health.v1 import health_pb2

from haywain.engine.v1 import engine_pb2 as pb

__all__ = ["LIES"]


class NoIncarnation(Liar):
    """describe"""

    def describe(self, engine: pb.Engine) -> None:
        """Leave out which start of the process this is."""
        engine.incarnation = ""


class Unsorted(Liar):
    """fields"""

    def describe(self, engine: pb.Engine) -> None:
        """Turn the fields round."""
        turned = list(engine.models[0].fields)[::-1]
        del engine.models[0].fields[:]
        engine.models[0].fields.extend(turned)


class Unwell(Liar):
    """health"""

    def __init__(self, stub: Any) -> None:
        """Never say that it serves."""
        super().__init__(stub)
        self.health = health_pb2.HealthCheckResponse.NOT_SERVING


class EmptyFirst(Liar):
    """credits_first"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Say nothing, then the rest."""
        yield pb.RunResponse()
        yield response


class Miser(Liar):
    """credits_return"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Keep the credits of results."""
        if response.results:
            response.credits = 0
        yield response


class FinalRefusal(Liar):
    """overload"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Refuse for good what has no credit."""
        for result in response.results:
            result.retryable = False
        yield response


class Unfair(Liar):
    """lanes"""

    def ask(self, request: pb.RunRequest) -> None:
        """Forget who is in a hurry."""
        for sequence in request.sequences:
            sequence.lane = pb.LANE_STANDARD


class Bodies(Liar):
    """A lie about good bodies."""

    def spoil(self, body: Any) -> None:
        """Change one."""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Change the good results."""
        for result in response.results:
            if result.status_code == 200:
                result.body = changed(result.body, self.spoil)
        yield response


class WrongObject(Bodies):
    """endpoints"""

    def spoil(self, body: Any) -> None:
        """Call it something else."""
        body["object"] = "thing"


class Twice(Liar):
    """one_result"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Tell each result twice."""
        yield response
        yield pb.RunResponse(results=response.results)


class Generous(Liar):
    """usage"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Count a token more than the body says."""
        for result in response.results:
            result.usage.input_tokens += 1
        yield response


class LineBreaker(Liar):
    """utf8"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Take U+2028 for a space, streamed or not."""
        for one in (*response.results, *response.deltas):
            one.body = one.body.replace(rb"\u2028", b" ")
        yield response


class Afterthought(Liar):
    """stream_order"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Tell a piece, an empty one, after the result."""
        yield response
        if response.deltas:
            self.late = response.deltas[-1].sequence_id
        for result in response.results:
            if getattr(self, "late", None) == result.sequence_id:
                yield pb.RunResponse(deltas=[pb.SequenceDelta(sequence_id=result.sequence_id, body=b"{}")])


class Hole(Liar):
    """stream_text"""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Break the text of pieces."""
        for delta in response.deltas:
            delta.body = delta.body.replace(rb"\u2028", b"")
        yield response


class Refusals(Liar):
    """A lie about refusals."""

    code = ""

    def spoil(self, result: pb.SequenceResult) -> None:
        """Change one."""

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Change those with the code."""
        for result in response.results:
            if result.error.code == self.code:
                self.spoil(result)
        yield response


class SomeError(Refusals):
    """unknown_model"""

    code = "model_not_found"

    def spoil(self, result: pb.SequenceResult) -> None:
        """Don't say what is wrong."""
        result.error.code = "invalid_request"


class TryAgain(Refusals):
    """wrong_endpoint"""

    code = "invalid_url"

    def spoil(self, result: pb.SequenceResult) -> None:
        """Have it tried elsewhere."""
        result.retryable = True


class NoBody(Refusals):
    """malformed_json"""

    code = "invalid_json"

    def spoil(self, result: pb.SequenceResult) -> None:
        """Leave the body out."""
        result.body = b""


class Nameless(Refusals):
    """unknown_field"""

    code = "unknown_parameter"

    def spoil(self, result: pb.SequenceResult) -> None:
        """Don't name the field."""
        result.error.message, result.error.param = "Something is unknown.", ""


class Deaf(Liar):
    """cancel"""

    def ask(self, request: pb.RunRequest) -> None:
        """Forget the cancels."""
        del request.cancel_sequence_ids[:]


class Eager(Liar):
    """cancel_unknown"""

    unknown = 2**63 + 1

    def ask(self, request: pb.RunRequest) -> None:
        """Notice the unknown one."""
        self.asked = getattr(self, "asked", False) or self.unknown in request.cancel_sequence_ids

    def say(self, response: pb.RunResponse) -> Iterator[pb.RunResponse]:
        """Tell how it ended."""
        if getattr(self, "asked", False):
            self.asked = False
            response.results.add(sequence_id=self.unknown, status_code=499)
        yield response


class Timeless(Liar):
    """deadline"""

    def ask(self, request: pb.RunRequest) -> None:
        """Forget the deadlines."""
        for sequence in request.sequences:
            sequence.ClearField("deadline")


class Mixed(Liar):
    """streams_apart"""

    def ask(self, request: pb.RunRequest) -> None:
        """Remember what each id asked first, on whichever stream."""
        self.models: dict[int, str] = getattr(self, "models", {})
        for sequence in request.sequences:
            sequence.model = self.models.setdefault(sequence.sequence_id, sequence.model)


class Leaky(Liar):
    """broken_stream"""

    def broke(self, call: Any) -> None:
        """Go on with what nobody waits for."""
        self.kept.append(call)


class Stranger(Liar):
    """restart"""

    def describe(self, engine: pb.Engine) -> None:
        """Be somebody else after a restart."""
        engine.engine_id += "" if self.starts == 1 else "-2"


LIES: list[type[Liar]] = [
    NoIncarnation, Unsorted, Unwell, EmptyFirst, Miser, FinalRefusal, Unfair, WrongObject, Twice, Generous, LineBreaker,
    Afterthought, Hole, SomeError, TryAgain, NoBody, Nameless, Deaf, Eager, Timeless, Mixed, Leaky,
    Stranger,
]  # fmt: skip
