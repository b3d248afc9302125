"""A model's vocabulary: tokens from text and text from tokens. Loading it takes no weights."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

from engine.llamacpp.native import library, loaded

__all__ = ["Special", "Vocabulary"]

_CONTROL: Final = 1 << 0 | 1 << 3  # LLAMA_TOKEN_ATTR_UNKNOWN, _CONTROL: what is tokenised only when special tokens are parsed
_LSTRIP: Final = 1 << 7
_RSTRIP: Final = 1 << 8
_NONE: Final = -1  # LLAMA_TOKEN_NULL


class Special:
    """A control token: how it is written in a prompt, and whether it swallows white space beside it."""

    __slots__ = ("left", "right", "text", "token")

    def __init__(self, token: int, text: str, attributes: int) -> None:
        """`attributes` are llama.cpp's."""
        self.token = token
        self.text = text
        self.left = bool(attributes & _LSTRIP)
        self.right = bool(attributes & _RSTRIP)


class Vocabulary:
    """The vocabulary of a loaded model. Not for two threads at a time."""

    def __init__(self, model: Any) -> None:
        """`model` is a llama_model, which must outlive this."""
        self._model = model
        self._vocab = library.llama_model_get_vocab(model)
        self.size: int = library.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[int, bytes] = {}
        self._ends: dict[int, bool] = {}
        self._buffer = ctypes.create_string_buffer(256)

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Load a GGUF file without its weights. Raises SettingsError."""
        parameters = library.llama_model_default_params()
        parameters.vocab_only = True
        return cls(loaded(path, parameters))

    @property
    def handle(self) -> Any:
        """The llama_vocab."""
        return self._vocab

    def close(self) -> None:
        """Free the model; only for one that `load` made."""
        library.llama_model_free(self._model)

    def metadata(self, key: str) -> str:
        """Tell a value of the file's metadata, empty when there is none."""
        size = library.llama_model_meta_val_str(self._model, key.encode(), self._buffer, len(self._buffer))
        if size < 0:
            return ""
        buffer = ctypes.create_string_buffer(size + 1)
        library.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def number(self, key: str) -> int:
        """Tell a whole number below the architecture's prefix (`block_count`), 0 when there is none."""
        text = self.metadata(f"{self.metadata('general.architecture')}.{key}")
        return int(text) if text.isdigit() else 0

    def kv_bytes_per_token(self, bytes_a_number: float = 2.0) -> int:
        """Tell the bytes of KV cache that a token of context takes."""
        kv_heads = self.number("attention.head_count_kv") or self.number("attention.head_count")
        return int(bytes_a_number * self.number("block_count") * kv_heads * sum(self.head_sizes))

    @property
    def head_sizes(self) -> tuple[int, int]:
        """How many numbers a head's key has, and its value."""
        head = self.number("embedding_length") // max(1, self.number("attention.head_count"))
        return self.number("attention.key_length") or head, self.number("attention.value_length") or head

    @property
    def width(self) -> int:
        """How many numbers an embedding has."""
        return self.number("embedding_length_out") or self.number("embedding_length")

    @property
    def chat_template(self) -> str:
        """The model's Jinja template, empty when it has none."""
        template: bytes | None = library.llama_model_chat_template(self._model, None)
        return template.decode("utf-8", "replace") if template else ""

    @property
    def bos(self) -> int:
        """The token that begins a text, -1 when there is none."""
        return int(library.llama_vocab_bos(self._vocab))

    @property
    def eos(self) -> int:
        """The token that ends a text, -1 when there is none."""
        return int(library.llama_vocab_eos(self._vocab))

    @property
    def adds_bos(self) -> bool:
        """Whether every prompt begins with `bos`."""
        return bool(library.llama_vocab_get_add_bos(self._vocab)) and self.bos != _NONE

    def specials(self) -> list[Special]:
        """List the control tokens, the ones with the longest text first."""
        found = []
        for token in range(self.size):
            attributes = library.llama_vocab_get_attr(self._vocab, token)
            text = self.text(token) if attributes & _CONTROL else ""
            if text:
                found.append(Special(token, text, attributes))
        return sorted(found, key=lambda special: -len(special.text))

    def text(self, token: int) -> str:
        """Tell how the vocabulary writes a token, empty for none."""
        if not 0 <= token < self.size:
            return ""
        text: bytes = library.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def tokenise(self, text: str, *, special: bool, edges: bool = False) -> list[int]:
        """Make tokens; with `special`, the texts of control tokens become those tokens.

        With `edges`, what the model wants at either end of a text is added.
        """
        data = text.encode()
        room = len(data) + 8
        tokens = (ctypes.c_int32 * room)()
        count = library.llama_tokenize(self._vocab, data, len(data), tokens, room, edges, special)
        if count < 0:  # it needs more room than bytes: white space made explicit
            room = -count
            tokens = (ctypes.c_int32 * room)()
            count = library.llama_tokenize(self._vocab, data, len(data), tokens, room, edges, special)
        return tokens[:count]

    def piece(self, token: int) -> bytes:
        """Tell the bytes that a token adds to a text; none for control tokens. A character may span tokens."""
        piece = self._pieces.get(token)
        if piece is None:
            if not 0 <= token < self.size:
                raise ValueError(f"token {token} is not below {self.size}")
            size = library.llama_token_to_piece(self._vocab, token, self._buffer, len(self._buffer), 0, False)
            buffer = self._buffer
            if size < 0:
                buffer = ctypes.create_string_buffer(-size)
                size = library.llama_token_to_piece(self._vocab, token, buffer, -size, 0, False)
            piece = self._pieces[token] = buffer.raw[:size]
        return piece

    def written(self, token: int) -> bytes:
        """Tell how a reader sees a token: its piece, and for a control token, which has none, its name."""
        return self.piece(token) or self.text(token).encode()

    def ends(self, token: int) -> bool:
        """Tell whether a token ends the generation."""
        end = self._ends.get(token)
        if end is None:
            end = self._ends[token] = bool(library.llama_vocab_is_eog(self._vocab, token))
        return end
