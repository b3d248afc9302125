"""Who may call: a browser's pages only the mesh's own, and under no name but this machine's; programs as ever."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from mesh import free_port, until
from rest_seam import RestMesh
from rest_steps import assert_envelope

from gateway import envoy
from haywain import errors
from haywain.batches.v1 import batches_pb2, batches_pb2_grpc
from haywain.settings import EnvoySettings, Settings

FORM = {"content-type": "application/x-www-form-urlencoded"}


@contextlib.contextmanager
def listening(data_dir: Path, **terms: object) -> Iterator[httpx.Client]:
    """Run an Envoy with nobody behind it: what it lets through is 404, or 503."""
    settings = Settings(data_dir=str(data_dir), envoy=EnvoySettings(port=free_port(), **terms))  # type: ignore[arg-type]
    url = f"http://127.0.0.1:{settings.envoy.port}"
    with (
        subprocess.Popen(envoy.command(settings), stderr=subprocess.DEVNULL) as process,
        httpx.Client(base_url=url, trust_env=False) as client,
    ):
        try:
            until("Envoy answers", lambda: _status(client))
            yield client
        finally:
            process.kill()


def _status(client: httpx.Client, method: str = "GET", **headers: str) -> int | None:
    with contextlib.suppress(httpx.TransportError):
        return client.request(method, "/nowhere", headers=headers).status_code
    return None


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:10900", "[::1]:10900", "haywain.localhost:80"]
)
def test_this_machine_has_these_names(rest_mesh: RestMesh, host: str) -> None:
    """On a loopback address requests for the machine itself are served, whatever the port."""
    assert rest_mesh.client.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:10900", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_name_that_leads_here(rest_mesh: RestMesh, host: str, method: str) -> None:
    """A page whose name was made to lead to this machine can neither read nor change anything (DNS rebinding)."""
    answer = rest_mesh.client.request(method, "/v1/batches", headers={"host": host})
    assert answer.status_code == 403
    error = assert_envelope(answer)
    assert (error["code"], error["type"]) == ("host_not_allowed", "permission_error")
    assert "envoy.allowed_hosts" in error["message"]


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", 'http://a"b'])
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/files"), ("POST", "/v1/batches/b/cancel"), ("DELETE", "/v1/files/f")])
def test_another_page_changes_nothing(rest_mesh: RestMesh, origin: str, method: str, path: str) -> None:
    """What a page of another origin sends is refused, a form that needs no leave of ours included."""
    answer = rest_mesh.client.request(method, path, headers=FORM | {"origin": origin}, content=b"a=b" if method == "POST" else b"")
    assert answer.status_code == 403
    assert assert_envelope(answer)["code"] == "origin_not_allowed"


def test_its_own_page_and_programs(rest_mesh: RestMesh) -> None:
    """The mesh's own page may, under each of its names, also behind TLS; so may who has no origin, and all may read."""
    for host in (rest_mesh.address, "localhost:10900"):
        for origin in (f"http://{host}", f"https://{host}"):
            answer = rest_mesh.client.post("/v1/batches", json={}, headers={"host": host, "origin": origin})
            assert assert_envelope(answer)["code"] == "missing_required_parameter"
    assert rest_mesh.client.post("/v1/batches", json={}).status_code == 400
    assert rest_mesh.client.get("/v1/batches?limit=0", headers={"origin": "http://evil.example"}).status_code == 200


def test_more_may_be_allowed(data_dir: Path) -> None:
    """Names and origins that are set are allowed besides."""
    with listening(data_dir, allowed_hosts=("Batch.example.com",), allowed_origins=("https://app.example.com",)) as client:
        assert _status(client, host="batch.example.com:443") == 404
        assert _status(client, host="localhost") == 404
        assert _status(client, host="example.com") == 403
        assert _status(client, "POST", origin="https://app.example.com") == 404
        assert _status(client, "POST", origin="https://other.example.com") == 403


def test_all_may_be_allowed(data_dir: Path) -> None:
    """A star stands for any."""
    with listening(data_dir, allowed_hosts=("*",), allowed_origins=("*",)) as client:
        assert _status(client, "POST", host="evil.example", origin="null") == 404


def test_a_port_that_others_reach_has_any_name(data_dir: Path) -> None:
    """Nobody knows by which names a machine is called from elsewhere: they are checked only where they are set."""
    with listening(data_dir, host="0.0.0.0") as client:  # noqa: S104 - for a moment
        assert _status(client, host="batch.example.com") == 404
        assert _status(client, "POST", host="batch.example.com", origin="http://evil.example") == 403
    with listening(data_dir, host="0.0.0.0", allowed_hosts=("batch.example.com",)) as client:  # noqa: S104
        assert [_status(client, host=host) for host in ("batch.example.com", "0.0.0.0:80", "evil.example")] == [404, 404, 403]


def test_native_calls_are_for_this_machine_too(rest_mesh: RestMesh) -> None:
    """A page under another name could send them as well."""
    channel = grpc.insecure_channel(rest_mesh.address, [("grpc.default_authority", "evil.example")])
    with channel, pytest.raises(grpc.RpcError) as refused:
        batches_pb2_grpc.BatchesServiceStub(channel).ListBatches(batches_pb2.ListBatchesRequest(), timeout=10)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED  # type: ignore[attr-defined]
    assert "not served here" in refused.value.details()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "terms", [{"allowed_hosts": ("a.example:80",)}, {"allowed_hosts": ('a"b',)}, {"allowed_origins": ("app.example.com",)}]
)
def test_what_is_no_name(data_dir: Path, terms: dict[str, tuple[str, ...]]) -> None:
    """A name with a port, or an origin without a scheme, would never match: it is refused at the start."""
    with pytest.raises(errors.SettingsError, match=r"envoy\.allowed_"):
        envoy.render(Settings(data_dir=str(data_dir), envoy=EnvoySettings(**terms)))


@pytest.mark.parametrize("host", ["localhost", "batch.example.com", "[::1]"])
def test_what_is_no_address(data_dir: Path, host: str) -> None:
    """Envoy listens on addresses only: a name is refused before it is started, by the setting's."""
    with pytest.raises(errors.SettingsError, match=r"envoy\.host: .* expected an IP address"):
        envoy.render(Settings(data_dir=str(data_dir), envoy=EnvoySettings(host=host)))
