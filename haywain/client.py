"""A client for batches: upload, create, wait, download, each on its own or all in one.

    with BatchClient("http://127.0.0.1:10900") as client:
        batch = client.submit_batch("requests.jsonl", "results.jsonl", temperature=0.2)

Objects are the dicts of the REST API. A lost connection, a 5xx and a full intake (429) are waited for and tried again; what can't
be cured is raised as one of the errors of `haywain.rest`.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Self, Unpack, cast, overload
from urllib.parse import quote

import httpx

from haywain import __version__
from haywain.rest import (
    ApiError,
    BatchFailed,
    ClientError,
    ConnectionLost,
    NoValidRecords,
    ObjectMissing,
    RequestRefused,
    Rest,
    Timer,
    TryLater,
    WaitTimedOut,
)
from haywain.rest_types import Batch, BatchFields, CreatedBatch, File, RejectedRecord
from haywain.resume import download, replacing
from haywain.uploading import new_key, upload

__all__ = [
    "TERMINAL", "ApiError", "Batch", "BatchClient", "BatchFailed", "BatchFields", "ClientError", "ConnectionLost", "CreatedBatch",
    "File", "NoValidRecords", "ObjectMissing", "RejectedRecord", "RequestRefused", "TryLater", "WaitTimedOut", "errors_path",
]  # fmt: skip

TERMINAL = ("completed", "failed", "expired", "cancelled")
"""the statuses in which a batch stays"""
_CONNECT_SECONDS = 5.0
_STORE_SECONDS = 300.0
"""for the answer of an upload: it comes when all bytes are on a disk"""
_HEALTH_SECONDS = 10.0
_FIRST_POLL_SECONDS = 0.1
_OUTAGE_SECONDS = 600.0
"""how long the mesh may be away while somebody waits for a batch"""

_AnyPath = str | os.PathLike[str]


class BatchClient:
    """The client. A context manager; one thread at a time."""

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 8,
        transport: httpx.BaseTransport | None = None,
        timer: Timer | None = None,
    ) -> None:
        """`base_url` may end in /v1, as other clients want it.

        `timeout` is for each read and write, in seconds. A call that fails in a way that may pass is tried `retries` times more,
        about 40 s with the default, unless the mesh asks for longer pauses. `transport` and `timer` are for tests.
        """
        url = base_url.rstrip("/").removesuffix("/v1")
        if not url.startswith(("http://", "https://")):
            raise ClientError(f"base_url {base_url!r}: expected http://… or https://…")
        headers = {"user-agent": f"haywain/{__version__}"}
        if api_key is not None:
            headers["authorization"] = f"Bearer {api_key}"
        self._timeout, self._connect_timeout = timeout, min(timeout, _CONNECT_SECONDS)
        patience = httpx.Timeout(timeout, connect=self._connect_timeout)
        self._http = httpx.Client(base_url=url, headers=headers, timeout=patience, transport=transport)
        self._rest = Rest(self._http, retries, timer or Timer())

    def upload_file(self, path_or_bytes: _AnyPath | bytes, purpose: str = "batch", filename: str | None = None) -> File:
        """Upload a file or bytes; the file object. `filename` is the path's own, or requests.jsonl, unless given.

        What is larger than 200 MB goes in parts. However often this has to be tried, one file is stored.
        """
        if isinstance(path_or_bytes, bytes):
            return self._upload(BytesIO(path_or_bytes), purpose, filename or "requests.jsonl")
        with Path(path_or_bytes).open("rb") as source:
            return self._upload(source, purpose, filename or Path(path_or_bytes).name)

    def create_batch(
        self,
        input_file_id: str | None = None,
        *,
        requests: Iterable[Mapping[str, Any]] | None = None,
        wait_seconds: int = 0,
        **fields: Unpack[BatchFields],
    ) -> CreatedBatch:
        """Create a batch of an uploaded file, or of up to 1,000 `requests`; the batch object.

        `requests` may leave out `method` and `url`. They are validated before the answer comes; those of a file are when
        `wait_seconds` is given (30 at most) and enough. Then the answer has `rejected_count` and what goes with it. However often
        this has to be tried, one batch is made. Raises NoValidRecords when it would have nothing to run.
        """
        if (input_file_id is None) == (requests is None):
            raise ClientError("a batch has an input_file_id or requests: one of the two")
        body: dict[str, Any] = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        body |= {name: value for name, value in fields.items() if value is not None}
        if requests is None:
            body["input_file_id"] = input_file_id
        else:
            body["requests"] = [_line(request, body["endpoint"]) for request in requests]
        headers = new_key() | {"content-type": "application/json"}
        if wait_seconds:
            headers["prefer"] = f"wait={wait_seconds}"
        return cast(CreatedBatch, self._rest.send("POST", "/v1/batches", content=_encoded(body), headers=headers))

    def wait_for_batch(
        self,
        batch_id: str,
        timeout: float | None = None,
        progress: Callable[[Batch], None] | None = None,
        poll_seconds: float = 1.0,
    ) -> Batch:
        """Wait until the batch ends, however it ends; its object then.

        `progress` gets the object each time that it was asked for. Polls come quickly at first, then every `poll_seconds`. A mesh
        that is away for up to ten minutes is waited for. Raises WaitTimedOut after `timeout` seconds; the batch goes on.
        """
        timer, pause = self._rest.timer, min(_FIRST_POLL_SECONDS, poll_seconds)
        began = timer.monotonic()
        heard, retries = None, None
        while True:
            wait = pause = min(pause * 1.3, poll_seconds)
            try:
                batch = cast(Batch, self._rest.send("GET", f"/v1/batches/{quote(batch_id, safe='')}", retries=retries))
            except (ConnectionLost, TryLater) as error:
                if heard is None or timer.monotonic() - heard > _OUTAGE_SECONDS:
                    raise
                wait = max(pause, error.retry_after)
            else:
                heard, retries = timer.monotonic(), 0  # from now on this loop is what tries again
                if progress:
                    progress(batch)
                if batch["status"] in TERMINAL:
                    return batch
            left = math.inf if timeout is None else began + timeout - timer.monotonic()
            if left <= 0:
                raise WaitTimedOut(f"batch {batch_id} did not end within {timeout:g} s")
            timer.sleep(min(wait, left))

    @overload
    def download_file_content(self, file_id: str, path: None = None) -> bytes: ...
    @overload
    def download_file_content(self, file_id: str, path: _AnyPath) -> Path: ...
    def download_file_content(self, file_id: str, path: _AnyPath | None = None) -> bytes | Path:
        """Download a file's content to `path`, whole or not at all, or return it. A lost connection is taken up where it broke."""
        content = f"/v1/files/{quote(file_id, safe='')}/content"
        if path is None:
            memory = BytesIO()
            download(self._rest, content, memory)
            return memory.getvalue()
        with replacing(Path(path)) as file:
            download(self._rest, content, file)
        return Path(path)

    def submit_batch(
        self,
        requests: _AnyPath | Iterable[Mapping[str, Any]],
        output: _AnyPath | None = None,
        *,
        errors: _AnyPath | None = None,
        progress: Callable[[Batch], None] | None = None,
        timeout: float | None = None,
        poll_seconds: float = 1.0,
        **fields: Unpack[BatchFields],
    ) -> Batch:
        """Upload, create, wait and download; the ended batch's object.

        `requests` are input lines, or the path of a file of them; lines may leave out `method` and `url`. Good rows go to `output`,
        the others to `errors` (by default `errors_path(output)`); a file that would hold none is removed, so that one of an earlier
        run isn't taken for it. Raises BatchFailed when the input isn't valid.
        """
        targets = _targets(output, errors)
        with _source(requests, fields.get("endpoint") or "/v1/chat/completions") as (source, filename):
            file = self._upload(source, "batch", filename)
        created = self.create_batch(file["id"], **fields)
        batch = self.wait_for_batch(created["id"], timeout, progress, poll_seconds)
        if batch["status"] == "failed":
            raise BatchFailed(_why(batch), batch)
        for target, file_id in zip(targets, (batch["output_file_id"], batch["error_file_id"]), strict=True):
            if target and file_id:
                self.download_file_content(file_id, target)
            elif target:
                target.unlink(missing_ok=True)
        return batch

    def health_check(self) -> bool:
        """Tell whether the mesh answers that it is healthy; asks once."""
        try:
            with self._rest.once("GET", "/health", timeout=min(self._timeout, _HEALTH_SECONDS)):
                return True
        except ClientError:
            return False

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Nothing is opened before it is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _upload(self, source: BinaryIO, purpose: str, filename: str) -> File:
        timeout = httpx.Timeout(self._timeout, read=max(self._timeout, _STORE_SECONDS), connect=self._connect_timeout)
        return upload(self._rest, source, purpose, filename, timeout)


