"""Journals that are written together."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from haywain import durable
from services.scheduler.journal import Group, Journal, Journals, write


@asynccontextmanager
async def writing(synced: Callable[[Group], None], changed: Callable[[], None] = lambda: None) -> AsyncIterator[Journals]:
    """Write journals during the block."""
    journals = Journals(synced, changed)
    running = asyncio.create_task(journals.run())
    yield journals
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_each_line_is_told_once_it_is_on_the_disk(tmp_path: Path) -> None:
    """Lines of many journals, written by a few threads, are all in their files, in order, when they are told of."""
    many = [Journal(tmp_path / f"{number}.jsonl", 0) for number in range(50)]

    def synced(group: Group) -> None:
        journal = group.notes["journal"]
        assert journal.path.read_bytes().endswith(group.lines[-1])

    async with writing(synced) as journals:
        for line in (b"first\n", b"second\n"):
            for journal in many:
                journals.append(journal, line)["journal"] = journal
            await asyncio.sleep(0)
        for journal in many:
            await journals.flushed(journal)
            assert journal.path.read_bytes() == b"first\nsecond\n"
        assert journals.backlog == journals.stuck == 0


def test_a_file_counts_once_its_folder_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made in a folder together shares its sync; when that fails, nothing was recorded, and the next try syncs it again."""
    synced: list[Path] = []

    def fails_first(folder: Path) -> None:
        synced.append(folder)
        if len(synced) == 1:
            raise OSError(errno.EIO, "no")

    durable.make_folder(tmp_path)
    monkeypatch.setattr(durable, "sync_folder", fails_first)
    made = [Journal(tmp_path / f"{number}.jsonl", 0) for number in range(3)]
    groups = [(journal, Group()) for journal in made]
    for _, group in groups:
        group.lines.append(b"line\n")
    assert [type(outcome) for outcome in write(groups)] == [OSError] * 3
    assert [outcome[0] for outcome in write(groups) if not isinstance(outcome, OSError)] == [5, 5, 5]
    assert synced == [tmp_path] * 2
    assert not isinstance(write(groups)[0], OSError)
    assert synced == [tmp_path] * 2, "once is enough"
    assert [journal.path.read_bytes() for journal in made] == [b"line\n"] * 3


async def test_one_that_can_not_be_written_holds_up_no_other(tmp_path: Path) -> None:
    """Of journals that are written together, one that fails is tried again until it is written; the others are told at once."""
    (tmp_path / "bad").write_bytes(b"no folder")
    bad, good = Journal(tmp_path / "bad" / "a.jsonl", 0), Journal(tmp_path / "b.jsonl", 0)
    stuck: list[int] = []
    was_stuck = asyncio.Event()

    def changed() -> None:
        stuck.append(journals.stuck)
        if journals.stuck:
            was_stuck.set()

    async with writing(lambda _: None, changed) as journals:
        for journal in (bad, good):
            journals.append(journal, b"line\n")
        await journals.flushed(good)
        assert good.path.read_bytes() == b"line\n"
        await was_stuck.wait()
        (tmp_path / "bad").unlink()
        await journals.flushed(bad)
        assert bad.path.read_bytes() == b"line\n"
    assert max(stuck) == 1
    assert journals.stuck == journals.backlog == 0
