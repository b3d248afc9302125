"""How much memory a model will take, stated before it is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from engine.llamacpp import policy
from engine.llamacpp.messages import Open
from engine.llamacpp.vocabulary import Vocabulary
from haywain.errors import SettingsError

__all__ = ["AS_MANY_AS_FIT", "Need", "available", "check", "need"]

AS_MANY_AS_FIT: Final = -1
"""layers in a GPU: all, unless there is no room for them, which only decoders find out"""
_MEBIBYTE: Final = 2**20
_PROCESS: Final = 96 * _MEBIBYTE
"""a decoder without its model: Python, numpy, the library"""
_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


class Need:
    """Bytes, by what they are for."""

    def __init__(self, weights: int, cache: int, compute: int, kv_type: str = policy.F16) -> None:
        """`weights` are mapped, and shared by all decoders; the others are of all decoders together."""
        self.weights = weights
        self.cache = cache
        self.compute = compute
        self.kv_type = kv_type

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.cache + self.compute

    def __str__(self) -> str:
        """Write it for a message."""
        cache = "KV cache" if self.kv_type == policy.F16 else f"KV cache ({self.kv_type})"
        parts = {"weights": self.weights, cache: self.cache, "decoders": self.compute}
        return ", ".join(f"{name} {size / _MEBIBYTE:.0f} MiB" for name, size in parts.items())


def need(wanted: Open, vocabulary: Vocabulary, decoders: int) -> Need:
    """Estimate for this many decoders; without what lies in a GPU, where `AS_MANY_AS_FIT` counts as all."""
    texts = 1 if wanted.pooling else wanted.slots  # texts to embed are evaluated within the length of one
    tokens = wanted.cells or texts * -(-wanted.context_length // 256) * 256
    width = max(1, vocabulary.number("embedding_length"))
    heads = max(1, vocabulary.number("attention.head_count"))
    hidden = vocabulary.number("feed_forward_length") or 4 * width
    # Of a step: logits, activations, and without flash attention every head's scores over the context.
    scores = heads * wanted.context_length * 4
    step = wanted.context_length if wanted.pooling else wanted.batch_tokens
    logits = 0 if wanted.pooling else wanted.slots * vocabulary.size * 4
    blocks = max(1, vocabulary.number("block_count"))
    kept = _kept(wanted.gpu_layers, blocks)
    compute = logits + (step * (4 * (6 * width + 2 * hidden) + scores) if kept else 0)
    weights = Path(wanted.path).stat().st_size * kept // blocks
    cache = tokens * vocabulary.kv_bytes_per_token(policy.KV_TYPES[wanted.kv_type]) * kept // blocks
    return Need(weights, decoders * cache, decoders * (compute + _PROCESS), wanted.kv_type)


def _kept(gpu_layers: int, blocks: int) -> int:
    """Tell how many of a model's blocks stay in main memory; the first layer that goes to a GPU is the output's, behind them."""
    return 0 if gpu_layers == AS_MANY_AS_FIT else blocks - min(blocks, max(0, gpu_layers - 1))


def available(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Tell how many bytes this process may still take, None where that can't be told."""
    sizes = []
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
        if found:
            sizes.append(int(found[1]) * 1024)
    except OSError:
        pass
    try:
        limit, current = ((cgroup / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        if limit.isdigit():
            # Cached files are counted as current, but go when memory is needed.
            cached = re.search(r"^inactive_file (\d+)", (cgroup / "memory.stat").read_text(), re.MULTILINE)
            sizes.append(max(0, int(limit) - int(current) + (int(cached[1]) if cached else 0)))
    except (OSError, ValueError):
        pass
    return min(sizes, default=None)


def check(wanted: Need, room: int | None) -> None:
    """Refuse, in one line, what won't fit. Raises SettingsError."""
    if room is not None and wanted.total > room:
        needed, free = (f"{size / _MEBIBYTE:.0f} MiB" for size in (wanted.total, room))
        raise SettingsError(
            f"the model needs {needed} of memory ({wanted}), but {free} are available: "
            "lower engine.llamacpp.slots, context_length or workers"
        )
