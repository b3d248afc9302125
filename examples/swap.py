"""Swap the engine under a running batch: started on what the mesh runs, finished on Triton, without a lost row.

    haywain up --model SmolLM2-135M-Instruct.Q4_1.gguf --data haywain-data        # in another terminal
    python examples/swap.py --data haywain-data --triton 127.0.0.1:8001 --triton-model smollm2 --template tokenizer_config.json

Triton must serve the same model; whatever it calls it there, its engine is told to serve it under the mesh's id (served_as).
The mesh must be on this machine, since the second engine registers through the sockets in its data folder.
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

STARTED = time.monotonic()
ENDED = ("completed", "failed", "expired", "cancelled")


def main() -> int:
    """Do it; 0 when every row was answered once and both backends had a part."""
    options = parser().parse_args()
    haywain = options.haywain or shutil.which("haywain") or "haywain"
    with httpx.Client(base_url=options.url, timeout=30.0, trust_env=False) as mesh:
        (first,) = mesh.get("/v1/pool/status").raise_for_status().json()["engines"]
        model = options.model or first["model"]
        batch = start(mesh, model, options.rows)
        say(f"{batch['id']}: {options.rows} rows of {model}, started on {first['id']}")
        wait(mesh, batch, options.rows // 10)
        log = options.data / "logs" / "triton-1.log"
        with log.open("ab") as lines, subprocess.Popen([haywain, "engine", *second_engine(options, model)], stderr=lines) as triton:
            try:
                if not is_ready(mesh, "triton-1", triton):
                    say(f"the engine for Triton ended; {log} says why")
                    return 1
                say("triton-1 is ready: both engines share the rows")
                wait(mesh, batch, options.rows * 3 // 4)
                drain = [haywain, "engines", "drain", first["id"], "--wait", "120", "--address", options.url.split("//")[-1]]
                subprocess.run(drain, check=True)
                batch = wait(mesh, batch, options.rows + 1)
            finally:
                triton.terminate()
        return tell(mesh, batch, options.rows)


def start(mesh: httpx.Client, model: str, rows: int) -> dict[str, Any]:
    """Upload the rows and create the batch."""
    lines = []
    for number in range(rows):
        messages = [{"role": "user", "content": f"{number} and 1?"}]
        body = {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0}
        lines.append(json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}))
    content = "\n".join(lines).encode()
    file = mesh.post("/v1/files", data={"purpose": "batch"}, files={"file": ("swap.jsonl", content)}).raise_for_status().json()
    request = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return dict(mesh.post("/v1/batches", json=request).raise_for_status().json())


def second_engine(options: argparse.Namespace, model: str) -> list[str]:
    """Write the command line of the engine that wraps Triton."""
    data = options.data.resolve()
    settings = {
        "engine.backend": "triton",
        "engine.id": "triton-1",
        "engine.address": f"unix:{data}/run/triton-1.sock",
        "engine.triton.url": options.triton,
        "engine.triton.model": options.triton_model,
        "engine.triton.served_as": model,
        "engine.triton.template": options.template.resolve(),
        "engine.triton.slots": options.slots,
    }
    return ["--data", str(data), *(word for key, value in settings.items() for word in ("--set", f"{key}={value}"))]


def is_ready(mesh: httpx.Client, engine_id: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the scheduler has the engine, or its process has ended."""
    while process.poll() is None:
        if any(one["id"] == engine_id and one["state"] == "ready" for one in mesh.get("/v1/pool/status").json()["engines"]):
            return True
        time.sleep(0.1)
    return False


def wait(mesh: httpx.Client, batch: dict[str, Any], completed: int) -> dict[str, Any]:
    """Wait until so many rows are done, or all."""
    while True:
        batch = mesh.get(f"/v1/batches/{batch['id']}").raise_for_status().json()
        if batch["status"] in ENDED or batch["request_counts"]["completed"] >= completed:
            say(f"{batch['status']}: {batch['request_counts']['completed']} of {batch['request_counts']['total']} rows done")
            return batch
        time.sleep(0.1)


def tell(mesh: httpx.Client, batch: dict[str, Any], rows: int) -> int:
    """Count the answers, and by which backend they came."""
    output = mesh.get(f"/v1/files/{batch['output_file_id']}/content").raise_for_status().text if batch["output_file_id"] else ""
    lines = [json.loads(line) for line in output.splitlines()]
    counts = collections.Counter(line["custom_id"] for line in lines)
    backends = collections.Counter(line["response"]["x_provenance"]["backend"] for line in lines)
    say(f"answered once: {list(counts.values()).count(1)} of {rows}; by backend: {dict(sorted(backends.items()))}")
    whole = batch["status"] == "completed" and len(lines) == rows and set(counts) == {f"row-{number}" for number in range(rows)}
    return 0 if whole and len(backends) == 2 else 1


def parser() -> argparse.ArgumentParser:
    """Make the parser."""
    made = argparse.ArgumentParser(description="Swap the engine under a running batch.")
    made.add_argument("--url", default="http://127.0.0.1:10900", help="the mesh (%(default)s)")
    made.add_argument("--data", type=Path, default=Path("haywain-data"), help="its data folder (%(default)s)")
    made.add_argument("--model", default="", help="the model's id (the first one of the mesh)")
    made.add_argument("--rows", type=int, default=200)
    made.add_argument("--triton", default="127.0.0.1:8001", metavar="HOST:PORT", help="Triton's gRPC address (%(default)s)")
    made.add_argument("--triton-model", default="smollm2", help="what Triton calls the model (%(default)s)")
    made.add_argument("--template", type=Path, required=True, help="its tokenizer_config.json, or a Jinja file")
    made.add_argument("--slots", type=int, default=4, help="how many rows Triton gets at a time (%(default)s)")
    made.add_argument("--haywain", default="", help="the command, when it isn't on the path")
    return made


def say(line: str) -> None:
    """Print at once, with the seconds since the start."""
    print(f"{time.monotonic() - STARTED:6.1f} s  {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
