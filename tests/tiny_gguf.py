"""A random llama of two layers as a GGUF below 1 MB: what it says is nonsense, but it says it in milliseconds.

Its vocabulary is every byte, a few merges, and control tokens, so it produces broken UTF-8 and ends by itself now and then.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import gguf
import numpy as np

__all__ = ["BYTES", "CONTEXT", "EOS", "IM_END", "IM_START", "TEMPLATE", "THINK", "VOCABULARY", "tiny_gguf"]

CONTEXT = 512
BYTES = 256
MERGES = ["t h", "th e", "i n", "Ġ a", "e r"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOS, IM_START, IM_END = range(BYTES + len(MERGES), BYTES + len(MERGES) + 3)
THINK = IM_END + 1
VOCABULARY = THINK + 1
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_VERSION = 3
"""of this file: raised when what it makes changes"""
_WIDTH, _HEADS, _KV_HEADS, _LAYERS, _HIDDEN = 64, 4, 2, 2, 128


def tiny_gguf(*, template: str | None = TEMPLATE, add_bos: bool = False) -> Path:
    """Give the file's path; made once and kept in the temporary folder."""
    name = f"tiny{'' if template == TEMPLATE else '-other' if template else '-base'}{'-bos' if add_bos else ''}.gguf"
    path = Path(tempfile.gettempdir()) / f"haywain-tiny-{_VERSION}-{os.getuid()}" / name
    if template not in (TEMPLATE, None) or not path.exists():
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / name
            _write(made, template, add_bos)
            made.replace(path)
    return path


def _byte_texts() -> list[str]:
    """Give how byte-level BPE writes each byte: printable ones as they are, the others as characters from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _write(path: Path, template: str | None, add_bos: bool) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny Random")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _write_vocabulary(writer, template, add_bos)
    _write_weights(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_vocabulary(writer: gguf.GGUFWriter, template: str | None, add_bos: bool) -> None:
    tokens = [*_byte_texts(), *(merge.replace(" ", "") for merge in MERGES), *CONTROL, "<think>"]
    normal, control, user = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([normal] * (BYTES + len(MERGES)) + [control] * len(CONTROL) + [user])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(IM_START)
    writer.add_eos_token_id(EOS)
    writer.add_eot_token_id(IM_END)
    writer.add_add_bos_token(add_bos)
    if template:
        writer.add_chat_template(template)


def _write_weights(writer: gguf.GGUFWriter) -> None:
    random = np.random.default_rng(20)

    def matrix(name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        writer.add_tensor(name, (random.standard_normal((rows, columns)) * scale / np.sqrt(columns)).astype(np.float32))

    head = _WIDTH // _HEADS
    matrix("token_embd.weight", VOCABULARY, _WIDTH, 4.0)
    for layer in range(_LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(_WIDTH, np.float32))
        matrix(f"blk.{layer}.attn_q.weight", head * _HEADS, _WIDTH, 2.0)
        matrix(f"blk.{layer}.attn_k.weight", head * _KV_HEADS, _WIDTH, 2.0)
        matrix(f"blk.{layer}.attn_v.weight", head * _KV_HEADS, _WIDTH, 2.0)
        matrix(f"blk.{layer}.attn_output.weight", _WIDTH, head * _HEADS, 2.0)
        matrix(f"blk.{layer}.ffn_gate.weight", _HIDDEN, _WIDTH, 2.0)
        matrix(f"blk.{layer}.ffn_up.weight", _HIDDEN, _WIDTH, 2.0)
        matrix(f"blk.{layer}.ffn_down.weight", _WIDTH, _HIDDEN, 2.0)
    writer.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    matrix("output.weight", VOCABULARY, _WIDTH, 3.0)
