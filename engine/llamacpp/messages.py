"""What the engine process and its decoders say to each other, and how it is framed.

A frame is a length in 4 bytes, little-endian, and that many bytes of msgpack: a list of messages. Both ends are of one version
and one machine; the socket pair they talk over is inherited, so nobody else is on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from engine.chances import Chance

__all__ = [
    "LENGTH", "URGENT", "Begin", "Cancel", "Chance", "Delta", "Ended", "Figures", "FromDecoder", "Open", "Ready", "Refused",
    "Sampling", "ToDecoder", "frame", "from_decoder", "to_decoder",
]  # fmt: skip

LENGTH: Final = 4
"""bytes of a frame's length"""
URGENT: Final = 1
"""the last lane for whose answers somebody waits; engine.v1.Lane has the numbers"""


class Sampling(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """How tokens are chosen; the defaults mean greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int = 0


class Open(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """Load the model; the first message to a decoder."""

    path: str
    slots: int
    context_length: int
    batch_tokens: int
    threads: int
    layout: str = "auto"
    """auto, flash, plain, unified, or exact"""
    pooling: str = ""
    """mean, cls or last: what makes a vector of a text; empty: the model generates"""
    pack: int = 0
    """tokens of texts to embed that may share a call; 0: each has its own"""
    cells: int = 0
    """tokens of KV cache that all slots share; 0: as many as fill them all"""
    kv_type: str = "f16"
    """of policy.KV_TYPES"""
    gpu_layers: int = 0
    """of the model, from its end, that a GPU holds; -1: as many as fit"""


class Begin(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True):
    """Run a sequence."""

    run: int
    tokens: bytes
    """the prompt, int32 each; never empty"""
    max_output: int
    stops: list[bytes]
    sampling: Sampling
    lane: int
    stream: bool
    grammar: str = ""
    """GBNF that the text must follow; empty: any text"""
    logprobs: int = -1
    """how many alternatives to tell with each token's log-probability; -1: nothing"""
    shown: list[int] = []
    """control tokens whose names are part of the text"""
    exact: bool = False
    """compute it as if nothing ran beside it or had run before"""
    pack: bool = False
    """a text to embed may share a call"""
    mark: bytes = b""
    """whose first occurrence is told by `Ended.marked`"""


class Cancel(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """End a sequence without an answer; unknown ones are ignored."""

    run: int


class Ready(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """The model is loaded."""

    slots: int
    context_length: int
    gpu_layers: int = 0


class Refused(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """The model can't be loaded; the decoder exits, and starting it again would not help."""

    reason: str


class Delta(msgspec.Struct, array_like=True, tag=True, frozen=True):
    """More text of a streamed sequence."""

    run: int
    text: str
    chances: list[Chance] = []
    """of the tokens in the text, where wanted"""


class Ended(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True):
    """A sequence has ended."""

    run: int
    text: str
    """all of it, or what no Delta told yet"""
    finish: str
    """stop, length, cancelled, error (the logits are no numbers), or stuck (no token fits the grammar)"""
    output_tokens: int
    run_ms: int
    """milliseconds in the slot"""
    cached_tokens: int = 0
    """prompt tokens that were in the KV cache already"""
    chances: list[Chance] = []
    marked: int = -1
    """tokens up to the end of `Begin.mark`; -1: it didn't occur"""
    vector: bytes = b""
    """the embedding, float32 each, of length 1"""


class Figures(msgspec.Struct, array_like=True, tag=True, frozen=True, kw_only=True):
    """What a decoder counted since it told the last time; comes once a second, and when it has no more to do."""

    running: int
    """sequences in slots now"""
    kv_used: int
    """tokens in the KV cache now"""
    generated: int
    """tokens"""
    steps: list[int]
    """steps by the time they took, as tally.STEP_SECONDS has it"""
    step_seconds: float
    """of all of them"""
    library_seconds: float = 0.0
    """of these, inside llama.cpp's evaluation"""


ToDecoder = Open | Begin | Cancel
FromDecoder = Ready | Refused | Delta | Ended | Figures

_encoder = msgspec.msgpack.Encoder()
to_decoder: Final = msgspec.msgpack.Decoder(list[ToDecoder])
from_decoder: Final = msgspec.msgpack.Decoder(list[FromDecoder])


def frame(messages: Sequence[ToDecoder] | Sequence[FromDecoder]) -> bytes:
    """Encode messages as one frame."""
    body = _encoder.encode(messages)
    return len(body).to_bytes(LENGTH, "little") + body
