"""The client waits for a batch, and does all of it in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from client_answers import BROKEN, REFUSED, batch, make, refusal

from haywain.client import Batch, BatchFailed, ClientError, ConnectionLost, ObjectMissing, WaitTimedOut


def test_waiting_outlives_lost_connections() -> None:
    """Polls go on through lost connections and 5xx; progress is told of each object that came."""
    seen: list[str] = []
    answers = [batch("validating"), BROKEN, REFUSED, refusal(500), refusal(503), batch("in_progress"), batch()]
    client, mesh, timer = make(*answers, retries=0)
    ended = client.wait_for_batch("batch_1", progress=lambda now: seen.append(now["status"]))
    assert ended["status"] == "completed"
    assert seen == ["validating", "in_progress", "completed"]
    assert (len(mesh.asked), len(timer.slept)) == (7, 6)


@pytest.mark.parametrize("status", ["completed", "failed", "expired", "cancelled"])
def test_waiting_ends_however_the_batch_ends(status: str) -> None:
    """Each terminal status is an answer, not an error."""
    client, _, timer = make(batch("in_progress"), batch(status))
    assert client.wait_for_batch("batch_1")["status"] == status
    assert len(timer.slept) == 1


def test_polls_grow_apart() -> None:
    """A short batch is seen soon, a long one is asked for every `poll_seconds`."""
    client, _, timer = make(*[batch("in_progress")] * 40, batch())
    client.wait_for_batch("batch_1", poll_seconds=5)
    assert timer.slept[0] < 0.2
    assert timer.slept == sorted(timer.slept)
    assert timer.slept[-1] == 5


def test_waiting_gives_up_in_time() -> None:
    """The timeout is kept to the second, also while the mesh is away; the error is a TimeoutError too."""
    client, _, timer = make(batch("in_progress"), BROKEN)
    with pytest.raises(WaitTimedOut) as raised:
        client.wait_for_batch("batch_1", timeout=10)
    assert isinstance(raised.value, TimeoutError)
    assert timer.monotonic() == pytest.approx(10)


def test_waiting_for_a_mesh_that_stays_away_ends() -> None:
    """Ten minutes without an answer are an error."""
    client, _, timer = make(batch("in_progress"), REFUSED)
    with pytest.raises(ConnectionLost):
        client.wait_for_batch("batch_1")
    assert 600 < timer.monotonic() < 610


def test_waiting_for_a_batch_that_is_not_there() -> None:
    """404 ends it."""
    client, mesh, _ = make(refusal(404))
    with pytest.raises(ObjectMissing):
        client.wait_for_batch("batch/1?")
    assert mesh.asked[0].url.raw_path == b"/v1/batches/batch%2F1%3F"


def test_submit_makes_lines_of_dicts(tmp_path: Path) -> None:
    """An iterable is written line by line; `method` and `url` are filled in where they are left out."""
    client, mesh, _ = make(httpx.Response(200, json={"id": "file-1"}), batch("validating"), batch())
    rows = ({"custom_id": str(n), "body": {"input": "é"}} for n in range(3))
    done = client.submit_batch(rows, tmp_path / "out.jsonl", endpoint="/v1/embeddings")
    assert done["status"] == "completed"
    sent = [json.loads(line) for line in mesh.asked[0].content.splitlines() if line.startswith(b"{")]
    assert sent == [{"method": "POST", "url": "/v1/embeddings", "custom_id": str(n), "body": {"input": "é"}} for n in range(3)]
    assert json.loads(mesh.asked[1].content)["endpoint"] == "/v1/embeddings"


@pytest.mark.parametrize("bad", [{"body": {"temperature": float("nan")}}, {"body": {1, 2}}, [1]])
def test_a_request_that_is_no_json_is_named(bad: Any) -> None:
    """What can't be written as JSON is told by its number, and nothing is sent."""
    client, mesh, _ = make(batch())
    with pytest.raises(ClientError, match="request 2:"):
        client.submit_batch([{"custom_id": "a", "body": {}}, bad])
    assert mesh.asked == []


def test_submit_tells_why_a_batch_failed() -> None:
    """BatchFailed names the first lines, and has the object."""
    errors = {"data": [{"line": n, "message": f"bad {n}", "code": "x", "param": None} for n in range(1, 13)]}
    failed = batch("failed", errors=errors, error={"code": "invalid_request", "message": "12 lines are bad."})
    client, _, _ = make(httpx.Response(200, json={"id": "file-1"}), batch("validating"), failed)
    with pytest.raises(BatchFailed) as raised:
        client.submit_batch([{"custom_id": "a"}])
    assert raised.value.batch["status"] == "failed"
    assert raised.value.message.splitlines()[:2] == ["batch batch_1 failed: 12 lines are bad.", "  line 1: bad 1"]
    assert raised.value.message.endswith("and 2 more")


def test_results_without_a_folder_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """A typo in the output's folder costs no batch."""
    client, mesh, _ = make(batch())
    with pytest.raises(ClientError, match="there is no folder"):
        client.submit_batch([{"custom_id": "a"}], tmp_path / "nowhere" / "out.jsonl")
    assert mesh.asked == []


def test_progress_sees_typed_objects() -> None:
    """The callback's argument is the batch object as a dict."""
    seen: list[Batch] = []
    client, _, _ = make(batch())
    client.wait_for_batch("batch_1", progress=seen.append)
    assert seen[0]["request_counts"]["total"] == 2
