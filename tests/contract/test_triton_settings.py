"""Settings that don't fit the server at hand: one clear line each, at the start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme
from mesh import free_port
from triton_fixture import TritonServer
from triton_running import COMPLETIONS, Results, settings, started

from engine.triton.backend import TritonBackend
from haywain.errors import SettingsError
from haywain.settings import TritonContractSettings, TritonSettings

CUSTOM = {"prompt": "QUESTION", "text": "ANSWER"}


async def line(chosen: TritonSettings) -> str:
    """Start, and give the one line that says why that can't be."""
    with pytest.raises(SettingsError) as caught:
        async with started(chosen):
            pass
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("url", ["", "localhost", "http://localhost:8001", "localhost:port", "localhost:99999", "a b:1"])
async def test_an_address_that_is_none(url: str) -> None:
    """It is refused before anything is opened, with what was expected."""
    assert "expected host:port" in await line(TritonSettings(url=url))


async def test_triton_by_http(triton: TritonServer) -> None:
    """Triton's HTTP port is told from its gRPC port."""
    assert "speaks HTTP, not gRPC" in await line(TritonSettings(url=f"127.0.0.1:{triton.http_port}"))


async def test_something_else_at_the_address() -> None:
    """What speaks neither is told by what it answers."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert "doesn't speak gRPC: it answers b'SSH-2.0" in await line(TritonSettings(url=f"127.0.0.1:{port}"))


async def test_a_wrong_name_or_version(triton: TritonServer) -> None:
    """A model that isn't there is told with those that are; a version that isn't with Triton's words."""
    told = await line(settings(triton, "vllm-mock"))
    assert "'vllm-mock' is not in Triton" in told
    assert "vllm_mock (ready)" in told
    assert "engine.triton.version '7'" in await line(settings(triton, "vllm_mock", version="7"))


async def test_a_model_that_fits_no_contract(triton: TritonServer) -> None:
    """The line has the tensors that were found and, for each contract, what is missing."""
    told = await line(settings(triton, "pictures"))
    assert "inputs image FP32; outputs scores FP32" in told
    assert "vllm: no input text_input, sampling_parameters" in told
    assert "engine.triton.contract" in told


async def test_several_models_that_fit(triton: TritonServer) -> None:
    """Without a name the only one is taken; of several the line names all."""
    assert "choose one with engine.triton.model: " in await line(settings(triton, ""))


@pytest.mark.parametrize(
    ("contract", "expected"),
    [
        ({"prompt": "QUESTION"}, "needs the names of prompt, and of either text or embedding"),
        ({**CUSTOM, "text": "REPLY"}, "no output REPLY; it has inputs QUESTION BYTES, LIMIT INT64"),
        ({**CUSTOM, "top_k": "TOP"}, "no input TOP"),
        ({**CUSTOM, "text": "COUNT"}, "COUNT is UINT16, not BYTES"),
        ({**CUSTOM, "constants": {"LIMIT": "many"}}, "LIMIT: 'many' is no number"),
        ({**CUSTOM, "constants": {"RAW": "perhaps"}}, "RAW: 'perhaps' is neither true nor false"),
    ],
)
async def test_a_mapping_that_does_not_fit(triton: TritonServer, contract: dict[str, Any], expected: str) -> None:
    """What is wrong with it is said by the tensor's name."""
    assert expected in await line(settings(triton, "custom", contract=TritonContractSettings(**contract)))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("gone.jinja", None, "can't be read: No such file"),
        ("bad.jinja", "{% for %}", "can't be compiled"),
        ("tokenizer_config.json", "{", "is no JSON"),
        ("tokenizer_config.json", "{}", "has no chat_template"),
    ],
)
async def test_a_template_that_is_none(triton: TritonServer, tmp_path: Path, name: str, content: str | None, expected: str) -> None:
    """The file is named, and what is wrong with it."""
    if content is not None:
        (tmp_path / name).write_text(content, "utf-8")
    assert expected in await line(settings(triton, "vllm_mock", template=str(tmp_path / name)))


async def test_a_server_that_comes_later() -> None:
    """A start waits for a server that isn't there, without an end."""
    backend = TritonBackend(TritonSettings(url=f"127.0.0.1:{free_port()}"))
    starting = asyncio.create_task(backend.start(Results()))
    done, _ = await asyncio.wait({starting}, timeout=1.5)
    assert not done
    starting.cancel()
    await asyncio.wait({starting})
    await backend.close()


async def test_tls(own_triton: TritonServer, triton: TritonServer, tmp_path: Path) -> None:
    """TLS works with the certificate's authority; without it, and with TLS on one side only, the line says what to change."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    (tmp_path / "cert.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
    (tmp_path / "key.pem").write_bytes(certificate.private_key_pem.bytes())
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    own_triton.more = (
        "--grpc-use-ssl=true",
        f"--grpc-server-cert={tmp_path / 'cert.pem'}",
        f"--grpc-server-key={tmp_path / 'key.pem'}",
    )
    await asyncio.to_thread(own_triton.start, "vllm_mock")
    async with started(settings(own_triton, "vllm_mock", tls=True, tls_ca_file=str(tmp_path / "ca.pem"))) as running:
        assert (await running.ask(COMPLETIONS, prompt="secret"))["choices"][0]["text"] == "secret"
    assert "certificate isn't trusted" in await line(settings(own_triton, "vllm_mock", tls=True))
    assert "speaks TLS; set engine.triton.tls=true" in await line(settings(own_triton, "vllm_mock"))
    assert "doesn't speak TLS" in await line(settings(triton, "vllm_mock", tls=True))
    gone = settings(own_triton, "vllm_mock", tls=True, tls_ca_file=str(tmp_path / "gone.pem"))
    assert "No such file" in await line(gone)
