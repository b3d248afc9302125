"""`haywain run` and `haywain show`: the exit statuses and the files they leave."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mesh import Mesh, chat_row, free_port, jsonl


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh with an echo engine that fails on demand."""
    with Mesh(haywain) as running:
        yield running.start("--engine", "echo", "--set", "engine.echo.fail_containing=please fail")


def run(mesh: Mesh, folder: Path, content: bytes, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command on `content`; results in `folder`."""
    (folder / "in.jsonl").write_bytes(content)
    words = [str(mesh.command), "run", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl")]
    words += ["--url", f"http://127.0.0.1:{mesh.port}", *more]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def test_all_rows_fine(mesh: Mesh, tmp_path: Path) -> None:
    """Exit 0, all rows in the output in input order, no error file."""
    done = run(mesh, tmp_path, jsonl(chat_row(f"row-{n}", f"text {n}") for n in range(50)))
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == [f"row-{n}" for n in range(50)]
    assert not (tmp_path / "out.errors.jsonl").exists()
    shown = subprocess.run(
        [str(mesh.command), "show", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), "--rows", "2"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "text 1" in shown.stdout
    assert "50 rows" in shown.stdout


def test_some_rows_failed(mesh: Mesh, tmp_path: Path) -> None:
    """Exit 3; says how many failed and where they are."""
    done = run(mesh, tmp_path, jsonl([chat_row("a"), chat_row("b", "please fail")]))
    assert done.returncode == 3
    assert "1 of 2 rows failed" in done.stderr
    assert str(tmp_path / "out.errors.jsonl") in done.stderr
    assert json.loads((tmp_path / "out.errors.jsonl").read_text())["custom_id"] == "b"
    assert json.loads((tmp_path / "out.jsonl").read_text())["custom_id"] == "a"


def test_all_rows_failed_leaves_no_old_output(mesh: Mesh, tmp_path: Path) -> None:
    """Nothing completed: exit 3, and an output of an earlier run doesn't stay to be mistaken for this one's."""
    (tmp_path / "out.jsonl").write_text("old\n")
    done = run(mesh, tmp_path, jsonl([chat_row("b", "please fail")]))
    assert done.returncode == 3
    assert not (tmp_path / "out.jsonl").exists()


def test_model_of_lines_that_name_none(mesh: Mesh, tmp_path: Path) -> None:
    """`--model` serves lines without a model of their own."""
    row = chat_row("a")
    del row["body"]["model"]
    done = run(mesh, tmp_path, jsonl([row]), "--model", "echo")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "Must be .jsonl"),
        (b"[1]\n", "Must be .jsonl"),
        (jsonl([chat_row("a"), chat_row("a")]), "line 2:"),
        (jsonl([chat_row("a", model="nope")]), "nope"),
    ],
)
def test_bad_input(mesh: Mesh, tmp_path: Path, content: bytes, words: str) -> None:
    """Exit 1 with the reason."""
    done = run(mesh, tmp_path, content)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_no_mesh(mesh: Mesh, tmp_path: Path) -> None:
    """Exit 1 and one line when nobody listens."""
    done = run(mesh, tmp_path, jsonl([chat_row("a")]), "--url", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
