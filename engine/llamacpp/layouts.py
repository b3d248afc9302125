"""Which layout the rows at hand need, and when it can be changed to: a change empties the KV cache.

    rows that must be exact are let in while the layout is exact, the others while it isn't; those somebody waits for, always

The first that waits decides, whatever comes behind it. When it needs what isn't there, nobody else is let in; once those that run
have ended, the layout changes. So neither kind waits for ever. Somebody's running row is no obstacle: it pauses and goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from engine.llamacpp import policy, prefixes
from engine.llamacpp.messages import URGENT, Begin
from engine.llamacpp.policy import Layout
from engine.llamacpp.sequence import Entry, Sequence

__all__ = ["EXACT", "Layouts", "Wish"]

EXACT = Layout(flash=False, exact=True)
_USUAL_OUTPUT = 64
"""tokens of an answer that are counted on, at most"""


class Wish(NamedTuple):
    """The layout that would be right."""

    layout: Layout
    now: bool
    """whether it can be changed to at once, and who runs begins again or pauses"""


class Layouts:
    """The layouts that a decoder may have."""

    def __init__(self, name: str, model: Layout, *, only: bool) -> None:
        """`name` is one of policy.LAYOUTS or policy.EXACT, or empty for the one that the model has.

        With `only` there is no other: for slots that share fewer cells than they could fill, and for a cache of smaller numbers.
        """
        self.first = model if only or not name else EXACT if name == policy.EXACT else policy.LAYOUTS[name]
        self._chooses = name == policy.AUTO and not only
        self._mixes = bool(name) and name != policy.EXACT and not only

    def wish(self, waiting: Collection[Entry], running: Collection[Sequence], present: Layout, slots: int) -> Wish:
        """Tell which layout suits the rows at hand."""
        head = min((entry for entry in waiting if not _is_urgent(entry.begin)), key=lambda entry: entry[:2], default=None)
        if self._mixes and head is not None and head.begin.exact != present.exact:
            layout = EXACT if head.begin.exact else self.first
            return Wish(layout, all(_is_urgent(sequence.begin) for sequence in running))
        if self._mixes and head is None and waiting and present.exact and not any(one.begin.exact for one in running):
            return Wish(self.first, now=True)  # only those somebody waits for are left: they needn't go on slowly
        if not self._chooses or present.exact or not waiting:
            return Wish(present, now=True)
        begins = [entry.begin for entry in waiting if not entry.begin.exact] + [sequence.begin for sequence in running]
        prompts = sorted((np.frombuffer(begin.tokens, np.int32) for begin in begins), key=lambda prompt: prompt.tobytes())
        shared = sum(prefixes.common(one, other) for one, other in itertools.pairwise(prompts))
        # What is generated, too; but few rows say all that they may.
        sizes = [len(begin.tokens) // 4 + min(begin.max_output, _USUAL_OUTPUT) for begin in begins]
        # Those that only began to evaluate their prompts, as the first ones of a batch, may begin again.
        return Wish(policy.layout(present, sizes, shared, slots), not any(sequence.output for sequence in running))

    def lets_in(self, begin: Begin, wish: Wish, present: Layout) -> bool:
        """Tell whether a row may run now."""
        return _is_urgent(begin) or (wish.layout == present and (not self._mixes or begin.exact == present.exact))


def _is_urgent(begin: Begin) -> bool:
    return begin.lane <= URGENT and not begin.exact
