"""The README's examples do what they say: each block is run as it is written, but for the port."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mesh import Mesh

ROOT = Path(__file__).parent.parent.parent
PORT = "10900"
NOT_RUN_HERE = {
    "Haywain": "the drawing",
    "Two commands": "`make demo` and `make test` are what CI runs",
    "Your own model": "needs a model of the reader's",
}


def blocks() -> dict[str, list[tuple[str, str]]]:
    """Find the code blocks: heading → (language, text)."""
    found: dict[str, list[tuple[str, str]]] = {}
    heading = ""
    pattern = r"^#+ ([^\n]+)$|^```(\w*)\n(.*?)^```$"
    for title, language, text in re.findall(pattern, (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL):
        if title:
            heading = title
        else:
            found.setdefault(heading, []).append((language, text))
    return found


RUN_HERE = {heading: found for heading, found in blocks().items() if heading not in NOT_RUN_HERE}


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh that serves the examples' model id."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.model=smollm2-135m-instruct")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the examples in it and nothing else: what is imported is the installed package."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(mesh: Mesh, folder: Path, language: str, text: str) -> str:
    """Run a block; what it printed."""
    assert PORT in text
    script = folder / "block"
    script.write_text(text.replace(PORT, str(mesh.port)))
    bin_folder = mesh.command.parent
    words = {"sh": ["bash", "-euo", "pipefail"], "python": [str(bin_folder / "python"), "-W", "error"]}[language]
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [*words, str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (text, done.stdout, done.stderr, mesh.logs())
    return done.stdout


@pytest.mark.parametrize("heading", RUN_HERE)
def test_block(mesh: Mesh, folder: Path, heading: str) -> None:
    """Every block that sends the example requests prints an answer to each of them."""
    requests = [json.loads(line) for line in (folder / "examples" / "requests.jsonl").read_text().splitlines()]
    for language, text in RUN_HERE[heading]:
        printed = run(mesh, folder, language, text)
        answers = [json.loads(line) for line in printed.splitlines() if line.startswith('{"id":"batch_req_')]
        assert [line["custom_id"] for line in answers] == [line["custom_id"] for line in requests], printed
        assert all(line["response"]["status_code"] == 200 for line in answers)


def test_every_kind_of_client_is_shown() -> None:
    """curl, the official client and the typed stubs each have one block; a block under a new heading is run, too."""
    text = {heading: "".join(text for _, text in found) for heading, found in RUN_HERE.items()}
    shown = [
        sum(word in block for block in text.values()) for word in ("curl -s", "from openai import", "haywain.batches.v1 import")
    ]
    assert shown == [1, 1, 1]
    assert set(NOT_RUN_HERE) <= set(blocks())


def test_the_command_in_the_text(mesh: Mesh, folder: Path) -> None:
    """`haywain run …`, as the text has it, does all four steps."""
    (line,) = re.findall(r"`(haywain run [^`]+)`", (ROOT / "README.md").read_text())
    run(mesh, folder, "sh", f"{line} --url http://127.0.0.1:{PORT}\n")
    assert len((folder / "results.jsonl").read_text().splitlines()) == 20
