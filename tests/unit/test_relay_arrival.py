"""The start of a backend whose server may not be there, and rows that wait too long for it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from engine.relay import arrival as module
from engine.relay.arrival import arrival
from engine.relay.holding import gone_back, hold
from haywain.errors import SettingsError, Unavailable


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again without waiting."""
    monkeypatch.setattr(module, "_AGAIN_SECONDS", 0.0)


class Server:
    """Something that is looked for."""

    def __init__(self, *outcomes: str | Exception) -> None:
        """What each look gives; the last one again and again."""
        self.outcomes = list(outcomes)
        self.looks = 0

    async def find(self) -> str:
        """Look."""
        self.looks += 1
        found = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(found, Exception):
            raise found
        return found


async def test_a_server_that_is_not_there_yet_is_waited_for() -> None:
    """It is asked again until it is there; the log says so once in half a minute, with address and reason."""
    server = Server(Unavailable("not up"), Unavailable("loading"), "here")
    with capture_logs() as said:
        assert await arrival(server.find, name="server", url="http://x") == "here"
    assert [(line["event"], line["url"], line["reason"]) for line in said] == [("server.waiting", "http://x", "not up")]
    assert server.looks == 3


async def test_what_waiting_cannot_cure_ends_the_start() -> None:
    """A SettingsError is raised at once."""
    server = Server(SettingsError("wrong key"))
    with pytest.raises(SettingsError, match="wrong key"):
        await arrival(server.find, name="server", url="http://x")
    assert server.looks == 1


async def test_a_wait_may_have_an_end() -> None:
    """After so many seconds it is Unavailable, with the last reason; no time is one look."""
    server = Server(Unavailable("not up"))
    with pytest.raises(Unavailable, match="not up"):
        await arrival(server.find, name="server", url="http://x", seconds=0)
    assert server.looks == 1
    with pytest.raises(Unavailable):
        await arrival(server.find, name="server", url="http://x", seconds=0.01)
    assert server.looks >= 2


def test_who_waits_for_an_answer_is_told_soon() -> None:
    """Rows of batches wait as long as the setting says, synchronous requests two seconds at most."""
    assert [hold(30, interactive=False), hold(30, interactive=True), hold(0.5, interactive=True)] == [30, 2, 0.5]


def test_a_row_that_goes_back_was_never_tried() -> None:
    """It ends as engine_unavailable, retryable, which the scheduler counts as no try."""
    result = gone_back(7, "The server", "no route")
    assert (result.sequence_id, result.status_code, result.error.code, result.retryable) == (7, 503, "engine_unavailable", True)
    assert result.error.message == "The server is away: no route"
