"""The client's uploads: small files as one form, large ones in parts, each tried again by itself.

Every call has an idempotency key: one whose answer was lost is repeated, and still there is one file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from typing import Any, BinaryIO, cast
from urllib.parse import quote

import httpx

from haywain.rest import ClientError, Rest
from haywain.rest_types import File

__all__ = ["PART_BYTES", "WHOLE_BYTES", "new_key", "upload"]

WHOLE_BYTES = 200_000_000
"""what is larger goes in parts"""
PART_BYTES = 32 * 1024 * 1024
_TYPE = "application/jsonl"


def new_key() -> dict[str, str]:
    """Make the header that makes a repeated call one call."""
    return {"idempotency-key": uuid.uuid4().hex}


def upload(rest: Rest, source: BinaryIO, purpose: str, filename: str, timeout: httpx.Timeout) -> File:
    """Store what `source` has, from its first byte; the file object. `timeout` has the patience for a disk."""
    size = source.seek(0, os.SEEK_END)
    source.seek(0)
    if size > WHOLE_BYTES:
        return _in_parts(rest, source, {"filename": filename, "purpose": purpose, "bytes": size, "mime_type": _TYPE}, timeout)
    files = {"file": (filename, source, _TYPE)}
    answer = rest.send("POST", "/v1/files", data={"purpose": purpose}, files=files, headers=new_key(), timeout=timeout)
    return cast(File, answer)


def _in_parts(rest: Rest, source: BinaryIO, terms: dict[str, Any], timeout: httpx.Timeout) -> File:
    announced = rest.send("POST", "/v1/uploads", json=terms, headers=new_key())
    path = f"/v1/uploads/{quote(announced['id'], safe='')}"
    md5, part_ids, size = hashlib.md5(usedforsecurity=False), [], 0
    try:
        while data := source.read(PART_BYTES):
            md5.update(data)
            size += len(data)
            files = {"data": ("part", data)}
            part_ids.append(rest.send("POST", f"{path}/parts", files=files, headers=new_key(), timeout=timeout)["id"])
        if size != terms["bytes"]:
            raise ClientError(f"the file had {terms['bytes']} bytes when its upload began, and has {size} now")
        whole = json.dumps({"part_ids": part_ids, "md5": md5.hexdigest()}).encode()
        headers = new_key() | {"content-type": "application/json"}
        done = rest.send("POST", f"{path}/complete", content=whole, headers=headers, timeout=timeout)
    except BaseException:
        with contextlib.suppress(ClientError):  # else it goes with the hour
            rest.send("POST", f"{path}/cancel", retries=0)
        raise
    return cast(File, done["file"])
