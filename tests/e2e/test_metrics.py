"""GET /metrics of a whole mesh: right, complete, documented; and an answer even while processes are away."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mesh import Mesh, chat_row, until
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent.parent
PROCESSES = ("gateway", "files", "batches", "scheduler", "engine")


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with an echo engine that fails and hangs on demand, a batch that ran, and a few requests."""
    with Mesh(haywain) as running:
        sets = ("engine.echo.fail_containing=please fail", "engine.echo.hang_containing=please hang")
        running.start("--engine", "echo", *(word for one in sets for word in ("--set", one)))
        batch = running.create([chat_row(f"row-{n}", "please fail" if n % 10 == 0 else "hello") for n in range(500)])
        ended = running.wait(batch["id"])
        running.client.get(f"/v1/files/{ended['output_file_id']}/content", headers={"range": "bytes=0-9"})
        running.client.get("/v1/files/file-nope")
        running.client.post("/v1/chat/completions", json={"model": "nope", "messages": []})
        yield running


def families(mesh: Mesh, accept: str = "") -> dict[str, Metric]:
    """Scrape; families by name."""
    answer = mesh.client.get("/metrics", headers={"accept": accept} if accept else {})
    assert answer.status_code == 200
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def value(mesh: Mesh, sample: str, **labels: str) -> float:
    """Scrape; sum the samples of a name that have these labels."""
    found = [one for family in families(mesh).values() for one in family.samples if one.name == sample]
    return sum(one.value for one in found if labels.items() <= one.labels.items())


def documented() -> dict[str, tuple[str, set[str], bool]]:
    """Read the table of docs/operations.md: type and labels by name, and whether only llama.cpp's engine tells it."""
    text = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| `((?:haywain|process)_\w+)` \| (\w+) \| ([\w, ]*)\| (.*) \|$", text, re.MULTILINE)
    return {
        name.removesuffix("_total"): (kind, {label for label in re.split(r"[ ,]+", labels) if label}, what.startswith("llama.cpp"))
        for name, kind, labels, what in rows
    }


def test_the_table_is_what_there_is(mesh: Mesh) -> None:
    """docs/operations.md lists every name with its type and labels, and none that isn't there."""
    table, found = documented(), families(mesh)
    assert set(found) == {name for name, (_, _, llamacpp) in table.items() if not llamacpp}
    for name, family in found.items():
        kind, labels, _ = table[name]
        assert family.type == kind, name
        assert family.documentation
        assert family.samples, name
        told = {label for sample in family.samples for label in sample.labels} - {"process", "le"}
        # Every sample of an engine says whose it is.
        assert told - ({"engine"} if "engine" not in labels else set()) == labels, name


def test_every_process_answers(mesh: Mesh) -> None:
    """Each process is up and tells its own memory; an engine says which one it is."""
    found = families(mesh)
    up = {sample.labels["process"]: sample for sample in found["haywain_up"].samples}
    assert {name: sample.value for name, sample in up.items()} == dict.fromkeys(PROCESSES, 1.0)
    assert up["engine"].labels == {"process": "engine", "engine": "engine-0"}
    memory = {sample.labels["process"]: sample.value for sample in found["process_resident_memory_bytes"].samples}
    assert set(memory) == set(PROCESSES)
    assert min(memory.values()) > 1_000_000


def test_a_batch_is_counted(mesh: Mesh) -> None:
    """Rows, tokens, bytes, statuses and answers are those of the batch that ran."""
    assert value(mesh, "haywain_rows_recorded_total", outcome="completed") == 450
    assert value(mesh, "haywain_rows_recorded_total", outcome="failed") == 50
    assert value(mesh, "haywain_tokens_recorded_total", kind="output") > 0
    assert value(mesh, "haywain_journal_flush_rows_sum") == 500
    assert value(mesh, "haywain_validation_lines_total") == 500
    assert value(mesh, "haywain_batch_transitions_total", status="completed") == 1
    assert value(mesh, "haywain_batches") == 0
    assert value(mesh, "haywain_seal_seconds_count") == 1
    assert value(mesh, "haywain_intake_rows") == value(mesh, "haywain_slots_used") == 0
    assert value(mesh, "haywain_engine_ended_total", engine="engine-0") == 500
    assert value(mesh, "haywain_engine_state", state="ready") == 1
    assert value(mesh, "haywain_file_uploaded_bytes_total") > 10_000
    assert value(mesh, "haywain_file_downloaded_bytes_total") >= 10
    assert value(mesh, "haywain_rpc_calls_total", method="BatchesService/CreateBatch", code="OK") == 1
    assert value(mesh, "haywain_rpc_calls_total", method="FilesService/GetFile", code="NOT_FOUND", process="files") >= 1


