"""Every route against everything that can be wrong with a request: the envelope with the right status, never 500, never a hang."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from rest_seam import MAX_BODY_BYTES, MAX_UPLOAD_BYTES, RestMesh
from rest_steps import GOOD_BODIES, assert_envelope

from gateway.operations import FORM, JSON, OPERATIONS
from gateway.routes import ROUTES, Route

HERE = {route: f"{route.method} {route.path}" for route in ROUTES}
JSON_TYPE = {"content-type": JSON}


def _sends(route: Route, kind: str) -> bool:
    return kind in OPERATIONS[route.rpc].request


def _routes(*kinds: str) -> Any:
    """Parametrise with the routes that take a body of one of these kinds; all of them without any."""
    chosen = [route for route in ROUTES if not kinds or any(_sends(route, kind) for kind in kinds)]
    return pytest.mark.parametrize("route", chosen, ids=[HERE[route] for route in chosen])


def _url(route: Route, ident: str = "nope") -> str:
    path = route.path
    for name in route.variables:
        path = path.replace(f"{{{name}}}", ident)
    return path


def _refused(answer: httpx.Response, *statuses: int) -> dict[str, Any]:
    """Check the status and the envelope; what is inside of it."""
    assert answer.status_code in statuses, (answer.status_code, answer.text[:500])
    assert answer.headers["x-request-id"]
    if answer.request.method == "HEAD":
        assert answer.content == b""
        return {}
    return assert_envelope(answer)


def _tolerated(answer: httpx.Response, route: Route) -> None:
    """Check that a route that takes no body didn't look at it: a path with an id says 404, another one 200."""
    if route.variables:
        _refused(answer, 404)
    else:
        # A machine under load may be too slow for its health checks.
        assert answer.status_code == 200 or (answer.status_code == 503 and "/health" in route.path), answer.text


@pytest.fixture
def client(rest_mesh: RestMesh) -> httpx.Client:
    """The session's client: what takes longer than its timeout hangs."""
    return rest_mesh.client


def test_all_bodies_are_known() -> None:
    """Each route that takes JSON has a good body here."""
    assert {route.rpc for route in ROUTES if _sends(route, JSON)} == set(GOOD_BODIES)


@_routes()
@pytest.mark.parametrize("headers", [{}, JSON_TYPE, {"content-type": FORM}], ids=["no type", "JSON", "form"])
@pytest.mark.parametrize("content", [None, b""], ids=["no body", "empty body"])
def test_without_a_body(client: httpx.Client, route: Route, headers: dict[str, str], content: bytes | None) -> None:
    """A body that is missing where one is needed is 400."""
    answer = client.request(route.method, _url(route), content=content, headers=headers)
    if OPERATIONS[route.rpc].request and OPERATIONS[route.rpc].body_needed:
        _refused(answer, 400)
    else:
        _tolerated(answer, route)


@_routes(JSON)
@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8", "x"]
)
def test_type_of_a_json_body(client: httpx.Client, route: Route, content_type: str) -> None:
    """JSON is read whatever it is called: curl calls it a form."""
    right, called = (
        client.request(route.method, _url(route), json=GOOD_BODIES[route.rpc], headers=headers)
        for headers in ({}, {"content-type": content_type})
    )
    assert right.status_code == called.status_code
    assert right.status_code < 500


@_routes(FORM)
@pytest.mark.parametrize(
    "content_type",
    [
        "",
        JSON,
        "text/plain",
        FORM,
        f"{FORM}; boundary=",
        f"{FORM}; boundary={'x' * 200}",
        f'{FORM}; boundary="a',
        "multipart/mixed; boundary=a",
    ],
)
def test_type_of_a_form(client: httpx.Client, route: Route, content_type: str) -> None:
    """A form that isn't called one, or has no boundary, is 400."""
    body = b'--a\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--a--\r\n'
    _refused(client.request(route.method, _url(route), content=body, headers={"content-type": content_type}), 400)


@_routes()
@pytest.mark.parametrize(
    "text", ["{", "{]", "nul", "{'a': 1}", '{"a": 1,}', '{"a": 1}{', "\ufeff{}", '"\\ud800"', "[" * 5_000, "\x00"]
)
def test_malformed_json(client: httpx.Client, route: Route, text: str) -> None:
    """A body that is no JSON is 400 where JSON is read, and nothing elsewhere."""
    answer = client.request(route.method, _url(route), content=text.encode(), headers=JSON_TYPE)
    if _sends(route, JSON):
        assert _refused(answer, 400)["code"] == "invalid_json"
    elif _sends(route, FORM):
        _refused(answer, 400)
    else:
        _tolerated(answer, route)


@_routes(JSON)
@pytest.mark.parametrize("text", ["[]", "null", "1", '"a"', "true", "[{}]"])
def test_json_that_is_no_object(client: httpx.Client, route: Route, text: str) -> None:
    """JSON that isn't an object is 400, with what it is instead."""
    answer = client.request(route.method, _url(route), content=text.encode(), headers=JSON_TYPE)
    error = _refused(answer, 400)
    assert error["code"] == "invalid_type"
    assert "expected an object, but got" in error["message"]


