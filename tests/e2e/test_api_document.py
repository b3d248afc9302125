"""The examples of docs/api.md do what they say: each is run as it is written, but for the port, and answers as it is shown."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mesh import Mesh, chat_row, jsonl

PAGE = Path(__file__).parent.parent.parent / "docs" / "api.md"
PORT = "10900"
SIZE = 303
"""of the input, as the examples of uploads announce it"""
ONLY_WHILE_ROWS_RUN = {"x-incomplete"}


def examples() -> Iterator[tuple[str, str, str]]:
    """Find the commands: the route's heading, the command, and the answer that is shown, if any."""
    for section in re.split(r"^### ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        title = section.partition("\n")[0]
        for command, answer in re.findall(
            r"^```sh\n(.*?)^```\n(?:\s*```(?:json)?\n(.*?)^```$)?", section, re.MULTILINE | re.DOTALL
        ):
            yield title, command, answer


EXAMPLES = [(f"{title} {number}", command, answer) for number, (title, command, answer) in enumerate(examples())]


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with the echo engine."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo")


@pytest.fixture(scope="module")
def content() -> bytes:
    """Two rows, the second of which fails, of the size that the examples say."""
    rows = jsonl([chat_row("a", "Hello there"), chat_row("b", messages=[{"rolez": "user", "content": "Hello"}])])
    assert len(rows) < SIZE
    return rows + b" " * (SIZE - len(rows))


@pytest.fixture(scope="module")
def batch(mesh: Mesh, content: bytes) -> dict[str, Any]:
    """A batch that has ended."""
    created = mesh.client.post("/v1/batches", json={"input_file_id": mesh.upload(content)["id"]}).json()
    return mesh.wait(created["id"])


@pytest.fixture
def names(mesh: Mesh, content: bytes, batch: dict[str, Any], tmp_path: Path) -> dict[str, str]:
    """What the examples call by a name, and their files."""
    (tmp_path / "in.jsonl").write_bytes(content)
    (tmp_path / "part1").write_bytes(content[:100])
    announced = {"filename": "in.jsonl", "purpose": "batch", "bytes": SIZE, "mime_type": "application/jsonl"}
    upload = mesh.client.post("/v1/uploads", json=announced).json()["id"]
    parts = [
        mesh.client.post(f"/v1/uploads/{upload}/parts", files={"data": ("part", data)}).json()["id"]
        for data in (content[:100], content[100:])
    ]
    return {
        "FILE": mesh.upload(content)["id"], "OUTPUT": batch["output_file_id"], "BATCH": batch["id"], "UPLOAD": upload,
        "PART1": parts[0], "PART2": parts[1],
    }  # fmt: skip


def members(text: str) -> list[str]:
    """List the members of an object of which some are left out, not those of what is in it."""
    depth, found = 0, []
    for bracket, name in re.findall(r'([{}\[\]])|"(\w+)":|"(?:[^"\\]|\\.)*"', text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(bracket, 0)
        found += [name] if name and depth == 1 else []
    return found


@pytest.fixture
def lease(mesh: Mesh) -> Iterator[Callable[[], dict[str, str]]]:
    """Lease the model where an example is about that, with a batch that waits for it; afterwards the model is free."""

    def take() -> dict[str, str]:
        lease = mesh.client.post("/v1/leases", json={"model": "echo"}).json()["id"]
        waiting = mesh.client.post("/v1/batches", json={"input_file_id": mesh.upload(jsonl([chat_row("a")]))["id"]})
        return {"LEASE": lease, "WAITING": waiting.json()["id"]}

    yield take
    for one in mesh.client.get("/v1/leases").json()["data"]:
        mesh.client.delete(f"/v1/leases/{one['id']}")


@pytest.mark.parametrize(("command", "shown"), [example[1:] for example in EXAMPLES], ids=[example[0] for example in EXAMPLES])
def test_example(
    mesh: Mesh, names: dict[str, str], lease: Callable[[], dict[str, str]], tmp_path: Path, command: str, shown: str
) -> None:
    """It succeeds or fails as it is shown, and has the members and headers that are shown."""
    if "$LEASE" in command:
        names |= lease()
    assert f"http://127.0.0.1:{PORT}/" in command
    if "invalid_rows" in command:
        names["FILE"] = mesh.upload((tmp_path / "in.jsonl").read_bytes() + b"\nno JSON\n")["id"]
    words = ["bash", "-euo", "pipefail", "-c", command.replace(PORT, str(mesh.port))]
    done = subprocess.run(words, cwd=tmp_path, env=os.environ | names, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout or (tmp_path / "page.html").read_text("utf-8")
    if shown.startswith("HTTP/"):
        (status, *headers), (shown_status, *shown_headers) = (text.partition("\n\n")[0].split("\n") for text in (said, shown))
        assert status.strip() == shown_status
        known = {header.partition(":")[0].lower() for header in headers}
        assert {header.partition(":")[0] for header in shown_headers if header} - known <= ONLY_WHILE_ROWS_RUN
    elif shown.startswith("{"):
        answer = json.loads(said)
        assert bool(answer.get("error")) == shown.startswith('{"error":{"message"'), said
        told, known = members(shown), [*answer]
        assert [name for name in known if name in told] == told
    else:
        assert '"error":' not in said[:20], said
        assert shown.partition("{")[0] in said


def test_every_route_has_an_example() -> None:
    """Each section of a route has a command that calls it."""
    called = {title.rpartition(" ")[0] for title, _, _ in EXAMPLES}
    routes = re.findall(r"^### ([A-Z]+ /\S*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert len(routes) > 25
    assert set(routes) == called
