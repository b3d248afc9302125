"""A model file from outside."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from engine.llamacpp import weights
from haywain.errors import SettingsError


@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
        ("Qwen3-4B-Q4_K_M.gguf", "qwen3-4b"),
        ("gemma-3-270m-it-F16.gguf", "gemma-3-270m-it"),
        ("phi 4 (mini).gguf", "phi-4-mini"),
        ("model-IQ4_NL.gguf", "model"),
        ("Q8_0.gguf", "q8_0"),
        ("模型.gguf", "model"),
    ],
)
def test_the_id_is_the_name_without_the_quantisation(file: str, model: str) -> None:
    """A model goes by its file's name as a slug, and never by an empty one."""
    assert weights.model_ids(Path("/models") / file, "")[0] == model


def test_other_names_are_aliases() -> None:
    """The file's own spellings and general.name mean the same model; none is listed twice, nor the id itself."""
    model, aliases = weights.model_ids(Path("SmolLM2-135M-Instruct.Q4_1.gguf"), "Smollm2 135M 8k")
    assert model not in aliases
    assert aliases == ["SmolLM2-135M-Instruct.Q4_1", "SmolLM2-135M-Instruct", "smollm2-135m-8k"]
    assert weights.model_ids(Path("tiny.gguf"), "Tiny") == ("tiny", [])


def test_what_is_no_gguf_is_told_in_one_line(tmp_path: Path) -> None:
    """Unset, missing, a folder, another format: each has its own clear line."""
    other = tmp_path / "model.bin"
    other.write_bytes(b"PK\x03\x04 and so on")
    cases = {
        Path(): "model_path is not set",
        tmp_path / "missing.gguf": "No such file",
        tmp_path: "directory",
        other: "not a GGUF file",
    }
    for path, reason in cases.items():
        with pytest.raises(SettingsError, match=reason) as raised:
            weights.check(path)
        assert "\n" not in raised.value.message


def test_the_digest_is_the_files(tmp_path: Path) -> None:
    """The digest is the SHA-256 of all bytes."""
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF" * 1_000)
    assert weights.digest(file) == f"sha256:{hashlib.sha256(b'GGUF' * 1_000).hexdigest()}"
