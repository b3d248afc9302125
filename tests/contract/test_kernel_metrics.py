"""What a process counts by itself, and how it tells."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric

from haywain import errors, metrics, rpc
from haywain.files.v1 import files_pb2, files_pb2_grpc
from haywain.telemetry.v1 import telemetry_pb2, telemetry_pb2_grpc

FAILS = "fails"


class Peer(files_pb2_grpc.FilesServiceServicer):
    """Answers, fails, or never ends."""

    async def GetFile(self, request: files_pb2.GetFileRequest, context: Any) -> files_pb2.GetFileResponse:
        """Answer, raise, or wait for ever."""
        if request.file_id == "missing":
            raise errors.FileMissing
        if request.file_id == "defect":
            raise RuntimeError("a defect")
        if request.file_id == "slow":
            await asyncio.Event().wait()
        return files_pb2.GetFileResponse()

    async def DownloadFile(
        self, request: files_pb2.DownloadFileRequest, context: Any
    ) -> AsyncIterator[files_pb2.DownloadFileResponse]:
        """Stream two messages and more for ever, when asked."""
        yield files_pb2.DownloadFileResponse(data=b"a")
        yield files_pb2.DownloadFileResponse(data=b"b")
        if request.file_id == "slow":
            await asyncio.Event().wait()


async def _figures() -> Iterable[Metric]:
    return [metrics.figure("test_rows", "Rows.", {("a",): 1.0, ("b",): 2.0}, "kind")]


async def _failing() -> Iterable[Metric]:
    raise errors.Unavailable


@pytest.fixture(params=[_figures, _failing], ids=["figures", FAILS])
async def address(request: pytest.FixtureRequest, data_dir: Path) -> AsyncIterator[str]:
    """Run a process."""
    address = f"unix:{data_dir}/run/test.sock"
    service = (Peer(), files_pb2_grpc.add_FilesServiceServicer_to_server, "haywain.files.v1.FilesService")
    async with rpc.serving(address, [service], grace_seconds=0, figures=request.param):
        yield address


async def collected(address: str) -> dict[tuple[str, ...], float]:
    """Ask; values by sample name and labels."""
    async with rpc.channel(address) as channel:
        collect = telemetry_pb2_grpc.TelemetryServiceStub(channel).Collect
        answer = await rpc.call(collect, telemetry_pb2.CollectRequest())
    return {
        (sample.name, *(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))): sample.value
        for family in answer.families
        for sample in family.samples
    }


async def test_calls_are_counted_by_method_and_code(address: str) -> None:
    """Each kind of end has its code: good, refused, a defect, given up; a stream is one call, however it ends."""

    def calls(found: dict[tuple[str, ...], float], code: str, method: str) -> float:
        return found.get(("haywain_rpc_calls_total", f"code={code}", f"method=FilesService/{method}"), 0.0)

    before = await collected(address)
    async with rpc.channel(address) as channel:
        stub = files_pb2_grpc.FilesServiceStub(channel)
        for file_id, raised in (("a", None), ("missing", errors.FileMissing), ("defect", errors.HaywainError)):
            request = files_pb2.GetFileRequest(file_id=file_id)
            if raised is None:
                await rpc.call(stub.GetFile, request)
            else:
                with pytest.raises(raised):
                    await rpc.call(stub.GetFile, request)
        with pytest.raises(errors.DeadlineExceeded):
            await rpc.call(stub.GetFile, files_pb2.GetFileRequest(file_id="slow"), timeout=0.2)
        async for _ in rpc.stream(stub.DownloadFile, files_pb2.DownloadFileRequest(file_id="a")):
            pass
        left = rpc.stream(stub.DownloadFile, files_pb2.DownloadFileRequest(file_id="slow"))
        await anext(left)
        await left.aclose()
    wanted = [
        ("OK", "GetFile"),
        ("NOT_FOUND", "GetFile"),
        ("INTERNAL", "GetFile"),
        ("CANCELLED", "GetFile"),
        ("OK", "DownloadFile"),
        ("CANCELLED", "DownloadFile"),
    ]
    async with asyncio.timeout(10):
        while True:  # the server hears of a cancelled call a moment later
            found = await collected(address)
            grown = {(code, method): calls(found, code, method) - calls(before, code, method) for code, method in wanted}
            if sum(grown.values()) == len(wanted):
                break
    assert grown == dict.fromkeys(wanted, 1.0)
    timed = ("haywain_rpc_seconds_count", "method=FilesService/GetFile")
    assert found[timed] - before.get(timed, 0.0) == 4


async def test_what_is_looked_up_is_told(address: str, request: pytest.FixtureRequest) -> None:
    """Figures are looked up at each call; when they can't be, all others are told."""
    found = await collected(address)
    looked_up = {key: value for key, value in found.items() if key[0] == "test_rows"}
    failing = FAILS in request.node.name
    assert looked_up == ({} if failing else {("test_rows", "kind=a"): 1.0, ("test_rows", "kind=b"): 2.0})
    assert found[("process_resident_memory_bytes",)] > 1_000_000
    assert found[("process_start_time_seconds",)] > 1_000_000_000
