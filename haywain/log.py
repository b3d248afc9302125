"""Structured logs: one JSON line an event on standard error (or coloured text on a terminal).

Event names are `noun.verb`. Ids travel in contextvars (`bind`). Prompts, outputs and keys are never logged, only lengths.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import structlog

from haywain import logfiles
from haywain.errors import SettingsError
from haywain.settings import LogSettings

__all__ = ["bind", "configure", "get"]

_encode = msgspec.json.Encoder(enc_hook=repr).encode
_in_any_case = structlog.processors.JSONRenderer()
_LEVELS = ("debug", "info", "warning", "error", "critical")
_FORMATS = ("auto", "json", "text")


def configure(settings: LogSettings, process: str) -> None:
    """Set up logging for a process; `process` is on every line. Raises SettingsError for a word that means nothing."""
    for key, word, known in (("level", settings.level.lower(), _LEVELS), ("format", settings.format, _FORMATS)):
        if word not in known:
            raise SettingsError(f"log.{key} is {word!r}, expected one of: {', '.join(known)}")
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    text = settings.format == "text" or (settings.format == "auto" and sys.stderr.isatty())
    # Plain tracebacks: the pretty ones print local variables, and those hold prompts.
    console = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    renderer: Any = console if text else _as_json
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            partial(_stamp, process),
            structlog.processors.format_exc_info if not text else structlog.processors.StackInfoRenderer(),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(_Lines()),  # type: ignore[arg-type]  # it is only written to
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(level, logging.WARNING), stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")


def _stamp(process: str, _logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    # Not by contextvars: threads, and tasks with a context of their own, haven't those of the process.
    event["process"] = process
    event["timestamp"] = datetime.now(UTC).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
    return event


def _as_json(logger: Any, method: str, event: structlog.typing.EventDict) -> str:
    """Render a line: quickly, unless there is something in it that isn't plain."""
    try:
        line = _encode(event)
    except (TypeError, ValueError, OverflowError, RecursionError):  # text that is no Unicode, a huge number
        line = b"\xff"
    return line.decode() if line.isascii() else str(_in_any_case(logger, method, event))


class _Lines:
    """Standard error, for whatever it takes: logs often share the disk with the data, and a full one must not end the process."""

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError), logfiles.lock:
            sys.stderr.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


def get() -> Any:
    """Make a logger: `log.info("shard.claimed", shard=3)`."""
    return structlog.get_logger()


def bind(**ids: str) -> None:
    """Put ids on every further line of this asyncio task."""
    structlog.contextvars.bind_contextvars(**ids)
