"""Several Run streams to one engine, as several schedulers have them: they share its window."""

from __future__ import annotations

from pathlib import Path

from engine_running import engine_with, sequence


async def test_two_callers_share_the_window(data_dir: Path) -> None:
    """A second caller gets a part; the first one's shrinks by credits that don't come back, and grows when the second leaves."""
    async with engine_with(data_dir, slots=3) as engine:
        first = await engine.open()
        assert first.credits == 6
        second = await engine.open()
        assert second.credits == 3
        first.send(*map(sequence, range(6)))
        await first.ended(*range(6))
        assert first.credits - len(first.results) == 3
        first.send(*map(sequence, range(6, 9)))
        await first.ended(6, 7, 8)
        assert first.credits - len(first.results) == 3
        second.calling.cancel()
        await first.until(lambda: first.credits - len(first.results) == 6)


async def test_a_caller_that_is_idle_costs_the_other_nothing(data_dir: Path) -> None:
    """With three callers each can still fill every slot; what is sent beyond the part that shrank is run, for it was granted."""
    async with engine_with(data_dir, slots=4) as engine:
        callers = [await engine.open() for _ in range(3)]
        assert [caller.credits for caller in callers] == [8, 4, 4]
        callers[0].send(*map(sequence, range(8)))
        results = await callers[0].ended(*range(8))
        assert {result.status_code for result in results} == {200}
