"""`BatchClient` against the whole mesh, through restarts and a line that breaks off."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, jsonl, until

from haywain import uploading
from haywain.client import (
    Batch,
    BatchClient,
    BatchFailed,
    ConnectionLost,
    NoValidRecords,
    ObjectMissing,
    RequestRefused,
    WaitTimedOut,
)


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with an echo engine that fails on demand."""
    with Mesh(haywain) as running:
        yield running.start(
            "--engine", "echo", "--set", "engine.echo.fail_containing=please fail", "--set", "engine.echo.ms_per_row=2"
        )


@pytest.fixture
def client(mesh: Mesh) -> Iterator[BatchClient]:
    """The client, as its users make it."""
    with BatchClient(f"http://127.0.0.1:{mesh.port}/v1", api_key="any") as made:
        yield made


class CuttingLine:
    """A port that leads to another one; the n-th connection breaks after `cuts[n]` bytes of answer, those after it never."""

    def __init__(self, port: int, *cuts: int) -> None:
        """Lead to `port`."""
        self._far, self._cuts = port, list(cuts)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self.answered: list[int] = []

    def __enter__(self) -> CuttingLine:
        """Listen."""
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take no more connections."""
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._far))
                number, left = len(self.answered), self._cuts.pop(0) if self._cuts else 1 << 62
                self.answered.append(0)
                threading.Thread(target=self._pump, args=(near, far, 1 << 62, None), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, left, number), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, left: int, number: int | None) -> None:
        with suppress(OSError):
            while left and (data := source.recv(min(left, 65536))):
                target.sendall(data)
                left -= len(data)
                if number is not None:
                    self.answered[number] += len(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        source.close()


def test_the_four_steps(mesh: Mesh, client: BatchClient, tmp_path: Path) -> None:
    """Upload, create with batch-level fields, wait with progress, download: each on its own."""
    assert client.health_check() is True
    rows = [chat_row(f"row-{n}", f"text {n}") for n in range(30)]
    for row in rows:
        del row["body"]["model"]
    (tmp_path / "in.jsonl").write_bytes(jsonl(rows))
    file = client.upload_file(tmp_path / "in.jsonl")
    assert (file["filename"], file["purpose"], file["bytes"]) == ("in.jsonl", "batch", (tmp_path / "in.jsonl").stat().st_size)
    made = client.create_batch(
        file["id"], model="echo", metadata={"team": "search"}, priority="expedited", temperature=0.5, top_p=0.9, top_k=40,
        max_decoding_length=16,
    )  # fmt: skip
    told = {name: made[name] for name in ("model", "metadata", "priority", "temperature", "top_p", "top_k")}  # type: ignore[literal-required]
    assert told == {
        "model": "echo", "metadata": {"team": "search"}, "priority": "expedited", "temperature": 0.5, "top_p": 0.9, "top_k": 40,
    }  # fmt: skip
    assert made["max_decoding_length"] == 16
    seen: list[Batch] = []
    ended = client.wait_for_batch(made["id"], timeout=60, progress=seen.append)
    assert ended["status"] == "completed", ended["errors"]
    assert seen[-1] == ended
    output, _ = assert_conserved(mesh.client, dict(ended), [row["custom_id"] for row in rows])
    assert ended["output_file_id"] is not None
    content = client.download_file_content(ended["output_file_id"])
    assert [json.loads(line) for line in content.splitlines()] == output
    path = client.download_file_content(ended["output_file_id"], tmp_path / "out.jsonl")
    assert path.read_bytes() == content


def test_all_in_one(client: BatchClient, tmp_path: Path) -> None:
    """`submit_batch` of dicts: good rows in the output, the others beside it; the next run leaves none of them behind."""
    output = tmp_path / "out.jsonl"
    bodies = [chat_row(f"row-{n}", "please fail" if n == 3 else f"text {n}") for n in range(10)]
    rows = ({"custom_id": row["custom_id"], "body": row["body"]} for row in bodies)
    ended = client.submit_batch(rows, output, metadata={"a": "b"})
    assert ended["request_counts"] == {"total": 10, "completed": 9, "failed": 1}
    assert [json.loads(line)["custom_id"] for line in output.read_bytes().splitlines()] == [f"row-{n}" for n in range(10) if n != 3]
    assert json.loads((tmp_path / "out.errors.jsonl").read_bytes())["custom_id"] == "row-3"
    client.submit_batch([chat_row("only")], output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl"]
    assert json.loads(output.read_bytes())["custom_id"] == "only"


def test_errors_are_one_tree(client: BatchClient, tmp_path: Path) -> None:
    """What the mesh refuses has its status, code, param and request id; an invalid input names its lines."""
    with pytest.raises(RequestRefused) as window:
        client.create_batch("file-x", completion_window="1h")
    assert (window.value.status_code, window.value.code, window.value.param) == (400, "invalid_value", "completion_window")
    assert window.value.request_id
    with pytest.raises(ObjectMissing):
        client.wait_for_batch("batch_none")
    with pytest.raises(ObjectMissing):
        client.download_file_content("file-none", tmp_path / "out")
    with pytest.raises(RequestRefused, match=r"Must be \.jsonl"):
        client.upload_file(b"", filename="empty.jsonl")
    with pytest.raises(BatchFailed, match="line 2: ") as failed:
        client.submit_batch([chat_row("a"), chat_row("a")])
    assert failed.value.batch["errors"]["data"][0]["code"] == "duplicate_custom_id"
    assert list(tmp_path.iterdir()) == []


def test_a_timeout_leaves_the_batch_running(client: BatchClient) -> None:
    """Who stops waiting stops nothing else."""
    file = client.upload_file(jsonl(chat_row(f"row-{n}") for n in range(2000)))
    made = client.create_batch(file["id"])
    with pytest.raises(WaitTimedOut):
        client.wait_for_batch(made["id"], timeout=0)
    assert client.wait_for_batch(made["id"], timeout=60)["status"] == "completed"


def test_a_download_goes_on_where_it_broke_off(mesh: Mesh, client: BatchClient, tmp_path: Path) -> None:
    """Three connections break in the middle; the file is whole, and no byte was fetched twice."""
    content = jsonl(chat_row(f"row-{n}", "x" * 1000) for n in range(5000))
    file = client.upload_file(content)
    with CuttingLine(mesh.port, 1_000_000, 2_000_000, 100_000) as line, BatchClient(line.url) as cut:
        path = cut.download_file_content(file["id"], tmp_path / "copy")
        assert path.read_bytes() == content
        assert len(line.answered) == 4
        assert len(content) < sum(line.answered) < len(content) + 4 * 1000  # headers


def test_an_upload_whose_answer_is_lost(mesh: Mesh) -> None:
    """It is sent again, whole, and one file is there in the end."""
    content = jsonl([chat_row("a")])
    with CuttingLine(mesh.port, 1) as line, BatchClient(line.url) as cut:
        file = cut.upload_file(content, filename="lost.jsonl")
        assert len(line.answered) == 2
        assert cut.download_file_content(file["id"]) == content
    assert [one["id"] for one in mesh.client.get("/v1/files").json()["data"] if one["filename"] == "lost.jsonl"] == [file["id"]]


def test_a_file_in_parts(mesh: Mesh, client: BatchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file over the limit of one request goes in parts, over a line that breaks, and is a batch's input like any other."""
    monkeypatch.setattr(uploading, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(uploading, "PART_BYTES", 700)
    rows = [chat_row(f"row-{n}") for n in range(20)]
    with CuttingLine(mesh.port, 500, 1) as line, BatchClient(line.url) as cut:
        file = cut.upload_file(jsonl(rows))
        assert len(line.answered) > 2
    assert client.download_file_content(file["id"]) == jsonl(rows)
    ended = client.wait_for_batch(client.create_batch(file["id"], wait_seconds=10)["id"], timeout=60)
    assert_conserved(mesh.client, dict(ended), [row["custom_id"] for row in rows])


def test_inline_requests(mesh: Mesh, client: BatchClient) -> None:
    """Requests in the creation itself are validated before the answer, run, and refused when none is valid."""
    requests = [{"custom_id": "good", "body": {"messages": [{"role": "user", "content": "hi"}]}}, {"custom_id": "bad"}]
    made = client.create_batch(requests=requests, model="echo", invalid_rows="reject")
    assert made["rejected_count"] == 1
    assert [(one["line"], one["custom_id"]) for one in made["rejected_records"] or ()] == [(2, "bad")]
    assert_conserved(mesh.client, dict(client.wait_for_batch(made["id"], timeout=60)), ["good", "bad"])
    with pytest.raises(NoValidRecords) as refused:
        client.create_batch(requests=requests[1:], model="echo")
    assert refused.value.rejected_records[0]["code"] == "missing_required_parameter"


def test_a_create_whose_answer_is_lost(mesh: Mesh, client: BatchClient) -> None:
    """It is tried again, and one batch is there in the end."""
    file = client.upload_file(jsonl([chat_row("a")]))
    with CuttingLine(mesh.port, 1) as line, BatchClient(line.url) as cut:
        made = cut.create_batch(file["id"])
        assert len(line.answered) == 2
    page = mesh.client.get("/v1/batches", params={"limit": 100}).json()["data"]
    assert [batch["id"] for batch in page if batch["input_file_id"] == file["id"]] == [made["id"]]
    assert_conserved(mesh.client, mesh.wait(made["id"]), ["a"])


def test_max_context_length(mesh: Mesh, client: BatchClient) -> None:
    """The one batch-level field of the reference client that isn't a sampling parameter: rows over it fail, the others run."""
    rows = [chat_row("short"), chat_row("long", "word " * 500)]
    file = client.upload_file(jsonl(rows))
    ended = client.wait_for_batch(client.create_batch(file["id"], max_context_length=256)["id"], timeout=60)
    _, failed = assert_conserved(mesh.client, dict(ended), ["short", "long"])
    assert [(line["custom_id"], line["error"]["code"]) for line in failed] == [("long", "context_length_exceeded")]


def test_a_full_intake_is_waited_for(haywain: Path) -> None:
    """Two batches that don't fit together both run: the second create is told 429 until there is room."""
    settings = ("scheduler.intake_rows=100", "engine.echo.ms_per_row=100", "engine.echo.slots=4")
    words = [word for setting in settings for word in ("--set", setting)]
    with Mesh(haywain).start("--engine", "echo", *words) as mesh, BatchClient(f"http://127.0.0.1:{mesh.port}") as client:
        file = client.upload_file(jsonl(chat_row(f"row-{n}") for n in range(80)))
        first = client.create_batch(file["id"])
        body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        refused = mesh.client.post("/v1/batches", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "capacity_exceeded")
        assert int(refused.headers["retry-after"]) >= 1
        second = client.create_batch(file["id"])
        for made in (first, second):
            assert client.wait_for_batch(made["id"], timeout=60)["request_counts"]["completed"] == 80


def test_waiting_outlives_a_restart_of_everything(haywain: Path, tmp_path: Path) -> None:
    """kill -9 of every process while a client waits; the mesh comes back on its port, the client gets its results."""
    with Mesh(haywain).start("--engine", "echo", "--set", "engine.echo.ms_per_row=50") as mesh:
        rows = [chat_row(f"row-{n}") for n in range(3000)]
        seen: list[int] = []
        got: list[Batch] = []

        def submit() -> None:
            with BatchClient(f"http://127.0.0.1:{mesh.port}") as client:
                progress = lambda batch: seen.append(batch["request_counts"]["completed"])  # noqa: E731
                got.append(client.submit_batch(rows, tmp_path / "out.jsonl", progress=progress, poll_seconds=0.2))

        waiting = threading.Thread(target=submit)
        waiting.start()
        until("rows are done", lambda: seen and seen[-1] > 0)
        mesh.kill_everything()
        mesh.start("--engine", "echo")
        waiting.join(120)
        assert not waiting.is_alive()
        assert got[0]["status"] == "completed"
        assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 3000
        assert_conserved(mesh.client, dict(got[0]), [row["custom_id"] for row in rows])


def test_nobody_there(haywain: Path) -> None:
    """A mesh that isn't there is told, not waited for."""
    with Mesh(haywain) as mesh, BatchClient(f"http://127.0.0.1:{mesh.port}") as client:
        assert client.health_check() is False
        with pytest.raises(ConnectionLost):
            client.submit_batch([chat_row("a")])
