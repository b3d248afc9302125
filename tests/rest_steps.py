"""Contract cases as data: each is a list of steps, a step is one HTTP request or one gRPC call through the same Envoy.

    - case: One sentence that the steps prove.
      steps:
      - http: GET /v1/files/${file}          # ${names} come from `save` of earlier steps; ${unique} is new for every case
        headers: {range: bytes=0-3}
        form: [{name: purpose, value: batch}, {name: file, filename: a.jsonl, text: "{}"}]
                                              # or json: …, or text: …, or size: bytes
        expect:
          status: 404
          headers: {content-range: "bytes */16"}
          json: {object: file}                # what must be in it; more may be
          error: {code: …, param: …}          # short for json: {error: …}
          text: …                             # the body, exactly
        save: {file: id}                      # name: path into the JSON answer
        keep: {tag: etag}                     # name: header of the answer
        eventually: true                      # ask again until it is so
      - grpc: files.GetFile
        request: {file_id: "${file}"}
        expect: {status: NOT_FOUND, error: {code: …, param: …}, json: {…}}

In expectations, a string that begins with `~` is a regular expression, and `<string>`, `<integer>`, `<number>` mean any of these.
Whatever the case says, every HTTP answer must have a request id, and every one that isn't 2xx (or 304) the error envelope.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import yaml
from google.protobuf import json_format
from rest_seam import RestMesh

from haywain import rpc
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.files.v1 import files_pb2, files_pb2_grpc, uploads_pb2, uploads_pb2_grpc
from haywain.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc

__all__ = ["GOOD_BODIES", "Case", "assert_envelope", "cases", "multipart"]

FOLDER = Path(__file__).parent / "contract" / "rest_cases"
_KINDS: dict[str, Callable[[Any], bool]] = {
    "<string>": lambda value: isinstance(value, str) and value != "",
    "<integer>": lambda value: type(value) is int,
    "<number>": lambda value: type(value) in {int, float},
}
_GRPC: dict[str, tuple[Any, Any]] = {
    "files": (files_pb2, files_pb2_grpc.FilesServiceStub),
    "uploads": (uploads_pb2, uploads_pb2_grpc.UploadsServiceStub),
    "batches": (batches_pb2, batches_pb2_grpc.BatchesServiceStub),
    "scheduler": (scheduler_pb2, scheduler_pb2_grpc.SchedulerServiceStub),
}
GOOD_BODIES: dict[str, dict[str, Any]] = {
    "CreateBatch": {"input_file_id": "file-nope"},
    "UpdateBatch": {"metadata": {}},
    "CreateLease": {"model": "nope"},
    "RenewLease": {"ttl_seconds": 60},
    "LeaseToBatch": {"lease_id": "nope"},
    "CreateUpload": {"filename": "a", "purpose": "user_data", "mime_type": "text/plain", "bytes": 1},
    "CompleteUpload": {"part_ids": []},
    "CreateChatCompletion": {"model": "echo", "messages": [{"role": "user", "content": "say"}]},
    "CreateCompletion": {"model": "texts", "prompt": "say"},
    "CreateEmbedding": {"model": "vectors", "input": "say"},
}
"""by RPC, bodies that are right but for the ids"""
_counter = itertools.count(1)


def cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Read all cases, with an id for each."""
    for path in sorted(FOLDER.glob("*.yaml")):
        for case in yaml.safe_load(path.read_text("utf-8")):
            yield f"{path.stem}: {case['case']}", case


def assert_envelope(answer: httpx.Response) -> dict[str, Any]:
    """Check what holds for every error, and return what is inside the envelope."""
    assert answer.headers["content-type"] == "application/json", answer.headers
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert isinstance(error["message"], str)
    assert error["message"], error
    assert isinstance(error["type"], str)
    if answer.status_code in {429, 503}:
        assert int(answer.headers["retry-after"]) >= 1, answer.headers
    if answer.status_code == 409:
        assert answer.headers.get("x-should-retry") == "false" or 1 <= int(answer.headers["retry-after"]) <= 60, answer.headers
    return error


def multipart(parts: list[dict[str, str]], boundary: str = "----haywain", end: bool = True) -> bytes:
    """Write a form by hand, so that it can be odd."""
    body = b""
    for part in parts:
        name = f'form-data; name="{part["name"]}"' if "name" in part else "form-data"
        if "filename" in part:
            name += f'; filename="{part["filename"]}"'
        body += f"--{boundary}\r\ncontent-disposition: {name}\r\n\r\n{part.get('value', part.get('text', ''))}\r\n".encode()
    return body + f"--{boundary}--\r\n".encode() if end else body


