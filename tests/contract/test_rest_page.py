"""The web page as it is served: kept by browsers, closed to everything from elsewhere, and made so that text stays text."""

from __future__ import annotations

import re

import pytest
from rest_seam import RestMesh

from gateway.page import WEB

FILES = sorted(path.name for path in WEB.iterdir())
LINKED = sorted(set(re.findall(r'/web/([\w.]+)"', (WEB / "index.html").read_text())))


@pytest.mark.parametrize("name", ["", *(f"web/{name}" for name in FILES if name != "index.html")])
def test_served_with_care(rest_mesh: RestMesh, name: str) -> None:
    """Each file says what it is, has an ETag that gives 304, and the policy that keeps everything else out."""
    answer = rest_mesh.client.get(f"/{name}")
    assert answer.status_code == 200
    assert answer.content == (WEB / (name.removeprefix("web/") or "index.html")).read_bytes()
    types = {"": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(types[name.rpartition(".")[2]])
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-cache")
    again = rest_mesh.client.get(f"/{name}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", answer.headers["etag"])
    assert rest_mesh.client.get(f"/{name}", headers={"if-none-match": '"other"'}).status_code == 200


def test_nothing_else_is_served(rest_mesh: RestMesh) -> None:
    """There is no way from /web/ to other files."""
    for name in ("index.html", "page.py", "..%2Fpage.py", "..%2f..%2fpyproject.toml", "%2e%2e%2fpage.py", "app.js%00", "APP.JS"):
        answer = rest_mesh.client.get(f"/web/{name}")
        assert answer.status_code in {400, 404}, name
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_every_file_is_there() -> None:
    """What the page links, and what its scripts import, is in the folder; and the folder holds nothing else."""
    imported = {name for path in WEB.glob("*.js") for name in re.findall(r'from "\./([\w.]+)"', path.read_text())}
    assert {*LINKED, *imported, "index.html"} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_made_of_itself(name: str) -> None:
    """No file names another host, and none has a way from text to HTML or code."""
    text = (WEB / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|javascript:", text)
    assert not re.search(r"<script(?![^>]* src=)|<style|\bstyle=|\bon[a-z]+=\"", text)
