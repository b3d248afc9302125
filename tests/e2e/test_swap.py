"""examples/swap.py: a batch that starts on llama.cpp and ends on Triton; and Triton keeps the rules of engines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from conservation import assert_conserved
from mesh import Mesh, until
from triton_fixture import TritonServer

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "swap.py"
ROWS = 200
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n' }}"
)


@pytest.fixture(scope="module")
def mesh(haywain: Path, triton: TritonServer) -> Iterator[Mesh]:
    """A mesh on llama.cpp with one decoder of four slots, and beside it a Triton that has the same model."""
    triton.load("smollm2")
    with Mesh(haywain) as running:
        yield running.start("--set", "engine.llamacpp.workers=1", "--set", "engine.llamacpp.slots=4")
    triton.unload("smollm2")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's chat template, as Triton's engine reads it."""
    path = tmp_path_factory.mktemp("template") / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}), "utf-8")
    return path


@pytest.mark.timeout(600)
def test_a_batch_ends_on_another_engine_than_it_began_on(mesh: Mesh, triton: TritonServer, template: Path) -> None:
    """200 rows, Triton added, llama.cpp drained: every row is answered once, and provenance names both backends."""
    told = {"url": f"http://127.0.0.1:{mesh.port}", "data": mesh.data, "rows": ROWS, "triton": triton.url, "template": template}
    command = [sys.executable, str(EXAMPLE), "--haywain", str(mesh.command)]
    command += [word for key, value in told.items() for word in (f"--{key}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr, mesh.logs())
    batch = mesh.batch(done.stdout.split(":")[0].split()[-1])
    output, failed = assert_conserved(mesh.client, batch, [f"row-{number}" for number in range(ROWS)])
    assert (len(output), failed) == (ROWS, [])
    by = Counter((line["response"]["x_provenance"]["engine"], line["response"]["x_provenance"]["backend"]) for line in output)
    assert set(by) == {("engine-0", "llamacpp"), ("triton-1", "triton")}, by
    assert min(by.values()) >= 10, by


@pytest.mark.timeout(600)
def test_triton_keeps_the_rules(mesh: Mesh, triton: TritonServer, template: Path) -> None:
    """`haywain engines check` passes on Triton with a real model."""
    socket = mesh.data / "run" / "triton-2.sock"
    settings = {"backend": "triton", "id": "triton-2", "address": f"unix:{socket}"}
    settings |= {"triton.url": triton.url, "triton.model": "smollm2", "triton.template": str(template), "triton.slots": "4"}
    words = [word for key, value in settings.items() for word in ("--set", f"engine.{key}={value}")]
    command = [str(mesh.command), "engines", "check", f"unix:{socket}", "--seconds", "240"]
    with subprocess.Popen([str(mesh.command), "engine", "--data", str(mesh.data), *words], stderr=subprocess.DEVNULL) as engine:
        try:
            until("it listens", socket.exists)
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        finally:
            engine.terminate()
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
