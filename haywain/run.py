"""`haywain run`: upload a file of requests, create a batch, watch it, download what came of it.

Exit status: 0 every row succeeded, 3 some rows failed, 1 anything else. A connection that is lost while the batch runs is taken
up again: the batch is the mesh's, not this process's.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from haywain.errors import HaywainError

__all__ = ["command"]

TERMINAL = ("completed", "failed", "expired", "cancelled")
SOME_ROWS_FAILED = 3
_RETRY_STATUSES = (429, 502, 503, 504)
_PATIENCE_SECONDS = 120.0


class RunFailed(HaywainError):
    """The batch could not be run."""


def command(options: argparse.Namespace) -> int:
    """Run the command; raises HaywainError with one line for people."""
    if not options.input.is_file():
        raise RunFailed(f"{options.input} is not a file")
    errors_path = options.errors or options.output.with_name(f"{options.output.stem}.errors{options.output.suffix}")
    with httpx.Client(base_url=options.url, timeout=httpx.Timeout(60.0, connect=5.0)) as client:
        began = time.monotonic()
        batch = _create(client, options)
        _say(f"batch {batch['id']}")
        batch = _watch(client, batch)
        if batch["status"] == "failed":
            raise RunFailed(_why(batch))
        _download(client, batch["output_file_id"], options.output)
        _download(client, batch["error_file_id"], errors_path)
    return _verdict(batch, options.output, errors_path, time.monotonic() - began)


def _create(client: httpx.Client, options: argparse.Namespace) -> dict[str, Any]:
    with options.input.open("rb") as source:
        files = {"file": (options.input.name, source, "application/jsonl")}
        uploaded = _call(client, "POST", "/v1/files", data={"purpose": "batch"}, files=files, timeout=None)
    body = {"input_file_id": uploaded["id"], "endpoint": options.endpoint, "completion_window": "24h"}
    for name in ("model", "temperature", "top_p", "top_k", "max_decoding_length", "priority"):
        value = getattr(options, name)
        if value is not None:
            body[name] = value
    return _call(client, "POST", "/v1/batches", json=body)


def _call(client: httpx.Client, method: str, url: str, **options: Any) -> dict[str, Any]:
    """Call once; a GET that can't get through, or is told to come again later, is repeated for two minutes."""
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            response = client.request(method, url, **options)
        except httpx.TransportError as error:
            if method != "GET" or time.monotonic() > give_up:
                raise RunFailed(f"{client.base_url}: {error or type(error).__name__}") from error
            time.sleep(0.5)
            continue
        if response.is_success:
            return dict(response.json())
        if response.status_code not in _RETRY_STATUSES or method != "GET" or time.monotonic() > give_up:
            raise RunFailed(f"{method} {url} answered {response.status_code}: {_message(response)}")
        time.sleep(float(response.headers.get("retry-after") or 0.5))


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


def _watch(client: httpx.Client, batch: dict[str, Any]) -> dict[str, Any]:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows"),
        TextColumn("{task.fields[speed]}"),
    )
    pause, told = 0.1, ""
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        line = bar.add_task(batch["status"], total=None, speed="")
        while batch["status"] not in TERMINAL:
            time.sleep(pause)
            pause = min(pause * 1.3, 1.0)
            batch = _call(client, "GET", f"/v1/batches/{batch['id']}")
            counts, live = batch["request_counts"], batch["x_progress"] or {}
            done = counts["completed"] + counts["failed"]
            speed = f"{live.get('rows_per_second') or 0:.1f} rows/s"
            status = batch["status"] if not batch["waiting_reason"] else f"{batch['status']} ({batch['waiting_reason']})"
            bar.update(line, description=status, completed=done, total=counts["total"] or None, speed=speed)
            plain = f"{status} {done}/{counts['total']}"
            if not console.is_terminal and plain != told:
                _say(told := plain)
    return batch


def _why(batch: dict[str, Any]) -> str:
    lines = [f"batch {batch['id']} failed"]
    if batch["error"]:
        lines[0] += f": {batch['error']['message']}"
    entries = (batch["errors"] or {}).get("data", [])
    lines += [f"  line {entry['line']}: {entry['message']}" if entry["line"] else f"  {entry['message']}" for entry in entries[:10]]
    if len(entries) > 10:
        lines.append(f"  and {len(entries) - 10} more")
    return "\n".join(lines)


def _download(client: httpx.Client, file_id: str | None, path: Path) -> None:
    """Write the file's content whole or not at all; nothing to download leaves no file of an earlier run behind."""
    if file_id is None:
        path.unlink(missing_ok=True)
        return
    partial = path.with_name(path.name + ".partial")
    try:
        with client.stream("GET", f"/v1/files/{file_id}/content") as response, partial.open("wb") as file:
            if not response.is_success:
                response.read()
                raise RunFailed(f"downloading {file_id}: {_message(response)}")
            for chunk in response.iter_bytes():
                file.write(chunk)
    except httpx.TransportError as error:
        raise RunFailed(f"downloading {file_id}: {error}; what came is in {partial}") from error
    except OSError as error:
        raise RunFailed(f"{path}: {error.strerror}") from error
    partial.replace(path)


def _verdict(batch: dict[str, Any], output: Path, errors_path: Path, seconds: float) -> int:
    counts = batch["request_counts"]
    if batch["status"] != "completed":
        ended = f"{batch['status']}: {counts['completed']} of {counts['total']} rows done"
        raise RunFailed(f"batch {batch['id']} {ended} (see {output} and {errors_path})")
    if counts["failed"]:
        _say(f"{counts['failed']} of {counts['total']} rows failed: see {errors_path}; the others are in {output}")
        return SOME_ROWS_FAILED
    _say(f"{counts['total']} rows in {seconds:.1f} s ({counts['total'] / seconds:.1f} rows/s): {output}")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
