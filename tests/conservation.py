"""The conservation law of the REST contract (§5): what holds for every batch that reached a terminal status."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

__all__ = ["assert_conserved", "content_lines"]

_ORDER = ("created_at", "in_progress_at", "finalizing_at", "completed_at", "expired_at")
_CANCEL_ORDER = ("created_at", "in_progress_at", "cancelling_at", "cancelled_at")


def assert_conserved(client: httpx.Client, batch: dict[str, Any], custom_ids: Sequence[str]) -> tuple[list[Any], list[Any]]:
    """Assert the law for a batch object and the custom ids of its input, in input order; returns output and error lines.

    `client` reaches the mesh. A batch that failed validation ran nothing: it has no counts and no files.
    """
    assert batch["status"] in ("completed", "failed", "expired", "cancelled"), batch["status"]
    counts = batch["request_counts"]
    if batch["status"] == "failed":
        assert counts == {"total": 0, "completed": 0, "failed": 0}
        assert batch["output_file_id"] is None
        assert batch["error_file_id"] is None
        assert batch["errors"]["data"]
        return [], []
    output = content_lines(client, batch["output_file_id"])
    failed = content_lines(client, batch["error_file_id"])
    assert counts["total"] == len(custom_ids)
    assert counts["completed"] == len(output)
    assert counts["failed"] == len(failed)
    assert counts["completed"] + counts["failed"] == counts["total"]
    assert (batch["output_file_id"] is None) == (not output)
    assert (batch["error_file_id"] is None) == (not failed)
    for lines in (output, failed):
        positions = [line["custom_id"] for line in lines]
        assert positions == [custom_id for custom_id in custom_ids if custom_id in set(positions)], "not in input order"
    assert sorted(line["custom_id"] for line in (*output, *failed)) == sorted(custom_ids)
    assert all(line["response"]["status_code"] == 200 and line["error"] is None for line in output)
    assert all(line["error"]["code"] and line["error"]["message"] for line in failed)
    assert len({line["id"] for line in (*output, *failed)}) == len(custom_ids)
    for order in (_ORDER, _CANCEL_ORDER):
        times = [batch[name] for name in order if batch[name] is not None]
        assert times == sorted(times), {name: batch[name] for name in order}
    return output, failed


def content_lines(client: httpx.Client, file_id: str | None) -> list[Any]:
    """Download a results file as parsed lines; none for None. Asserts that it is ASCII JSONL with a final line feed."""
    if file_id is None:
        return []
    response = client.get(f"/v1/files/{file_id}/content")
    assert response.status_code == 200, response.text
    assert response.content.isascii()
    assert response.content.endswith(b"\n")
    return [json.loads(line) for line in response.content.splitlines()]
