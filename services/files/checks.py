"""What a file may be called, what it may be for, and how long it may live."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from haywain import errors
from haywain.settings import FilesSettings
from services.files.measure import not_jsonl

__all__ = ["check_expiry", "check_name", "check_purpose", "check_request_id", "lifetime"]

MIN_EXPIRY_SECONDS, MAX_EXPIRY_SECONDS = 3_600, 2_592_000
MAX_NAME_BYTES = 1_200
"""300 characters of the longest kind"""
MAX_REQUEST_ID_BYTES = 512
PURPOSES = (
    "assistants", "assistants_output", "batch", "batch_output", "batch_rejections", "evals", "fine-tune", "fine-tune-results",
    "user_data", "vision",
)  # fmt: skip
"""Those of OpenAI's, and `batch_rejections`."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_name(filename: str, purpose: str, param: str) -> None:
    """Refuse what can't be the name of a file for that purpose. Raises InvalidRequest that names `param`."""
    size = len(filename.encode())
    if not 1 <= size <= MAX_NAME_BYTES:
        raise errors.InvalidRequest(f"The file's name must be 1 to {MAX_NAME_BYTES} bytes, but got {size}.", param=param)
    if _CONTROL.search(filename):
        raise errors.InvalidRequest("The file's name must not hold control characters.", param=param)
    suffix = PurePosixPath(filename).suffix
    if purpose == "batch" and suffix.lower() not in ("", ".jsonl"):
        raise not_jsonl(f"the file's name ends in {suffix[:32]!r}", param)


def check_purpose(purpose: str) -> None:
    """Refuse what is no purpose: a word that nobody looks for is a slip. Raises InvalidRequest."""
    if not purpose:
        raise errors.InvalidRequest("Missing required parameter: 'purpose'.", code="missing_required_parameter", param="purpose")
    if purpose not in PURPOSES:
        known = ", ".join(f"'{word}'" for word in PURPOSES)
        raise errors.InvalidRequest(f"Invalid value: {purpose[:64]!r}. Supported values are: {known}.", param="purpose")


def check_expiry(seconds: int) -> None:
    """Refuse a life too short or too long; 0 stands for the purpose's default. Raises InvalidRequest."""
    param = "expires_after.seconds"
    if seconds and seconds < MIN_EXPIRY_SECONDS:
        message = f"{param} must be at least {MIN_EXPIRY_SECONDS}, but got {seconds}."
        raise errors.InvalidRequest(message, code="integer_below_min_value", param=param)
    if seconds > MAX_EXPIRY_SECONDS:
        message = f"{param} must be at most {MAX_EXPIRY_SECONDS}, but got {seconds}."
        raise errors.InvalidRequest(message, code="integer_above_max_value", param=param)


def check_request_id(request_id: str) -> None:
    """Refuse a request id too long to be kept. Raises InvalidRequest."""
    if (size := len(request_id.encode())) > MAX_REQUEST_ID_BYTES:
        raise errors.InvalidRequest(f"request_id must be at most {MAX_REQUEST_ID_BYTES} bytes, but got {size}.", param="request_id")


def lifetime(seconds: int, purpose: str, settings: FilesSettings) -> int:
    """Tell how many seconds a file lives, 0 for ever: as asked, else by its purpose."""
    return seconds or (settings.batch_expires_after_seconds if purpose == "batch" else 0)