def errors_path(output: _AnyPath) -> Path:
    """Tell where failed rows go when nothing else is said: `.errors` before the output's suffix."""
    path = Path(output)
    return path.with_name(f"{path.stem}.errors{path.suffix}")


def _targets(output: _AnyPath | None, errors: _AnyPath | None) -> tuple[Path | None, Path | None]:
    """Tell where results go; a folder that doesn't exist is told now rather than after the batch."""
    if errors is None and output is not None:
        errors = errors_path(output)
    targets = (None if output is None else Path(output), None if errors is None else Path(errors))
    for target in targets:
        if target and not target.parent.is_dir():
            raise ClientError(f"{target}: there is no folder {target.parent}")
    return targets


@contextmanager
def _source(requests: _AnyPath | Iterable[Mapping[str, Any]], endpoint: str) -> Iterator[tuple[BinaryIO, str]]:
    """Open the input: the file, or one that is written of the lines, so that they needn't fit into memory."""
    if isinstance(requests, str | os.PathLike):
        with Path(requests).open("rb") as source:
            yield source, Path(requests).name
        return
    with tempfile.TemporaryFile() as spool:
        for number, line in enumerate(requests, 1):
            try:
                spool.write(_json(_line(line, endpoint)) + b"\n")
            except (TypeError, ValueError) as error:
                raise ClientError(f"request {number}: {error}") from error
        spool.flush()  # its size is asked of the system
        yield spool, "requests.jsonl"


def _line(request: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    return {"method": "POST", "url": endpoint} | dict(request)


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        return _json(body)
    except (TypeError, ValueError) as error:
        raise ClientError(f"the batch can't be written as JSON: {error}") from error


def _json(value: Any) -> bytes:
    """Encode; ValueError for NaN, which no JSON has."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=dict).encode()


def _why(batch: Batch) -> str:
    lines = [f"batch {batch['id']} failed" + (f": {batch['error']['message']}" if batch["error"] else "")]
    entries = (batch["errors"] or {}).get("data", [])
    lines += [f"  line {entry['line']}: {entry['message']}" if entry["line"] else f"  {entry['message']}" for entry in entries[:10]]
    if len(entries) > 10:
        lines.append(f"  and {len(entries) - 10} more")
    return "\n".join(lines)
