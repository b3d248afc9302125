"""Files that are no model, or not the whole of one: one clear line at the start, exit status 78, nothing left behind."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
import tiny_gguf
from llamacpp_running import Results, decoders, settings

from engine.llamacpp.backend import create
from haywain.errors import SettingsError


def spoilt(folder: Path, how: str) -> Path:
    """Write a file that is spoilt: the first part of a good one (`0.5`: of its bytes; `24`: bytes), or something else."""
    path = folder / "model.gguf"
    content = tiny_gguf.tiny_gguf().read_bytes()
    if how == "missing":
        return path
    if how == "directory":
        path.mkdir()
        return path
    if how == "html":
        content = b"<!DOCTYPE html><html>404</html>"
    elif how == "version":
        content = content[:4] + b"\xff\xff\xff\x7f" + content[8:]
    elif how == "metadata":
        content = content[:24] + b"\xff" * 64 + content[88:]
    else:
        content = content[: int(len(content) * float(how)) if "." in how else int(how)]
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "No such file"),
        ("directory", "Is a directory"),
        ("html", "is not a GGUF file"),
        ("0", "is not a GGUF file"),
        ("3", "is not a GGUF file"),
        ("4", "can't be loaded"),
        ("24", "can't be loaded"),
        ("0.001", "can't be loaded"),
        ("0.02", "can't be loaded"),
        ("0.1", "can't be loaded"),
        ("0.5", "can't be loaded"),
        ("0.999", "can't be loaded"),
        ("version", "can't be loaded"),
        ("metadata", "can't be loaded"),
    ],
)
async def test_a_file_that_is_no_whole_model_is_told_in_one_line(tmp_path: Path, how: str, reason: str) -> None:
    """Wherever it is cut off, and whatever is in it, the line names the file and says what is wrong; no process is left."""
    path = spoilt(tmp_path, how)
    with pytest.raises(SettingsError) as raised:
        async with asyncio.timeout(60):
            await create(settings(path)).start(Results())
    assert "\n" not in raised.value.message
    assert str(path) in raised.value.message
    assert reason in raised.value.message
    assert not decoders()


async def test_an_engine_of_a_truncated_model_ends_with_status_78(tmp_path: Path, data_dir: Path) -> None:
    """The process says why in its last line and ends as one whose settings are wrong: no supervisor tries it again and again."""
    path = spoilt(tmp_path, "0.5")
    command = ["-m", "haywain", "engine", "--data", str(data_dir), "--set", f"engine.llamacpp.model_path={path}"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.PIPE)
    try:
        _, said = await asyncio.wait_for(process.communicate(), 90)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 78, said
    last = said.decode().strip().splitlines()[-1]
    assert str(path) in last
    assert "can't be loaded" in last
