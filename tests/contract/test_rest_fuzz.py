"""Requests that nobody thought of: 2,000 of them find no 5xx, no hang and no error without its envelope."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, given, settings
from mesh import chat_row, jsonl
from rest_seam import RestMesh
from rest_steps import GOOD_BODIES, multipart

from gateway.operations import FORM, JSON, OPERATIONS
from gateway.routes import ROUTES, Route

HANGS_AFTER_SECONDS = 15.0
FIELDS = {name: [field for body in one.request.values() for field in body.__struct_fields__] for name, one in OPERATIONS.items()}
NAMES = sorted({name for names in FIELDS.values() for name in names} | {"limit", "after", "order", "after_line"})
WORDS = [
    "echo", "rented", "texts", "vectors", "batch", "asc", "desc", "24h", "created_at", "user", "system", "text", "json_object",
    "standard",
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "file-nope", "0", "1", "-1", "20", "10000000000000000000", "",
]  # fmt: skip

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
WORDS_OR_TEXTS = st.sampled_from(WORDS) | TEXTS
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS_OR_TEXTS
KEYS = st.sampled_from([*NAMES, "role", "content", "type", "text", "anchor", "seconds"]) | st.text(max_size=8)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8)
CHANGES = {name: st.dictionaries(st.sampled_from(fields or ["a"]), VALUES, max_size=3) for name, fields in FIELDS.items()}
PART_NAMES = st.sampled_from(["file", "data", "purpose", "expires_after[anchor]", "expires_after[seconds]", "x"])
PARTS = st.lists(
    st.fixed_dictionaries({"name": PART_NAMES, "value": WORDS_OR_TEXTS})
    | st.fixed_dictionaries(
        {"name": PART_NAMES, "filename": st.sampled_from(["a.jsonl", "a", "", "../a", "ü.jsonl"]), "text": WORDS_OR_TEXTS}
    ),
    max_size=4,
)
THERE = "there"
"""stands for the id of an object that exists"""
SOME_IDS = ["nope", "a/b", "..", "batch_0", THERE, THERE, THERE]
IDS = st.sampled_from(SOME_IDS) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
ENDS = st.sampled_from(["/", "//", "/x", "%2F", "%00", "%ff", ":", ";a=b", "/%2e%2e"])
QUERIES = st.lists(st.tuples(st.sampled_from(NAMES) | TEXTS, WORDS_OR_TEXTS), min_size=1, max_size=2)
HEADER_NAMES = [
    "range", "if-range", "if-match", "if-none-match", "idempotency-key", "prefer", "accept", "content-type", "content-encoding",
    "x-request-id", "authorization", "te", "x-haywain-lease",
]  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from([*HEADER_NAMES, "grpc-timeout"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
    max_size=2,
)
METHODS = {route: st.sampled_from([route.method] * 9 + ["GET", "POST", "DELETE", "PUT"]) for route in ROUTES}
BYTES = st.binary(max_size=200)


class Request(msgspec.Struct):
    """One try."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes | None


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """Draw a request to one of the routes, or to nearly one."""
    route = draw(st.sampled_from(ROUTES))
    target = route.path
    for name in route.variables:
        target = target.replace(f"{{{name}}}", quote(draw(IDS), safe="/" if draw(st.booleans()) else ""))
    target += draw(ENDS) if not draw(st.integers(0, 9)) else ""
    target += f"?{urlencode(draw(QUERIES))}" if not draw(st.integers(0, 2)) else ""
    method = draw(METHODS[route])
    is_form = FORM in OPERATIONS[route.rpc].request
    if method != "POST" and draw(st.integers(0, 9)):
        return Request(method, target, draw(HEADERS), None)
    headers = {"content-type": f"{FORM}; boundary=----haywain" if is_form else JSON} | draw(HEADERS)
    return Request(method, target, headers, _form(draw) if is_form else _json(draw, route))


def _json(draw: st.DrawFn, route: Route) -> bytes:
    """Draw a body that is nearly right, or any JSON, or nearly JSON, or not at all."""
    value: Any = GOOD_BODIES.get(route.rpc, {}) | draw(CHANGES[route.rpc]) if draw(st.integers(0, 3)) else draw(VALUES)
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return (
        draw(BYTES) if not draw(st.integers(0, 19)) else draw(_damaged(text, text[:-1], text.replace(b'"', b"'"), b"\xff" + text))
    )


def _form(draw: st.DrawFn) -> bytes:
    """Draw a form that is nearly right."""
    body = multipart(draw(PARTS), end=bool(draw(st.integers(0, 3))))
    return draw(_damaged(body, body[: len(body) // 2]))


def _damaged(whole: bytes, *others: bytes) -> st.SearchStrategy[bytes]:
    return st.sampled_from([whole] * 6 + list(others))


class Connection:
    """A kept-alive connection, opened again when it was closed."""

    def __init__(self, mesh: RestMesh) -> None:
        """Connect when first used."""
        self._http = http.client.HTTPConnection("127.0.0.1", mesh.settings.envoy.port, timeout=HANGS_AFTER_SECONDS)

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def send(self, request: Request) -> tuple[http.client.HTTPResponse, bytes]:
        """Send one; TimeoutError when it hangs."""
        try:
            self._http.request(request.method, request.target, request.body, request.headers)
            answer = self._http.getresponse()
        except (ConnectionError, http.client.HTTPException):  # a keep-alive that ended
            self._http.close()
            self._http.request(request.method, request.target, request.body, request.headers)
            answer = self._http.getresponse()
        return answer, answer.read()


def _check(request: Request, answer: http.client.HTTPResponse, data: bytes) -> None:
    slow = answer.status == 503 and request.target.startswith("/health")  # of a machine under load
    assert answer.status < 500 or slow, data
    assert answer.headers["x-request-id"]
    if answer.status >= 400 and request.method != "HEAD":
        assert answer.headers["content-type"] == JSON
        assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}
    if answer.status == 200 and answer.headers["content-type"] == JSON and request.method != "HEAD":
        json.loads(data)


def _made(client: httpx.Client) -> dict[str, str]:
    """Make one of each kind of object; ids by the path that leads to them."""
    row = jsonl([chat_row("a")])
    file = client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", row)}).json()["id"]
    batch = client.post("/v1/batches", json={"input_file_id": file}).json()["id"]
    upload = client.post("/v1/uploads", json=GOOD_BODIES["CreateUpload"]).json()["id"]
    _free(client)
    lease = client.post("/v1/leases", json={"model": "rented"}).json()["id"]
    return {"/v1/files": file, "/v1/batches": batch, "/v1/uploads": upload, "/v1/models": "echo", "/v1/leases": lease}


def _free(client: httpx.Client) -> None:
    """End all leases of models."""
    for lease in client.get("/v1/leases", params={"limit": "100"}).json()["data"]:
        client.delete(f"/v1/leases/{lease['id']}")


def test_nothing_breaks(rest_mesh: RestMesh) -> None:
    """No request makes the mesh fail, hang, or answer an error in another form."""
    connection = Connection(rest_mesh)
    count, made = itertools.count(), dict[str, str]()

    @settings(max_examples=2_000, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(requests())
    def check(request: Request) -> None:
        if not next(count) % 50:  # some are deleted on the way
            made.update(_made(rest_mesh.client))
        for path, ident in made.items():
            request.target = request.target.replace(f"{path}/{THERE}", f"{path}/{ident}")
        _check(request, *connection.send(request))

    try:
        with contextlib.closing(connection):
            check()
    finally:
        _free(rest_mesh.client)
    assert rest_mesh.client.get("/health").status_code == 200
