"""How much memory a model will take."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_gguf

from engine.llamacpp import memory
from engine.llamacpp.messages import Open
from engine.llamacpp.vocabulary import Vocabulary
from haywain.errors import SettingsError

BYTES_PER_TOKEN = 2 * 2 * 16 * 2 * 2
"""of the tiny model: two layers, two heads of 16, keys and values, 2 bytes each"""


def test_the_need_is_weights_once_and_the_rest_for_each_decoder() -> None:
    """The file is shared; caches and decoders add up."""
    path = tiny_gguf.tiny_gguf()
    vocabulary = Vocabulary.load(path)
    one, four = (memory.need(Open(str(path), 16, 512, 192, 1), vocabulary, count) for count in (1, 4))
    vocabulary.close()
    assert one.weights == four.weights == path.stat().st_size
    assert one.cache == 16 * 512 * BYTES_PER_TOKEN
    assert (four.cache, four.compute) == (4 * one.cache, 4 * one.compute)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    """The message has the sum, its parts, what there is, and what to do."""
    need = memory.Need(2**30, 2**31, 2**29)
    memory.check(need, need.total)
    memory.check(need, None)
    parts = r"3584 MiB of memory .weights 1024 MiB, KV cache 2048 MiB, decoders 512 MiB., but 1000 MiB"
    with pytest.raises(SettingsError, match=parts) as raised:
        memory.check(need, 1_000 * 2**20)
    assert "\n" not in raised.value.message


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    """What the kernel calls available, and what a container's limit leaves, with its file cache, which goes when needed."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    assert memory.available(meminfo, tmp_path) == 5_000 * 1024
    for name, text in {"max": "4000000", "current": "3000000", "stat": "anon 1\ninactive_file 500000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.available(meminfo, tmp_path) == 1_500_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available(meminfo, tmp_path) == 5_000 * 1024
    assert memory.available(tmp_path / "none", tmp_path / "none") is None
