"""Several models in one file (REST contract §8), on a mesh with two engines."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conservation import assert_conserved
from mesh import Mesh, chat_row, until


@pytest.fixture(scope="module")
def mesh(haywain: Path) -> Iterator[Mesh]:
    """A mesh that takes mixed models, with an engine for `echo` and one for `other`."""
    with Mesh(haywain).start("--engine", "echo", "--set", "batches.mixed_models=true", "--set", "batches.shard_rows=7") as running:
        sets = ("backend=echo", "id=engine-1", f"address=unix:{running.data}/run/engine-1.sock", "echo.model=other")
        words = [
            str(haywain),
            "engine",
            "--data",
            str(running.data),
            *(word for text in sets for word in ("--set", f"engine.{text}")),
        ]
        with (running.data / "engine-1.log").open("wb") as log:
            second = subprocess.Popen(words, stderr=log)
        try:
            until("both models are served", lambda: len(running.client.get("/v1/models").json()["data"]) == 2)
            yield running
        finally:
            second.terminate()
            second.wait(20)


def test_rows_of_two_models_in_input_order(mesh: Mesh) -> None:
    """Each row is answered by its own model, and the output is in the order of the input, whatever the shards were."""
    models = ["other" if number % 3 else "echo" for number in range(100)]
    rows = [chat_row(f"c{number}", f"text {number}", model=model) for number, model in enumerate(models)]
    batch = mesh.wait(mesh.create(rows)["id"])
    output, _ = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
    assert (batch["status"], batch["model"]) == ("completed", "echo")
    assert [line["response"]["body"]["model"] for line in output] == models
    assert {line["response"]["x_provenance"]["engine"] for line in output} == {"engine-0", "engine-1"}


def test_rejected_lines_between_two_models(mesh: Mesh) -> None:
    """Lines that were rejected have their places among those of both models, also when the batch has a model of its own."""
    rows = [chat_row(f"c{number}", model=("other", "echo", "nobody")[number % 3]) for number in range(30)]
    del rows[0]["body"]["model"]
    batch = mesh.wait(mesh.create(rows, invalid_rows="reject", model="echo")["id"])
    output, failed = assert_conserved(mesh.client, batch, [row["custom_id"] for row in rows])
    assert (len(output), {line["error"]["code"] for line in failed}) == (20, {"model_not_found"})
    assert [line["error"]["line"] for line in failed] == list(range(3, 31, 3))
    assert output[0]["response"]["body"]["model"] == "echo"
