"""Settings of engines: `[engine]` and a table for each backend. Part of the tree in haywain/settings.py."""

from __future__ import annotations

import msgspec

__all__ = [
    "EchoSettings", "EngineSettings", "LlamaCppSettings", "Section", "TritonContractSettings", "TritonSettings", "UpstreamSettings",
]  # fmt: skip


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the settings file."""


class EchoSettings(Section, frozen=True):
    """`[engine.echo]`"""

    model: str = "echo"
    slots: int = 128
    ms_per_row: float = 0.0
    ms_per_token: float = 0.0
    fail_every: int = 0
    """every n-th row answers 500; 0 for none"""
    fail_containing: str = ""
    """rows whose text holds this answer 500"""
    die_containing: str = ""
    """a row whose text holds this kills the process"""
    hang_containing: str = ""
    """rows whose text holds this never answer"""
    run_log: str = ""
    """a file that gets one line a row run: what tests count executions by"""


class LlamaCppSettings(Section, frozen=True):
    """`[engine.llamacpp]`"""

    model_path: str = ""
    """a GGUF file"""
    model: str = ""
    """id that requests name; empty: the file's name without its quantisation, made a slug"""
    workers: int = 0
    """decoder processes; 0: one a core, a single one where a GPU holds layers"""
    threads: int = 1
    """threads a decoder process"""
    gpu_layers: int = -1
    """layers of the model that a GPU holds; -1: as many as fit, none where there is no GPU; 0: none"""
    slots: int = 0
    """sequences a decoder process decodes together; 0: 16, or fewer so that all decoders' KV caches take 1 GiB at most"""
    context_length: int = 0
    """tokens a sequence; 0: the model's own, at most 2,048"""
    kv_tokens: int = 0
    """tokens of KV cache that a decoder's slots share; 0: each slot has context_length tokens of its own"""
    kv_type: str = "f16"
    """what numbers the KV cache has: f16, or q8_0: half the memory, a little other text, and the layout flash only"""
    batch_tokens: int = 192
    """tokens a step takes: one of every running sequence, the rest of prompts; with fewer, nobody waits long for a step to end"""
    transcode: str = "auto"
    """run a Q4_1 or Q5_1 model as a 16-bit copy, kept in the cache folder: auto (copies up to 1 GiB, without a GPU), on, off"""
    layout: str = "auto"
    """how attention is computed: auto (by the rows at hand; with a GPU flash), flash, plain, unified"""
    deterministic: bool = False
    """no row's text depends on what runs beside it, as if each batch had asked for it; slower"""
    pooling: str = "auto"
    """what makes a vector of a text: auto (as the model's file says), mean, cls, last; none: the model generates"""
    pack_tokens: int = 64
    """of a batch with `pack`, texts to embed share calls of so many tokens, which changes the last digits of vectors; 0: never"""
    reasoning: str = "auto"
    """answers may begin with reasoning in <think> tags, which is told apart: auto (as the model's template shows), on, off"""


class UpstreamSettings(Section, frozen=True):
    """`[engine.upstream]`"""

    url: str = "http://127.0.0.1:8000/v1"
    """of an OpenAI-compatible server, with its /v1"""
    key_file: str = ""
    """a file whose one line is the API key; empty: none is sent"""
    ca_file: str = ""
    """certificates (PEM) to trust instead of the system's"""
    models: tuple[str, ...] = ()
    """which of its models are served; empty: all that it lists"""
    endpoints: tuple[str, ...] = ()
    """what they serve; empty: it is asked at the start"""
    fields: tuple[str, ...] = ()
    """request fields that it honours; all others are refused by name. Empty: every field is passed on"""
    slots: int = 64
    """requests at the same time; fewer while it is busy"""
    latency_seconds: float = 0.0
    """an answer that takes longer counts as a sign of too many requests; 0: none does"""
    timeout_seconds: float = 600.0
    """how long it may send nothing"""
    probe_seconds: float = 10.0
    """when nothing comes for so long while rows run, its models are asked for; no answer for as long: it is away. 0: never asked"""
    answer_bytes: int = 16 * 1024 * 1024
    """an answer, or an event of a stream, may have so many bytes; a row with a larger one fails"""
    hold_seconds: float = 30.0
    """while it is away or busy, how long a row waits here before it goes back, to another engine if there is one"""
    start_seconds: float = 10.0
    """how long a start waits for it"""


class TritonContractSettings(Section, frozen=True):
    """`[engine.triton.contract]`: names of a model's tensors by what they carry; all empty: found from the model's own"""

    prompt: str = ""
    text: str = ""
    """the output with the answer"""
    embedding: str = ""
    """or the output with a vector"""
    max_tokens: str = ""
    temperature: str = ""
    top_p: str = ""
    top_k: str = ""
    min_p: str = ""
    seed: str = ""
    stop: str = ""
    presence_penalty: str = ""
    frequency_penalty: str = ""
    repeat_penalty: str = ""
    parameters: str = ""
    """an input that takes these as JSON, by vLLM's names"""
    stream: str = ""
    """an input that asks for the answer token by token"""
    finish_reason: str = ""
    input_tokens: str = ""
    output_tokens: str = ""
    constants: dict[str, str] = {}
    """other inputs, which have the same value in every request"""


class TritonSettings(Section, frozen=True):
    """`[engine.triton]`"""

    url: str = "127.0.0.1:8001"
    """host:port of the server's gRPC"""
    model: str = ""
    """its name in Triton; empty: the only one there that fits a contract"""
    version: str = ""
    """empty: the newest that is served"""
    served_as: str = ""
    """id that requests name; empty: the name in Triton"""
    slots: int = 0
    """requests that are in Triton at the same time; 0: by the model's configuration, 64 where that doesn't say"""
    template: str = ""
    """chat template: a Jinja file, a tokenizer_config.json, or a folder with one of them; empty: no chats"""
    template_bos: bool = True
    """render the template's beginning-of-text token; off where the model's tokenizer adds it by itself"""
    max_tokens: int = 1_024
    """tokens of a chat's answer when the request doesn't say"""
    context_length: int = 0
    """shown to clients; 0: unknown"""
    request_seconds: float = 600.0
    """a request that isn't answered is stopped and tried again after so long"""
    probe_seconds: float = 20.0
    """when the server doesn't say for so long whether the model is ready, it is away, and what it has is sent again"""
    hold_seconds: float = 30.0
    """while Triton is away or full, how long a row waits here before it goes back, to another engine if there is one"""
    tls: bool = False
    tls_ca_file: str = ""
    """certificates (PEM) to trust instead of the system's"""
    tls_cert_file: str = ""
    """this client's own certificate and key, where the server asks for them"""
    tls_key_file: str = ""
    contract: TritonContractSettings = TritonContractSettings()


class EngineSettings(Section, frozen=True):
    """`[engine]`"""

    address: str = ""
    id: str = "engine-0"
    backend: str = "llamacpp"
    """llamacpp, triton, upstream, echo"""
    echo: EchoSettings = EchoSettings()
    llamacpp: LlamaCppSettings = LlamaCppSettings()
    triton: TritonSettings = TritonSettings()
    upstream: UpstreamSettings = UpstreamSettings()
