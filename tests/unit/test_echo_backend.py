"""The echo backend by itself: time, cancels, injected failures and the log of rows run."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from engine.echo import EchoBackend
from haywain.engine.v1 import engine_pb2 as pb
from haywain.settings import EchoSettings


class Heard:
    """Keeps what is emitted; an `Emit`."""

    def __init__(self, log: Path | None = None) -> None:
        """`log`: the run log, whose length is noted at each result."""
        self.events: list[tuple[str, int]] = []
        self.results: dict[int, pb.SequenceResult] = {}
        self.log = log
        self.logged: list[int] = []
        self._more = asyncio.Event()

    def delta(self, sequence_id: int, body: bytes) -> None:
        """Keep it."""
        self.events.append(("delta", sequence_id))
        self._more.set()

    def result(self, result: pb.SequenceResult) -> None:
        """Keep it."""
        assert result.sequence_id not in self.results
        self.events.append(("result", result.sequence_id))
        self.results[result.sequence_id] = result
        if self.log is not None:
            self.logged.append(len(self.log.read_text().splitlines()))
        self._more.set()

    def died(self, reason: str) -> None:
        """Fail."""
        raise AssertionError(reason)

    async def until(self, *sequence_ids: int) -> None:
        """Wait until these have ended."""
        async with asyncio.timeout(5):
            while not self.results.keys() >= set(sequence_ids):
                self._more.clear()
                await self._more.wait()


def row(sequence_id: int, text: str = "a b", *, stream: bool = False, attempt: int = 1) -> pb.Sequence:
    """Make a chat sequence."""
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}]}).encode()
    return pb.Sequence(
        sequence_id=sequence_id, model="echo", endpoint="/v1/chat/completions", request=body, stream=stream, attempt=attempt
    )


async def started(heard: Heard, **settings: Any) -> EchoBackend:
    """Start a backend."""
    backend = EchoBackend(EchoSettings(**settings))
    await backend.start(heard)
    return backend


async def test_rows_without_time_are_answered_inside_submit() -> None:
    """With 0 ms nothing is left to do when `submit` returns, chunks included."""
    heard = Heard()
    backend = await started(heard)
    backend.submit([row(1), row(2, stream=True)])
    assert heard.events == [("result", 1), *[("delta", 2)] * 4, ("result", 2)]
    await backend.close()


async def test_rows_end_when_their_words_are_up() -> None:
    """Shorter answers end first, each after its own time."""
    heard = Heard()
    backend = await started(heard, ms_per_row=10, ms_per_token=10)
    began = time.monotonic()
    backend.submit([row(1, "a b c d"), row(2, "a"), row(3, "a b", stream=True)])
    assert heard.events == []
    await heard.until(1, 2, 3)
    assert time.monotonic() - began >= 0.049
    assert [event for event in heard.events if event[0] == "result"] == [("result", 2), ("result", 3), ("result", 1)]
    assert heard.events[0] == ("delta", 3), "the role comes after the row's time and before the first word's"
    assert heard.results[1].run_ms >= heard.results[2].run_ms >= 19
    await backend.close()


async def test_a_cancelled_row_ends_at_once_and_once() -> None:
    """Running and hanging rows end as cancelled; unknown and ended ids are ignored."""
    heard = Heard()
    backend = await started(heard, ms_per_row=5, hang_containing="hang")
    backend.submit([row(1), row(2, "hang"), row(3)])
    backend.cancel([1, 2, 99])
    assert {number: heard.results[number].status_code for number in heard.results} == {1: 499, 2: 499}
    backend.cancel([1, 2])
    await heard.until(3)
    backend.cancel([3])
    assert heard.results[3].status_code == 200
    await backend.close()


async def test_rows_fail_as_told() -> None:
    """Every n-th row, and each that holds the text, answers 500 engine_error; a hanging row answers nothing."""
    heard = Heard()
    backend = await started(heard, fail_every=3, fail_containing="bad", hang_containing="hang")
    backend.submit([row(1), row(2, "bad"), row(3), row(4), row(5, "hang"), row(6)])
    codes = {number: (result.status_code, result.error.code) for number, result in heard.results.items()}
    failed = (500, "engine_error")
    assert codes == {1: (200, ""), 2: failed, 3: failed, 4: (200, ""), 6: failed}
    await backend.close()


@pytest.mark.parametrize("ms", [0, 1])
async def test_the_run_log_is_written_before_the_answer(tmp_path: Path, ms: int) -> None:
    """At each result the log has a line for it already: a digest of the body and the attempt."""
    heard = Heard(tmp_path / "log")
    backend = await started(heard, run_log=str(tmp_path / "log"), ms_per_row=ms)
    backend.submit([row(1, "a"), row(2, "b", attempt=2), row(3, "a", attempt=3)])
    await heard.until(1, 2, 3)
    await backend.close()
    assert heard.logged == [1, 2, 3]
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [attempt for _, attempt in lines] == ["1", "2", "3"]
    assert lines[0][0] == lines[2][0] != lines[1][0]
    assert all(len(digest) == 16 for digest, _ in lines)


async def test_nothing_is_emitted_after_close() -> None:
    """Closing forgets what runs."""
    heard = Heard()
    backend = await started(heard, ms_per_row=1)
    backend.submit([row(1)])
    await backend.close()
    other = await started(again := Heard(), ms_per_row=5)
    other.submit([row(1)])
    await again.until(1)
    assert heard.events == []
    await other.close()


def test_rows_that_are_due_at_once() -> None:
    """On the loop that servers run, rows that come while others are due at once, as after standing still, are answered as well."""

    async def run() -> None:
        backend, heard = EchoBackend(EchoSettings(ms_per_row=0.01)), Heard()
        await backend.start(heard)
        backend.submit([row(1)])
        backend.submit([row(2)])
        await heard.until(1, 2)
        await backend.close()

    uvloop.run(run())