def test_answers_have_the_status_that_clients_saw(mesh: Mesh) -> None:
    """A part of a file is 206, what isn't there 404; ids are no labels."""
    assert value(mesh, "haywain_http_answers_total", route="GET /v1/files/{file_id}/content", status="206") == 1
    assert value(mesh, "haywain_http_answers_total", route="GET /v1/files/{file_id}", status="404") == 1
    assert value(mesh, "haywain_http_answers_total", route="POST /v1/chat/completions", status="404") == 1
    assert value(mesh, "haywain_http_answers_total", route="POST /v1/files", status="200") == 1


def test_counters_grow_while_the_page_is_open(mesh: Mesh) -> None:
    """The page and its cached files are counted like every route."""
    before = value(mesh, "haywain_http_answers_total", route="GET /", status="304")
    etag = mesh.client.get("/").headers["etag"]
    again = mesh.client.get("/", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert value(mesh, "haywain_http_answers_total", route="GET /", status="304") == before + 1


def test_what_runs_is_shown(mesh: Mesh) -> None:
    """While rows are at an engine they are in the intake and in slots, and their batch is in progress; then none of it."""
    batch = mesh.create([chat_row(f"row-{n}", "please hang") for n in range(3)])
    until("the rows are at the engine", lambda: value(mesh, "haywain_engine_active", engine="engine-0") == 3)
    assert value(mesh, "haywain_slots_used") == value(mesh, "haywain_intake_rows") == 3
    assert value(mesh, "haywain_slots_free") == value(mesh, "haywain_slots_capacity") - 3
    assert value(mesh, "haywain_batches", status="in_progress") == value(mesh, "haywain_active_batches") == 1
    mesh.client.post(f"/v1/batches/{batch['id']}/cancel", json={})
    mesh.wait(batch["id"])
    until("nothing is left", lambda: value(mesh, "haywain_intake_rows") == value(mesh, "haywain_batches") == 0)
    assert value(mesh, "haywain_batch_transitions_total", status="cancelled") == 1
    assert value(mesh, "haywain_rows_recorded_total") == 500  # those that never ran have no line in the journal


def test_who_leaves_is_499(mesh: Mesh) -> None:
    """A client that hangs up before its answer counts as 499, as in other servers' logs."""
    body = {"model": "echo", "messages": [{"role": "user", "content": "please hang"}]}
    with pytest.raises(httpx.ReadTimeout):
        mesh.client.post("/v1/chat/completions", json=body, timeout=0.5)
    left = {"route": "POST /v1/chat/completions", "status": "499"}
    until("the gateway heard of it", lambda: value(mesh, "haywain_http_answers_total", **left) == 1)


def test_openmetrics_for_those_who_ask(mesh: Mesh) -> None:
    """Prometheus' own Accept header gets OpenMetrics, everybody else the plain text format."""
    asked = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    answer = mesh.client.get("/metrics", headers={"accept": asked})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    assert mesh.client.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_process_that_hangs_is_down(mesh: Mesh) -> None:
    """A stopped process costs the scrape a second and is 0; the others' figures are there, and engines stay known."""
    stopped = [mesh.pid(name) for name in ("files", "scheduler")]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        found = families(mesh)
        took = time.monotonic() - began
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert {sample.labels["process"]: sample.value for sample in found["haywain_up"].samples} == {
        "gateway": 1.0, "files": 0.0, "batches": 1.0, "scheduler": 0.0, "engine": 1.0,
    }  # fmt: skip
    assert 0.9 < took < 10
    assert "haywain_batches" in found
    assert "haywain_intake_rows" not in found


def test_a_process_that_died_comes_back(mesh: Mesh) -> None:
    """A killed process is asked again once it runs again; its counters begin anew."""
    mesh.kill("files")
    until("files is up", lambda: value(mesh, "haywain_up", process="files") == 1)
    assert value(mesh, "haywain_file_uploaded_bytes_total") == 0
