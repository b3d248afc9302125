"""What waits for a decoder, and which of it goes next: the most urgent first, and of a batch's rows those that share a beginning.

A tree of token prefixes tells how much of a prompt a decoder has seen lately. Rows that begin alike go to it one after another,
while its slots hold their beginning; nobody is passed by more than a few.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Final

from engine.llamacpp import policy
from engine.llamacpp.messages import Begin

__all__ = ["PrefixTree", "Seen", "Waiting"]

BLOCK: Final = 16
"""tokens of an edge of the tree"""
_BYTES: Final = 4 * BLOCK
WINDOW: Final = 64
"""how many are looked at, from the first that waits on"""
_URGENT: Final = 1
"""a lane that keeps its order: somebody waits for each of its answers"""


class _Node:
    __slots__ = ("count", "edges")

    def __init__(self) -> None:
        self.count = 0
        """prompts that go through here"""
        self.edges: dict[bytes, _Node] = {}


class PrefixTree:
    """Prompts, as int32 tokens in bytes, by their beginnings; whole blocks only."""

    def __init__(self) -> None:
        """Start empty."""
        self._root = _Node()

    def add(self, tokens: bytes) -> None:
        """Take a prompt; one may be there several times."""
        node = self._root
        for block in _blocks(tokens):
            node = node.edges.setdefault(block, _Node())
            node.count += 1

    def remove(self, tokens: bytes) -> None:
        """Take a prompt out again; it must be there."""
        node = self._root
        for block in _blocks(tokens):
            edges, node = node.edges, node.edges[block]
            node.count -= 1
            if not node.count:
                del edges[block]
                return

    def shared(self, tokens: bytes) -> int:
        """Count the tokens that a prompt begins with as any here does."""
        node, depth = self._root, 0
        for block in _blocks(tokens):
            found = node.edges.get(block)
            if found is None:
                break
            node, depth = found, depth + BLOCK
        return depth


def _blocks(tokens: bytes) -> Iterable[bytes]:
    return (tokens[start : start + _BYTES] for start in range(0, len(tokens) - _BYTES + 1, _BYTES))


class Seen:
    """The latest prompts of a decoder, of which its slots still hold some."""

    def __init__(self, most: int) -> None:
        """Remember `most` of them."""
        self._latest: deque[bytes] = deque()
        self._most = most
        self._tree = PrefixTree()

    def add(self, tokens: bytes) -> None:
        """Take the newest."""
        if self._most:
            self._latest.append(tokens)
            self._tree.add(tokens)
        if len(self._latest) > self._most:
            self._tree.remove(self._latest.popleft())

    def shared(self, tokens: bytes) -> int:
        """Count the tokens that a prompt has in common with one of them."""
        return self._tree.shared(tokens)

    def clear(self) -> None:
        """Forget all."""
        self._latest.clear()
        self._tree = PrefixTree()


class Waiting:
    """Runs that no decoder has."""

    def __init__(self, patience: int) -> None:
        """The first one is passed by `patience` others at most."""
        self._lanes: dict[int, dict[int, Begin]] = {}
        self._patience = patience
        self._passed = 0

    def __bool__(self) -> bool:
        """Tell whether any wait."""
        return bool(self._lanes)

    def add(self, begin: Begin) -> None:
        """Take one; of its lane it is the last."""
        self._lanes.setdefault(begin.lane, {})[begin.run] = begin

    def discard(self, run: int) -> bool:
        """Forget one; False when it isn't here."""
        for lane, runs in self._lanes.items():
            if runs.pop(run, None) is not None:
                if not runs:
                    del self._lanes[lane]
                return True
        return False

    def first(self) -> Begin:
        """Give the one whose turn it is; there must be one."""
        return next(iter(self._lanes[min(self._lanes)].values()))

    def take(self, seen: Seen) -> Begin:
        """Take the first one for a decoder, or one of the next that begins more like what that has seen."""
        first = chosen = self.first()
        if first.lane > _URGENT and self._passed < self._patience:
            most = seen.shared(first.tokens)
            for begin in itertools.islice(self._lanes[first.lane].values(), 1, WINDOW):
                shared = seen.shared(begin.tokens)
                if shared >= most + policy.TILE:
                    chosen, most = begin, shared
        self._passed = 0 if chosen is first else self._passed + 1
        self.discard(chosen.run)
        return chosen
