"""Envoy's configuration: rendered for an instance, accepted by Envoy, in step with the protos."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gateway import envoy, routes
from haywain import errors
from haywain.gateway.v1 import gateway_pb2
from haywain.settings import EnvoySettings, FilesSettings, GatewaySettings, LogSettings, Settings


def _allowed(settings: Settings) -> list[tuple[str, list[str]]]:
    lua = (envoy.render(settings).parent / "rest_routes.lua").read_text()
    return [(pattern, methods.split(", ")) for pattern, methods in re.findall(r'\{ "(\^[^"]+)", "([^"]+)" \}', lua)]


def test_envoy_accepts_it(settings: Settings) -> None:
    """Envoy validates what is rendered."""
    envoy.validate(settings)


def test_envoy_accepts_host_and_port(data_dir: Path) -> None:
    """Services may live on other machines, by name or by address."""
    settings = Settings(
        data_dir=str(data_dir),
        gateway=GatewaySettings(address="gateway.local:50051"),
        files=FilesSettings(address="127.0.0.1:50052"),
        log=LogSettings(level="debug"),
    )
    envoy.validate(settings)
    clusters = {one["name"]: one for one in yaml.safe_load(envoy.render(settings).read_text())["static_resources"]["clusters"]}
    assert clusters["gateway"]["type"] == "STRICT_DNS"
    assert clusters["batches"]["type"] == "STATIC"


def test_refusal_is_told(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A configuration that Envoy refuses is a SettingsError in Envoy's words."""
    for path in envoy.TEMPLATES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    broken = tmp_path / "envoy.yaml"
    broken.write_text(broken.read_text().replace("codec_type: AUTO", "codec_tipe: AUTO"))
    monkeypatch.setattr(envoy, "TEMPLATES", tmp_path)
    with pytest.raises(errors.SettingsError, match="codec_tipe"):
        envoy.validate(settings)


@pytest.mark.parametrize("address", ["localhost", "unix", "host:port", ""])
def test_odd_addresses(data_dir: Path, address: str) -> None:
    """An address that is neither a socket nor host:port is refused; none at all means a socket of the instance."""
    settings = Settings(data_dir=str(data_dir), gateway=GatewaySettings(address=address))
    if address:
        with pytest.raises(errors.SettingsError, match="expected unix:/path or host:port"):
            envoy.render(settings)
    else:
        assert f"{settings.run_dir}/gateway.sock" in envoy.render(settings).read_text()


def test_folder_that_cannot_be_written(data_dir: Path) -> None:
    """A data folder that can't be written is a SettingsError."""
    (data_dir / "envoy").write_text("in the way")
    with pytest.raises(errors.SettingsError, match="can't write"):
        envoy.render(Settings(data_dir=str(data_dir)))


def test_odd_folder_names(data_dir: Path) -> None:
    """Quotes, spaces and dollars in the data folder's name stay what they are."""
    folder = data_dir / 'a "b" ${port} \\c'
    settings = Settings(data_dir=str(folder))
    filters = yaml.safe_load(envoy.render(settings).read_text())["static_resources"]["listeners"][0]["filter_chains"][0]["filters"]
    transcoder = next(one for one in filters[0]["typed_config"]["http_filters"] if "transcoder" in one["name"])
    assert transcoder["typed_config"]["proto_descriptor"] == f"{folder}/envoy/haywain.binpb"


def test_instances_share_nothing(tmp_path: Path) -> None:
    """Two instances side by side have different files, sockets and ports, and no hot restart."""
    one, two = (Settings(data_dir=str(tmp_path / name), envoy=EnvoySettings(port=port)) for name, port in (("a", 1), ("b", 2)))
    assert "--disable-hot-restart" in envoy.command(one)
    for settings, other in ((one, two), (two, one)):
        text = envoy.render(settings).read_text()
        assert f"{settings.run_dir}/gateway.sock" in text
        assert f"{other.run_dir}/" not in text
        assert f"{other.data}/" not in text


def test_only_one_port_listens(settings: Settings) -> None:
    """Nothing but the main listener is on TCP."""
    config = yaml.safe_load(envoy.render(settings).read_text())
    assert "pipe" in config["admin"]["address"]
    assert [one["address"]["socket_address"]["port_value"] for one in config["static_resources"]["listeners"]] == [10900]


def test_routes_match_the_protos(settings: Settings) -> None:
    """rest_routes.lua knows each path of the protos with just its methods, so that 405 and Allow are right."""
    known: dict[str, set[str]] = {}
    for route in routes.ROUTES:
        path = re.sub(r"\{[a-z_]+\}", "a", re.sub(r"\{[a-z_]+=\*\*\}", "a/b", route.template))
        matching = [pattern for pattern, _ in _allowed(settings) if re.match(pattern.replace("%", "\\"), path)]
        assert len(matching) == 1, (path, matching)
        known.setdefault(matching[0], set()).add(route.method)
    assert {pattern: set(methods) for pattern, methods in _allowed(settings)} == known


def test_no_route_is_ambiguous() -> None:
    """No two RPCs have the same method and template: Envoy would answer 404 to both, and not say so at its start."""
    shapes = [(route.method, re.sub(r"\{[a-z_]+", "{", route.template)) for route in routes.ROUTES]
    assert len(shapes) == len(set(shapes))


def test_descriptor_is_current() -> None:
    """haywain.binpb holds the gateway's service as the stubs have it."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - only here

    files = descriptor_pb2.FileDescriptorSet.FromString((envoy.TEMPLATES / "haywain.binpb").read_bytes())
    found = next(one for one in files.file if one.name == gateway_pb2.DESCRIPTOR.name)
    mine = descriptor_pb2.FileDescriptorProto()
    gateway_pb2.DESCRIPTOR.CopyToProto(mine)
    assert [method.name for method in found.service[0].method] == [method.name for method in mine.service[0].method]
