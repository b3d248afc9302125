"""Requests that nobody thought of: 2,000 of them find no 5xx, no hang and no error without its envelope."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, given, settings
from rest_seam import RestMesh
from rest_steps import multipart

from gateway.operations import FORM, JSON, OPERATIONS
from gateway.routes import ROUTES, Route

HANGS_AFTER_SECONDS = 15.0
_NAMES = sorted(
    {name for one in OPERATIONS.values() for body in one.request.values() for name in body.__struct_fields__}
    | {one.name for operation in OPERATIONS.values() for one in operation.parameters if one.place == "query"}
)
_WORDS = [
    "echo", "texts", "vectors", "batch", "asc", "desc", "24h", "created_at", "user", "system", "text", "json_object", "standard",
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "file-nope", "0", "1", "-1", "20", "10000000000000000000", "",
]  # fmt: skip


def _json_values() -> st.SearchStrategy[Any]:
    numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    leaves = st.none() | st.booleans() | numbers | st.sampled_from(_WORDS) | st.text(max_size=20)
    keys = st.sampled_from([*_NAMES, "role", "content", "type", "text", "anchor", "seconds"]) | st.text(max_size=8)
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=8)


def _good(route: Route) -> dict[str, Any]:
    return {
        "CreateBatch": {"input_file_id": "file-nope"},
        "UpdateBatch": {"metadata": {}},
        "CreateUpload": {"filename": "a", "purpose": "user_data", "mime_type": "text/plain", "bytes": 1},
        "CompleteUpload": {"part_ids": []},
        "CreateChatCompletion": {"model": "echo", "messages": [{"role": "user", "content": "hello"}]},
        "CreateCompletion": {"model": "texts", "prompt": "hello"},
        "CreateEmbedding": {"model": "vectors", "input": "hello"},
    }.get(route.rpc, {})


@st.composite
def _json_body(draw: st.DrawFn, route: Route) -> bytes:
    """A body that is nearly right, or any JSON, or nearly JSON."""
    fields = next((one.__struct_fields__ for one in OPERATIONS[route.rpc].request.values()), ("a",))
    body = _good(route) | draw(st.dictionaries(st.sampled_from(fields), _json_values(), max_size=3))
    value = draw(st.sampled_from([body, body, body]) | _json_values())
    text = json.dumps(value, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return draw(st.sampled_from([text, text, text, text[:-1], text + b" ", text.replace(b'"', b"'"), b"\xff" + text]))


@st.composite
def _form(draw: st.DrawFn) -> bytes:
    """A form that is nearly right."""
    names = st.sampled_from(["file", "data", "purpose", "expires_after[anchor]", "expires_after[seconds]", "x"])
    words = st.sampled_from(_WORDS) | st.text(st.characters(codec="utf-8"), max_size=20)
    part = st.fixed_dictionaries({"name": names, "value": words}) | st.fixed_dictionaries(
        {"name": names, "filename": st.sampled_from(["a.jsonl", "a", "", "../a", "\u00fc.jsonl"]), "text": words}
    )
    body = multipart(draw(st.lists(part, max_size=4)), end=draw(st.sampled_from([True, True, False])))
    return body[: draw(st.sampled_from([len(body), len(body), len(body) // 2]))]


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
    path = route.path
    for name in route.variables:
        ident = draw(
            st.sampled_from(["nope", "a/b", "..", "batch_0"]) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
        )
        path = path.replace(f"{{{name}}}", quote(ident, safe=draw(st.sampled_from(["", "/"]))))
    if draw(st.integers(0, 9)) == 0:
        path += draw(st.sampled_from(["/", "//", "/x", "%2F", "%00", "%ff", ":", ";a=b", "/%2e%2e"]))
    pairs = draw(
        st.lists(
            st.tuples(st.sampled_from(_NAMES) | st.text(max_size=5), st.sampled_from(_WORDS) | st.text(max_size=9)), max_size=2
        )
    )
    query = urlencode(pairs, errors="replace") if draw(st.integers(0, 2)) == 0 else ""
    method = draw(st.sampled_from([route.method] * 9 + ["GET", "POST", "DELETE", "PUT"]))
    kind = next(iter(OPERATIONS[route.rpc].request), JSON)
    body = draw(_form() if kind == FORM else _json_body(route)) if method == "POST" or draw(st.integers(0, 9)) == 0 else None
    if draw(st.integers(0, 19)) == 0:
        body = draw(st.binary(max_size=200))
    headers = {"content-type": f"{FORM}; boundary=----haywain" if kind == FORM else JSON} if body is not None else {}
    headers |= draw(
        st.dictionaries(_header_names(), st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20), max_size=2)
    )
    return Request(method, path + (f"?{query}" if query else ""), headers, body)


def _header_names() -> st.SearchStrategy[str]:
    return st.sampled_from(
        [
            "range",
            "if-range",
            "idempotency-key",
            "prefer",
            "accept",
            "content-type",
            "x-request-id",
            "authorization",
            "te",
            "grpc-timeout",
        ]
    )


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
    assert answer.status < 500, data
    assert answer.headers["x-request-id"]
    if answer.status >= 400 and request.method != "HEAD":
        assert answer.headers["content-type"] == JSON
        assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}
    if answer.status == 200 and answer.headers["content-type"] == JSON and request.method != "HEAD":
        json.loads(data)


def test_nothing_breaks(rest_mesh: RestMesh) -> None:
    """No request makes the mesh fail, hang, or answer an error in another form."""
    connection = Connection(rest_mesh)

    @settings(max_examples=2_000, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(requests())
    def check(request: Request) -> None:
        _check(request, *connection.send(request))

    with contextlib.closing(connection):
        check()
    assert rest_mesh.client.get("/health").status_code == 200
