"""A copy of a model whose weights have a format that is fast on a CPU, made once and kept.

    python -m engine.llamacpp.transcode SOURCE TARGET

Q4_1 and Q5_1 have no kernel for many rows at once on a CPU; the same weights as 16-bit numbers take three times the memory and half
the time. They are rounded to 11 bits, of which the quantised ones have 4 or 5, and the answers come nearer to the exact ones,
because nothing is quantised on the way. Weights are never made smaller. The copy is named by the digest of its source.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Final

from engine.llamacpp.native import complaints, library
from engine.llamacpp.vocabulary import Vocabulary
from haywain import demo_model, log, orphans
from haywain.errors import SettingsError

__all__ = ["MARK", "MODES", "SLOW_FORMATS", "copied", "wanted"]

MODES: Final = ("auto", "on", "off")
MARK: Final = "+f16"
"""behind the digest of a model that runs as such a copy"""
SLOW_FORMATS: Final = frozenset({3, 9})
"""general.file_type of Q4_1 and Q5_1"""
_F16: Final = 1
_GROWTH: Final = 3.3
"""bytes of the copy to those of the source, at most"""
_MOST_BYTES: Final = 2**30
"""of a copy that is made without being asked for: larger ones take long to make, and much memory"""
_SECONDS: Final = 600.0
_STALE_SECONDS: Final = 3_600.0
_log = log.get()


def wanted(mode: str, path: Path, vocabulary: Vocabulary) -> bool:
    """Tell whether a model should run as a copy. Raises SettingsError for a mode that isn't one."""
    if mode not in MODES:
        raise SettingsError(f"engine.llamacpp.transcode is {mode!r}, expected one of: {', '.join(MODES)}")
    form = vocabulary.metadata("general.file_type")
    slow = form.isdigit() and int(form) in SLOW_FORMATS
    return slow and (mode == "on" or (mode == "auto" and path.stat().st_size * _GROWTH <= _MOST_BYTES))


async def copied(path: Path, digest: str) -> Path | None:
    """Give the copy's path, after making it where there is none; None when that failed, which is logged."""
    folder = demo_model.cached().parent / "transcoded"
    target = folder / f"{digest.removeprefix('sha256:')}-f16.gguf"
    if target.exists():
        return target
    began = time.monotonic()
    try:
        await asyncio.to_thread(_make_room, folder)
        # In a process of its own: the library may end it. It writes beside the target, which is there whole or not at all.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "engine.llamacpp.transcode", str(path), str(target)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | {orphans.PARENT_VARIABLE: str(os.getpid())},
        )
    except OSError as error:
        _log.warning("model.not_transcoded", reason=str(error))
        return None
    try:
        _, said = await asyncio.wait_for(process.communicate(), _SECONDS)
    except BaseException as error:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if not isinstance(error, TimeoutError):
            raise
        said = b"it took too long"
    if process.returncode != 0:
        reason = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        _log.warning("model.not_transcoded", status=process.returncode, reason=reason[:500])
        return None
    _log.info("model.transcoded", seconds=round(time.monotonic() - began, 1), path=str(target))
    return target


def _make_room(folder: Path) -> None:
    """Make the folder, and remove what was left by processes that were killed."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):  # removed, or renamed, by who makes room or a copy at the same time
            if time.time() - part.stat().st_mtime > _STALE_SECONDS:
                part.unlink()


def _transcode(source: Path, target: Path) -> str:
    """Write the copy; tell what went wrong, nothing if all is well."""
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = _F16
    parameters.allow_requantize = True
    parameters.nthread = os.cpu_count() or 1
    try:
        if library.llama_model_quantize(str(source).encode(), str(part).encode(), parameters) != 0:
            return complaints()
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as error:
        return str(error)
    finally:
        part.unlink(missing_ok=True)
    return ""


if __name__ == "__main__":
    orphans.die_with_parent()
    sys.exit(_transcode(Path(sys.argv[1]), Path(sys.argv[2])) or 0)
