"""File names that are hard to carry: they come back from every route as they were given, but for folders and control characters."""

from __future__ import annotations

import json
import re
from urllib.parse import unquote

import httpx
import pytest
from rest_seam import RestMesh
from rest_steps import assert_envelope

NAMES = [
    ('a "quoted" name.txt', 'a "quoted" name.txt'),
    ("it's; filename=evil.txt", "it's; filename=evil.txt"),
    ("line\nbreak\r\n.txt", "linebreak.txt"),
    ("del\x7f.txt", "del.txt"),
    ("../../etc/passwd", "passwd"),
    ("C:\\Users\\me\\notes.txt", "notes.txt"),
    ("..", ".."),
    ("x" * 296 + ".txt", "x" * 296 + ".txt"),
    ("字" * 300, "字" * 300),
    ("🦜" * 300, "🦜" * 300),
    ("отчёт за май.txt", "отчёт за май.txt"),
    ("تقرير.txt", "تقرير.txt"),
    ("e\u0301 and é.txt", "e\u0301 and é.txt"),
    ("100%25 %41 %.txt", "100%25 %41 %.txt"),
    ("न\u200dमस्ते 👨\u200d👩\u200d👧 \u3000全角.txt", "न\u200dमस्ते 👨\u200d👩\u200d👧 \u3000全角.txt"),
    ("line\u2028separator\x85.txt", "lineseparator.txt"),
    ("back\\slash", "slash"),
    (" spaces around ", "spaces around"),
]


def named(answer: httpx.Response) -> str:
    """Read the file name of a download as RFC 6266 says: `filename*` before `filename`."""
    header = answer.headers["content-disposition"]
    assert header.isascii()
    extended = re.search(r"filename\*=UTF-8''([^;]*)$", header)
    if extended:
        return unquote(extended[1], errors="strict")
    plain = re.fullmatch(r'attachment; filename="([^"\\]*)"', header)
    assert plain, header
    return plain[1]


@pytest.mark.parametrize(("name", "kept"), NAMES)
def test_names_survive(rest_mesh: RestMesh, name: str, kept: str) -> None:
    """A name goes in with a form, and is the same in the answer, the record, the list and the download."""
    client = rest_mesh.client
    uploaded = client.post("/v1/files", data={"purpose": "user_data"}, files={"file": (name, b"x")})
    assert uploaded.status_code == 200, uploaded.text
    file = uploaded.json()
    assert file["filename"] == kept
    assert client.get(f"/v1/files/{file['id']}").json() == file
    assert client.get("/v1/files", params={"limit": 1}).json()["data"] == [file]
    assert named(client.get(f"/v1/files/{file['id']}/content")) == kept
    assert named(client.head(f"/v1/files/{file['id']}/content")) == kept


@pytest.mark.parametrize(("name", "kept"), NAMES)
def test_names_survive_in_json(rest_mesh: RestMesh, name: str, kept: str) -> None:
    """A name that comes in the JSON of an upload in parts is treated as one that comes with a form."""
    client = rest_mesh.client
    body = {"filename": name, "purpose": "user_data", "bytes": 0, "mime_type": "text/plain"}
    upload = client.post("/v1/uploads", json=body).json()
    assert upload["filename"] == kept
    completed = client.post(f"/v1/uploads/{upload['id']}/complete", json={"part_ids": []}).json()
    assert named(client.get(f"/v1/files/{completed['file']['id']}/content")) == kept


@pytest.mark.parametrize("name", ["dir/", "\n", " ", "字" * 401, "x" * 1_201])
def test_impossible_names(rest_mesh: RestMesh, name: str) -> None:
    """A name of nothing, or of more than 1,200 bytes, is refused by its field."""
    files = {"file": (name, b"x")}
    answer = rest_mesh.client.post("/v1/files", data={"purpose": "user_data"}, files=files)
    assert (answer.status_code, assert_envelope(answer)["param"]) == (400, "file")
    body = {"filename": name, "purpose": "user_data", "bytes": 0, "mime_type": "text/plain"}
    answer = rest_mesh.client.post("/v1/uploads", json=body)
    assert (answer.status_code, assert_envelope(answer)["param"]) == (400, "filename")


def test_a_lone_surrogate_is_no_name(rest_mesh: RestMesh) -> None:
    """What isn't Unicode is not JSON, and no name either."""
    body = json.dumps({"filename": "\ud800", "purpose": "user_data", "bytes": 0, "mime_type": "text/plain"})
    answer = rest_mesh.client.post("/v1/uploads", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, assert_envelope(answer)["code"]) == (400, "invalid_json")
    form = b'--b\r\ncontent-disposition: form-data; name="file"; filename="\xed\xa0\x80"\r\n\r\nx\r\n--b--\r\n'
    answer = rest_mesh.client.post("/v1/files", content=form, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code == 400
    assert_envelope(answer)
