"""The validation process: killed, orphaned, and what a batch does then."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from batches_seam import Batch, Seam, happens, live, row, rows, seam
from family import below, dead, kill

from services.batches.validate import Order, Verdict
from services.batches.validator import SMALL_BYTES, Validator, ValidatorDied

__all__ = ["live", "seam"]

ORDER = """
Order(input_path={path!r}, index_path={path!r} + ".index", endpoint="/v1/chat/completions", default_model="", served=None,
      members={{}}, deterministic=False, mixed_models=False, max_lines=9, max_line_bytes=999, max_errors=9, shard_rows=9)
"""
ORPHANED = """
import asyncio
from services.batches.validate import Order
from services.batches.validator import Validator

if __name__ == "__main__":
    asyncio.run(Validator().validate({order}))
"""


def order_of(path: Path) -> Order:
    """Order a file's validation."""
    order: Order = eval(ORDER.format(path=str(path)), {"Order": Order})  # noqa: S307 - the same text runs in another process
    return order


def validating(parent: psutil.Process) -> list[psutil.Process]:
    """List a process's validation processes; multiprocessing's resource tracker is another kind of child."""
    return below(parent, "spawn_main")


async def test_it_is_kept_and_replaced_when_it_dies(tmp_path: Path) -> None:
    """Files share one process; when that is killed, busy or idle, the next file gets a new one."""
    good, hanging = tmp_path / "good", tmp_path / "hanging"
    good.write_bytes(row("a") + b"\n" * SMALL_BYTES)
    os.mkfifo(hanging)
    validator = Validator()
    try:
        for _ in range(2):
            assert (await validator.validate(order_of(good))).faults == []
        first = validating(psutil.Process())
        assert len(first) == 1
        kill(first[0])
        await happens(lambda: dead(first[0]))
        assert (await until_valid(validator, good)).faults == []
        second = validating(psutil.Process())
        assert [child.pid for child in second] != [first[0].pid]
        busy = asyncio.create_task(validator.validate(order_of(hanging)))
        await asyncio.sleep(0)
        kill(second[0])
        with pytest.raises(ValidatorDied):
            await busy
        assert (await validator.validate(order_of(good))).faults == []
    finally:
        validator.close()
    await happens(lambda: not validating(psutil.Process()))


async def test_small_files_need_no_process(tmp_path: Path) -> None:
    """A small file is validated beside one that takes for ever, without a process of its own."""
    good, hanging = tmp_path / "good", tmp_path / "hanging"
    good.write_bytes(row("a"))
    os.mkfifo(hanging)
    validator = Validator()
    busy = asyncio.create_task(validator.validate(order_of(hanging)))
    await happens(lambda: validating(psutil.Process()))
    assert (await validator.validate(order_of(good))).faults == []
    assert len(validating(psutil.Process())) == 1
    validator.close()
    with pytest.raises(ValidatorDied):
        await busy


async def until_valid(validator: Validator, path: Path) -> Verdict:
    """Validate; a process that had just died costs one try."""
    try:
        return await validator.validate(order_of(path))
    except ValidatorDied:
        return await validator.validate(order_of(path))


async def test_closing_does_not_wait(tmp_path: Path) -> None:
    """A process in the middle of a file is killed at once."""
    os.mkfifo(tmp_path / "hanging")
    validator = Validator()
    busy = asyncio.create_task(validator.validate(order_of(tmp_path / "hanging")))
    await happens(lambda: validating(psutil.Process()))
    validator.close()
    with pytest.raises(ValidatorDied):
        await busy
    await happens(lambda: not validating(psutil.Process()))


async def test_it_never_outlives_the_service(tmp_path: Path) -> None:
    """When the service is killed, the kernel kills what validates for it."""
    path, script = tmp_path / "hanging", tmp_path / "orphaned.py"
    os.mkfifo(path)
    script.write_text(ORPHANED.format(order=ORDER.format(path=str(path)).strip()))
    root = str(Path(__file__).parents[2])
    service = await asyncio.create_subprocess_exec(sys.executable, script, cwd=root, env=os.environ | {"PYTHONPATH": root})
    try:
        parent = psutil.Process(service.pid)
        await happens(lambda: validating(parent))
        child = validating(parent)[0]
    finally:
        service.send_signal(signal.SIGKILL)
        await service.wait()
    await happens(lambda: dead(child))


async def test_a_file_that_kills_it_twice_fails_its_batch(live: Seam) -> None:
    """The batch fails with an error of its own, and others go on."""
    file_id = await live.files.put(rows(1))
    path = await live.blobs.local(f"input-{file_id}")
    path.unlink()
    os.mkfifo(path)
    batch = await live.create(file_id)
    killed: set[int] = set()
    while len(killed) < 2:
        await happens(lambda: {child.pid for child in validating(psutil.Process())} - killed)
        for child in validating(psutil.Process()):
            kill(child)
            killed.add(child.pid)
    failed = await live.until(batch.batch_id)
    assert failed.status == Batch.STATUS_FAILED
    assert [error.code for error in failed.errors] == ["batch_failed"]
    assert "2 times" in failed.error.message
    live.scheduler.instant = True
    assert (await live.until((await live.batch_of(rows(1))).batch_id)).status == Batch.STATUS_COMPLETED


async def test_one_death_is_forgiven(live: Seam) -> None:
    """A batch whose validation was killed once is validated again."""
    live.scheduler.instant = True
    file_id = await live.files.put(rows(2))
    path = await live.blobs.local(f"input-{file_id}")
    data = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    batch = await live.create(file_id)
    await happens(lambda: validating(psutil.Process()))
    path.unlink()
    path.write_bytes(data)
    for child in validating(psutil.Process()):
        kill(child)
    assert (await live.until(batch.batch_id)).status == Batch.STATUS_COMPLETED
