"""A mesh for the client's unit tests: answers made up in memory, and a clock that only pretends to wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import httpx

from haywain.client import BatchClient
from haywain.rest import Timer

__all__ = ["BROKEN", "REFUSED", "Answer", "FakeMesh", "PretendTimer", "batch", "make", "refusal"]

REFUSED = httpx.ConnectError("[Errno 111] Connection refused")
BROKEN = httpx.RemoteProtocolError("peer closed connection")


class PretendTimer(Timer):
    """Time that passes only by sleeping, and then at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        """All that was slept."""
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        """Note it."""
        self.slept.append(seconds)


Answer = httpx.Response | Exception


class FakeMesh:
    """Answers one after another, the last one for ever; keeps what was asked."""

    def __init__(self, answers: Iterable[Answer]) -> None:
        self.asked: list[httpx.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        request.read()
        self.asked.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def make(*answers: Answer, **options: Any) -> tuple[BatchClient, FakeMesh, PretendTimer]:
    """Make a client that gets these answers."""
    mesh, timer = FakeMesh(answers), PretendTimer()
    return BatchClient("http://mesh/v1/", transport=httpx.MockTransport(mesh), timer=timer, **options), mesh, timer


def batch(status: str = "completed", **fields: Any) -> httpx.Response:
    """Answer with a batch object."""
    counts = {"total": 2, "completed": 2, "failed": 0}
    body = {"id": "batch_1", "status": status, "request_counts": counts, "output_file_id": None, "error_file_id": None}
    return httpx.Response(200, json=body | {"error": None, "errors": None} | fields)


def refusal(status: int, headers: dict[str, str] | None = None, **error: Any) -> httpx.Response:
    """Answer with an envelope."""
    body = {"message": "No.", "type": "t", "param": None, "code": None} | error
    return httpx.Response(status, headers={"x-request-id": "req_1"} | (headers or {}), json={"error": body})
