"""How far apart a row's numbers may be beside others and alone, and where its text may part from itself.

A row's next token follows from its logits, its penalties and grammar, and its generator. Up to where two runs of it part all of
these but the logits are the same; so when the log-probabilities of all tokens agree there to within a bound, nothing else made it
part. What comes behind is another text.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.chances import Chance
from engine.llamacpp.loop import Loop
from engine.llamacpp.messages import Begin, Delta, Ended

__all__ = ["Said", "parting", "run"]


class Said:
    """All that was told of a run, streamed or not."""

    def __init__(self) -> None:
        self.text = ""
        self.chances: list[Chance] = []
        self.end: Ended | None = None

    @property
    def whole(self) -> tuple[str, str, int]:
        """Give the text, why it ended and its tokens."""
        assert self.end is not None
        return self.text, self.end.finish, self.end.output_tokens


def run(loop: Loop, begins: Iterable[Begin]) -> dict[int, Said]:
    """Run all to the end."""
    begins = list(begins)
    told = {begin.run: Said() for begin in begins}
    loop.accept(begins)
    while not loop.idle:
        for event in loop.step():
            if isinstance(event, Delta | Ended):
                said = told[event.run]
                assert said.end is None
                said.text += event.text
                said.chances += event.chances
                said.end = event if isinstance(event, Ended) else None
    assert all(said.end is not None for said in told.values())
    return told


def parting(one: Said, other: Said, bound: float, likeliest: int) -> int:
    """Give the place of the token where two runs of a row part, -1 where they are the same.

    Up to there the log-probabilities of the `likeliest` tokens of each place are within `bound` of each other, or this fails.
    """
    for place, (here, there) in enumerate(zip(one.chances, other.chances, strict=False)):
        theirs = dict(there.top)
        for piece, logprob in here.top[:likeliest]:
            assert abs(theirs[piece] - logprob) <= bound, (place, piece, logprob, theirs[piece])
        if here.piece != there.piece:
            return place
    assert one.whole == other.whole
    return -1
