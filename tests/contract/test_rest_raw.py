"""What no well-behaved client sends: bytes that are hardly HTTP. Whatever Envoy answers by itself has the envelope too."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
from pathlib import Path

import httpx
import pytest
from mesh import free_port, until
from msgspec.structs import replace
from rest_seam import RestMesh

from gateway import envoy
from haywain.settings import Settings

CLOSE = b"connection: close\r\n"


def _raw(mesh: RestMesh, request: bytes) -> tuple[int, dict[str, str], bytes]:
    with socket.create_connection(("127.0.0.1", mesh.settings.envoy.port), timeout=10) as client:
        client.sendall(request)
        answer = b""
        while data := client.recv(65_536):
            answer += data
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, body


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        pytest.param(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\nno colon\r\n\r\n", 400, "bad_request", id="a header without a colon"
        ),
        pytest.param(b"GET /health HTTP/1.1\r\na: b\r\n" + CLOSE + b"\r\n", 400, "bad_request", id="no host"),
        pytest.param(
            b"BREW /v1/files HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"\r\n", 400, "bad_request", id="an unknown method"
        ),
        pytest.param(
            b"GET /v1/\xff HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"\r\n", 400, "bad_request", id="raw bytes in the path"
        ),
        pytest.param(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"a: " + b"b" * 20_000 + b"\r\n\r\n",
            431,
            "request_headers_too_large",
            id="20 KB of headers",
        ),
        pytest.param(
            b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"a: b\r\n" * 150 + b"\r\n",
            431,
            "request_headers_too_large",
            id="150 headers",
        ),
        pytest.param(
            b"GET /v1/files/" + b"x" * 14_000 + b" HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"\r\n",
            404,
            None,
            id="an id of 14 KB",
        ),
        pytest.param(
            b"GET /v1/models/" + "ü".encode("latin-1").hex().encode() + b"%FC HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"\r\n",
            400,
            None,
            id="Latin-1 in the path",
        ),
    ],
)
def test_refused_with_the_envelope(rest_mesh: RestMesh, request_: bytes, status: int, code: str | None) -> None:
    """A request that is hardly HTTP gets the right status, the envelope, and a request id."""
    found, headers, body = _raw(rest_mesh, request_)
    assert found == status
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]
    assert headers["x-request-id"]


@pytest.mark.parametrize(
    ("line", "more", "status", "code"),
    [
        ("GET /health", "", 200, None),
        ("GET /health", "host: localhost\r\n", 200, None),
        ("HEAD /health", "", 200, None),
        ("GET /v1/files/file-x/content", "", 404, None),
        ("GET /health", "host: evil.example\r\n", 403, "host_not_allowed"),
        ("DELETE /v1/files/file-x", "origin: http://evil.example\r\n", 403, "origin_not_allowed"),
        ("GET /v1/batches/batch_x/results?after_line=1", "", 426, None),
    ],
)
def test_http_1_0(rest_mesh: RestMesh, line: str, more: str, status: int, code: str | None) -> None:
    """It is spoken, with a Host or without, under the same rules; but what is streamed without a length needs HTTP/1.1."""
    found, headers, body = _raw(rest_mesh, f"{line} HTTP/1.0\r\n{more}\r\n".encode())
    assert found == status
    assert int(headers["content-length"]) == len(body) or line.startswith("HEAD")
    if status >= 400:
        error = json.loads(body)["error"]
        assert (set(error), error["code"]) == ({"message", "type", "param", "code"}, code)


def test_request_id_that_is_no_ascii(rest_mesh: RestMesh) -> None:
    """A request id that gRPC could not carry is replaced, and the request goes on."""
    status, headers, _ = _raw(rest_mesh, b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"x-request-id: \xc3\xbc\r\n\r\n")
    assert status == 200
    assert headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "framing", [b"content-length: 1\r\n\r\n{", b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n"], ids=["", "chunked"]
)
@pytest.mark.parametrize(
    ("line", "status"), [(b"GET /v1/batches?limit=0", 200), (b"DELETE /v1/files/file-nope", 404)], ids=["GET", "DELETE"]
)
def test_a_body_where_none_belongs(rest_mesh: RestMesh, line: bytes, status: int, framing: bytes) -> None:
    """A body of GET or DELETE means nothing, however it comes."""
    found, _, _ = _raw(rest_mesh, line + b" HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + framing)
    assert found == status


def _first_made_id(settings: Settings) -> str:
    """Start an Envoy; the random digits of the first id that it makes."""
    settings = replace(settings, envoy=replace(settings.envoy, port=free_port()))
    with subprocess.Popen(envoy.command(settings), stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{settings.envoy.port}/nowhere"
            return str(until("Envoy answers", lambda: _made_id(url)))[-16:]
        finally:
            process.terminate()


def _made_id(url: str) -> str | None:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, headers={"x-request-id": "not one"}, trust_env=False).headers["x-request-id"]
    return None


def test_no_two_envoys_make_the_same_ids(tmp_path: Path) -> None:
    """Ids of requests and creations don't depend on how many an Envoy made before: two of them would give two clients one batch."""
    made = [_first_made_id(Settings(data_dir=str(tmp_path / name))) for name in "ab"]
    assert re.fullmatch("[0-9a-f]{16}", made[0])
    assert made[0] != made[1]


def test_head_answers_have_no_body(rest_mesh: RestMesh) -> None:
    """An error to HEAD has no body, which would run into the next answer on the connection."""
    head = b"HEAD /v1/files/file-nope/content HTTP/1.1\r\nhost: localhost\r\n\r\n"
    status, _, body = _raw(rest_mesh, head + b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"\r\n")
    assert status == 404
    assert body.startswith(b"HTTP/1.1 200 OK")


def test_second_instance_on_the_port(rest_mesh: RestMesh, data_dir: Path) -> None:
    """A second Envoy on a port that is taken ends with an error, and the first one goes on."""
    settings = replace(rest_mesh.settings, data_dir=str(data_dir))
    done = subprocess.run(envoy.command(settings), capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode != 0
    assert "Address already in use" in done.stderr
    assert rest_mesh.client.get("/health").status_code == 200


def test_upload_over_http2_and_100_continue(rest_mesh: RestMesh, data_dir: Path) -> None:
    """curl's habits work: HTTP/2 without TLS, and waiting for 100 Continue."""
    (data_dir / "a.txt").write_text("x" * 2_000_000)
    curl = shutil.which("curl")
    assert curl is not None, "curl is not installed"
    for habit in (["--http2-prior-knowledge"], ["-H", "Expect: 100-continue"]):
        form = ["-F", f"file=@{data_dir}/a.txt", "-F", "purpose=user_data"]
        url = f"http://{rest_mesh.address}/v1/files"
        done = subprocess.run([curl, "-sS", *habit, *form, url], capture_output=True, text=True, check=True, timeout=30)
        assert json.loads(done.stdout)["bytes"] == 2_000_000
