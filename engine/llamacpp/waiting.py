"""What waits for a decoder, by lane and in the order in which it came; and what decoders had lately, as a tree of token prefixes.

Who goes where is decided in dealing.py.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from typing import Final

from engine.llamacpp.messages import Begin

__all__ = ["BLOCK", "PrefixTree", "Seen", "Waiting"]

BLOCK: Final = 16
"""tokens of an edge of the tree"""
_BYTES: Final = 4 * BLOCK
WINDOW: Final = 64
"""how many of a lane are looked at, from the first that waits on"""


class _Node:
    __slots__ = ("counts", "edges")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """prompts that go through here, by their owner"""
        self.edges: dict[bytes, _Node] = {}


class PrefixTree:
    """Prompts, as int32 tokens in bytes, by their beginnings; whole blocks only. Each has an owner."""

    def __init__(self) -> None:
        """Start empty."""
        self._root = _Node()

    def add(self, tokens: bytes, owner: int) -> None:
        """Take a prompt; one may be there several times."""
        node = self._root
        for block in _blocks(tokens):
            node = node.edges.setdefault(block, _Node())
            node.counts[owner] = node.counts.get(owner, 0) + 1

    def remove(self, tokens: bytes, owner: int) -> None:
        """Take a prompt out again; it must be there."""
        node = self._root
        for block in _blocks(tokens):
            edges, node = node.edges, node.edges[block]
            node.counts[owner] -= 1
            if not node.counts[owner]:
                del node.counts[owner]
            if not node.counts:
                del edges[block]
                return

    def shared(self, tokens: bytes) -> dict[int, int]:
        """Count the tokens that a prompt begins with as any here does, by owner; those who share nothing are left out."""
        node, depth, found = self._root, 0, dict[int, int]()
        for block in _blocks(tokens):
            following = node.edges.get(block)
            if following is None:
                break
            node, depth = following, depth + BLOCK
            for owner in node.counts:
                found[owner] = depth
        return found


def _blocks(tokens: bytes) -> Iterable[bytes]:
    return (tokens[start : start + _BYTES] for start in range(0, len(tokens) - _BYTES + 1, _BYTES))


class Seen:
    """The latest prompts of each decoder, of which its slots still hold some."""

    def __init__(self, decoders: int, most: int) -> None:
        """Remember `most` of them for each."""
        self._latest: list[deque[bytes]] = [deque() for _ in range(decoders)]
        self._most = most
        self._tree = PrefixTree()

    def add(self, decoder: int, tokens: bytes) -> None:
        """Take a decoder's newest."""
        if self._most:
            self._latest[decoder].append(tokens)
            self._tree.add(tokens, decoder)
        if len(self._latest[decoder]) > self._most:
            self._tree.remove(self._latest[decoder].popleft(), decoder)

    def shared(self, tokens: bytes) -> dict[int, int]:
        """Count the tokens that a prompt has in common with what decoders had, by decoder; not those that have nothing."""
        return self._tree.shared(tokens)

    def clear(self, decoder: int) -> None:
        """Forget all of a decoder's."""
        latest = self._latest[decoder]
        while latest:
            self._tree.remove(latest.popleft(), decoder)


class Waiting:
    """Runs that no decoder has."""

    def __init__(self) -> None:
        """Start empty."""
        self._lanes: dict[int, dict[int, Begin]] = {}

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

    def next(self) -> list[list[Begin]]:
        """Give the first ones of each lane, the most urgent lane in front."""
        return [list(itertools.islice(runs.values(), WINDOW)) for _, runs in sorted(self._lanes.items())]