class Case:
    """A case that is being run."""

    def __init__(self, mesh: RestMesh, channel: grpc.Channel) -> None:
        """Start with no saved names but `unique`."""
        self._mesh = mesh
        self._channel = channel
        self._saved = {"unique": f"u{next(_counter)}"}

    def run(self, steps: list[dict[str, Any]]) -> None:
        """Run the steps in order."""
        for step in steps:
            filled = self._filled(step)
            answer = self._eventually(filled) if "eventually" in filled else self._once(filled)
            for name, path in filled.get("save", {}).items():
                self._saved[name] = _at(answer, path)

    def _once(self, step: dict[str, Any]) -> Any:
        return self._http(step) if "http" in step else self._grpc(step)

    def _eventually(self, step: dict[str, Any]) -> Any:
        give_up = time.monotonic() + 20
        while True:
            try:
                return self._once(step)
            except AssertionError:
                if time.monotonic() > give_up:
                    raise

    def _filled(self, value: Any) -> Any:
        match value:
            case str():
                return re.sub(r"\$\{(\w+)\}", lambda found: str(self._saved[found[1]]), value)
            case list():
                return [self._filled(one) for one in value]
            case dict():
                return {key: self._filled(one) for key, one in value.items()}
            case _:
                return value

    def _http(self, step: dict[str, Any]) -> Any:
        method, _, path = step["http"].partition(" ")
        headers = {name: str(value) for name, value in step.get("headers", {}).items()}
        content: bytes | None = step["text"].encode() if "text" in step else None
        if "size" in step:
            content = b" " * int(step["size"])
        if "json" in step:
            content, headers = json.dumps(step["json"]).encode(), {"content-type": "application/json"} | headers
        if "form" in step:
            content, headers = multipart(step["form"]), {"content-type": "multipart/form-data; boundary=----haywain"} | headers
        answer = self._mesh.client.request(method, path, headers=headers, content=content)
        expect = step.get("expect", {})
        assert answer.status_code == expect.get("status", 200), (answer.status_code, answer.text)
        assert answer.headers["x-request-id"]
        self._saved |= {name: answer.headers[header] for name, header in step.get("keep", {}).items()}
        if answer.status_code >= 300 and answer.status_code != 304 and method != "HEAD":
            assert_envelope(answer)
        for name, value in expect.get("headers", {}).items():
            _match(answer.headers.get(name), value, name)
        if "text" in expect:
            _match(answer.text, expect["text"], "text")
        wanted = expect.get("json", {}) | ({"error": expect["error"]} if "error" in expect else {})
        if wanted or step.get("save"):
            _match(answer.json(), wanted, "json")
            return answer.json()
        return None

    def _grpc(self, step: dict[str, Any]) -> Any:
        service, _, method = step["grpc"].partition(".")
        messages, stub = _GRPC[service]
        request = json_format.ParseDict(step.get("request", {}), getattr(messages, f"{method}Request")())
        expect = step.get("expect", {})
        try:
            answer = getattr(stub(self._channel), method)(request, timeout=10)
        except grpc.RpcError as error:
            status, told = error.code().name, rpc.error_of(error)  # type: ignore[arg-type]  # a synchronous one has the same members
            found: dict[str, Any] = {"message": told.message, "code": told.code or None, "param": told.param or None}
        else:
            status, found = "OK", json_format.MessageToDict(answer, preserving_proto_field_name=True)
        assert status == expect.get("status", "OK"), (status, found)
        _match(found, expect.get("error" if status != "OK" else "json", {}), "answer")
        return found


def _at(value: Any, path: str) -> Any:
    for part in str(path).split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def _match(found: Any, wanted: Any, where: str) -> None:
    """Check that `wanted` is in `found`."""
    match wanted:
        case dict():
            assert isinstance(found, dict), (where, found)
            for key, value in wanted.items():
                assert key in found, (where, key, found)
                _match(found[key], value, f"{where}.{key}")
        case list():
            assert isinstance(found, list), (where, found)
            assert len(found) == len(wanted), (where, found)
            for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
                _match(one, other, f"{where}.{index}")
        case str() if wanted in _KINDS:
            assert _KINDS[wanted](found), (where, found)
        case str() if wanted.startswith("~"):
            assert isinstance(found, str), (where, found)
            assert re.search(wanted[1:], found), (where, found)
        case _:
            assert type(found) is type(wanted), (where, found)
            assert found == wanted, (where, found)