@_routes(JSON)
@pytest.mark.parametrize(
    "value", [3, [], {}, [[1]], {"a": {}}, True, "x" * 100_000, 10**400, -1, 1e300, None], ids=lambda value: repr(value)[:10]
)
def test_wrong_types(client: httpx.Client, route: Route, value: Any) -> None:
    """A field of a wrong type is refused by name, each of them; where the value fits, nothing worse comes of it."""
    for name in OPERATIONS[route.rpc].request[JSON].__struct_fields__:
        answer = client.request(route.method, _url(route), json=GOOD_BODIES[route.rpc] | {name: value})
        if answer.status_code == 200:
            continue
        error = _refused(answer, 400, 404)
        if answer.status_code == 400:
            assert error["param"] is not None, (name, error)
            assert error["param"].startswith(name), (name, error)


@_routes(JSON)
def test_unknown_field(client: httpx.Client, route: Route) -> None:
    """A field that nobody knows is refused by name."""
    error = _refused(client.request(route.method, _url(route), json=GOOD_BODIES[route.rpc] | {"frobnicate": 1}), 400)
    assert (error["code"], error["param"]) in {("unknown_parameter", "frobnicate"), ("unsupported_parameter", "frobnicate")}
    assert "frobnicate" in error["message"]


@_routes()
@pytest.mark.parametrize(
    "query", ["frobnicate=1", "a[]=1", "%00=1", "=", "&&&", "%ff=1", "x" * 8_000], ids=lambda query: query[:10]
)
def test_unknown_query(client: httpx.Client, route: Route, query: str) -> None:
    """A query parameter that nobody knows is 400, but for health checks and the page, whose askers append what they like."""
    answer = client.request(route.method, f"{_url(route)}?{query}", json=GOOD_BODIES.get(route.rpc))
    if route.path in {"/health", "/"}:
        assert answer.status_code in {200, 503}
    elif query == "&&&":
        assert answer.status_code < 500
    else:
        _refused(answer, 400)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.rpc != "AddUploadPart"], ids=lambda route: HERE[route])
def test_oversized(client: httpx.Client, route: Route) -> None:
    """A body over the limit is 413 before it is read, with limit and size; so is one that doesn't tell its size.

    Parts of uploads have a limit and tests of their own.
    """
    limit = MAX_UPLOAD_BYTES if _sends(route, FORM) else MAX_BODY_BYTES
    size = limit + 1
    error = _refused(client.request(route.method, _url(route), content=b" " * size, headers=JSON_TYPE), 413)
    if error:
        assert (error["code"], str(size) in error["message"], str(limit) in error["message"]) == ("request_too_large", True, True)
    if OPERATIONS[route.rpc].request:
        headers = {"content-type": f"{FORM}; boundary=a" if _sends(route, FORM) else JSON}
        _refused(client.request(route.method, _url(route), content=iter([b"--a\r\n", b" " * size]), headers=headers), 400, 413)


IDS = {
    "unknown": "nope",
    "ten kilobytes": "x" * 10_000,
    "an escaped slash": "a%2Fb",
    "escaped dots": "%2e%2e%2e",
    "dots": "...",
    "spaces": "%20%20",
    "quotes": "%22%27%60",
    "a percent sign": "%25",
    "a query": "a%3Fb=c",
    "a line break": "a%0Ab",
    "a tab": "a%09b",
    "a DEL": "a%7Fb",
    "another script": "%D7%A9%D7%9C%D7%95%D7%9D",
    "an emoji": "%F0%9F%98%80",
    "a template": "{batch_id}",
    "SQL": "'%20or%201=1--",
    "a file": "..%2f..%2f..%2fetc%2fpasswd",
}


@pytest.mark.parametrize("ident", IDS.values(), ids=IDS.keys())
@pytest.mark.parametrize("route", [route for route in ROUTES if route.variables], ids=lambda route: HERE[route])
def test_ids(client: httpx.Client, route: Route, ident: str) -> None:
    """An id that names nothing is 404, whatever is in it."""
    form = b'--a\r\ncontent-disposition: form-data; name="data"; filename="a"\r\n\r\nx\r\n--a--\r\n'
    content, headers = (form, {"content-type": f"{FORM}; boundary=a"}) if _sends(route, FORM) else (None, {})
    answer = client.request(route.method, _url(route, ident), json=GOOD_BODIES.get(route.rpc), content=content, headers=headers)
    _refused(answer, 404)


@pytest.mark.parametrize("ident", ["a/b", "a/b/c/d", "content/cancel", "", "..", "../..", "%2e%2e/%2e%2e", "%00", "%ff", "%zz"])
@pytest.mark.parametrize("route", [route for route in ROUTES if route.variables], ids=lambda route: HERE[route])
def test_ids_that_make_another_path(client: httpx.Client, route: Route, ident: str) -> None:
    """An id that makes another path of it, or none at all, is answered by that path: never by an error of ours."""
    answer = client.request(route.method, _url(route, ident), json=GOOD_BODIES.get(route.rpc))
    if answer.status_code != 200:
        _refused(answer, 400, 404, 405)


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_wrong_method(client: httpx.Client, path: str, method: str) -> None:
    """A method that a path doesn't have is 405, and Allow says which it has."""
    mine = [route for route in ROUTES if route.path == path]
    if method in {route.method for route in mine}:
        return
    answer = client.request(method, _url(mine[0]), content=b"{}")
    error = _refused(answer, 405)
    assert set(answer.headers["allow"].split(", ")) == {route.method for route in mine}
    assert error.get("code", "method_not_supported") == "method_not_supported"
