"""The client's one door to HTTP: what is tried again, for how long, and the errors that are left in the end.

    HaywainError
    └── ClientError
        ├── ConnectionLost          nobody answered, or the answer broke off, as often as it was tried
        ├── WaitTimedOut            the batch goes on, only the waiting ended
        ├── BatchFailed             its input isn't valid: nothing ran; `batch` is the object
        └── ApiError                the mesh said no: status_code, code, param, message, request_id
            ├── RequestRefused      of no use to send again unchanged
            │   ├── ObjectMissing   404
            │   └── NoValidRecords  nothing was created: rejected_count, rejected_records
            └── TryLater            429, 5xx: still so after every retry; retry_after

Whatever goes through here may be repeated: reads are harmless, and what creates something carries an idempotency key.
"""

from __future__ import annotations

import datetime
import email.utils
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import h11
import httpx
import msgspec

from haywain.errors import HaywainError
from haywain.rest_types import RejectedRecord

__all__ = [
    "ApiError", "BatchFailed", "ClientError", "ConnectionLost", "NoValidRecords", "ObjectMissing", "RequestRefused", "Rest",
    "Timer", "TryLater", "WaitTimedOut",
]  # fmt: skip

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 8.0
_LONGEST_RETRY_AFTER_SECONDS = 300.0
"""told to stay away for longer, the caller is asked rather than kept waiting"""
_FIRST_CONTACT_RETRIES = 2
"""while this mesh has never answered: the address is likelier wrong than the mesh away for a moment"""


class ClientError(HaywainError):
    """The mesh can't be used."""


class ConnectionLost(ClientError, ConnectionError):
    """The mesh did not answer."""


class WaitTimedOut(ClientError, TimeoutError):
    """The batch did not end in time; it goes on."""


class BatchFailed(ClientError):
    """The batch failed: nothing of it ran."""

    def __init__(self, message: str, batch: Mapping[str, Any]) -> None:
        """`batch` is the batch object, with all of its `errors`."""
        super().__init__(message)
        self.batch = batch


class ApiError(ClientError):
    """The mesh refused."""

    def __init__(self, message: str, *, response: httpx.Response, error: Mapping[str, Any], retry_after: float) -> None:
        """`error` is the inside of the envelope, empty for an answer that has none."""
        super().__init__(message, code=str(error.get("code") or ""), param=str(error.get("param") or ""), retry_after=retry_after)
        self.status_code = response.status_code
        self.request_id = str(response.headers.get("x-request-id", ""))

    def __str__(self) -> str:
        """Tell what one needs to look it up."""
        request = f", request {self.request_id}" if self.request_id else ""
        return f"{self.message} ({' '.join(filter(None, (str(self.status_code), self.code)))}{request})"


class RequestRefused(ApiError):
    """The request can't be fulfilled as it is."""


class ObjectMissing(RequestRefused):
    """No such object, or its content is gone."""


class NoValidRecords(RequestRefused):
    """None of the records of a new batch can run."""

    def __init__(self, message: str, *, response: httpx.Response, error: Mapping[str, Any], retry_after: float) -> None:
        """What was wrong is in `error`, the first hundred records of it."""
        super().__init__(message, response=response, error=error, retry_after=retry_after)
        self.rejected_count: int = error.get("rejected_count") or 0
        self.rejected_records: list[RejectedRecord] = error.get("rejected_records") or []


class TryLater(ApiError):
    """The mesh can't do it now."""


class Timer:
    """The machine's time; a test passes one that doesn't wait."""

    def monotonic(self) -> float:
        """Tell a time in seconds that never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class Patience:
    """The retries of one call."""

    def __init__(self, retries: int, timer: Timer) -> None:
        """Allow `retries` retries, one after another without any progress."""
        self._retries = retries
        self._timer = timer
        self._used = 0

    def wait(self, error: ConnectionLost | TryLater, most: int | None = None) -> None:
        """Wait before the next try; raises `error` when there is none left, or none within `most`."""
        if self._used >= self._retries or (most is not None and self._used >= most):
            raise error
        if error.retry_after > _LONGEST_RETRY_AFTER_SECONDS:
            raise error
        pause = min(_FIRST_PAUSE_SECONDS * 2**self._used, _LONGEST_PAUSE_SECONDS)
        # Those whom one fault sent away together don't come back together.
        self._timer.sleep(max(pause * random.uniform(0.5, 1), error.retry_after * random.uniform(1, 1.1)))  # noqa: S311 - no secret
        self._used += 1

    def renew(self) -> None:
        """Start counting again: something got through."""
        self._used = 0


class Rest:
    """Requests with retries."""

    def __init__(self, client: httpx.Client, retries: int, timer: Timer) -> None:
        """Send by `client`; each call is tried at most `retries` + 1 times."""
        self._client = client
        self._retries = retries
        self.timer = timer
        self._reached = False

    def patience(self, retries: int | None = None) -> Patience:
        """Start a call's count of retries."""
        return Patience(self._retries if retries is None else retries, self.timer)

    def send(self, method: str, path: str, *, retries: int | None = None, **options: Any) -> Any:
        """Send as httpx's `request` does until it gets through; the JSON object that came. Raises ConnectionLost or ApiError.

        `retries` replaces the client's own number.
        """
        patience = self.patience(retries)
        while True:
            try:
                with self.once(method, path, **options) as response:
                    return self._decoded(response)
            except (ConnectionLost, TryLater) as error:
                patience.wait(error, None if self._reached else _FIRST_CONTACT_RETRIES)

    @contextmanager
    def once(self, method: str, path: str, **options: Any) -> Iterator[httpx.Response]:
        """Send once; the successful response, its body still to be read, where a lost connection is a ConnectionLost too."""
        try:
            with self._client.stream(method, path, **options) as response:
                self._reached = True
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield response
        except httpx.TransportError as error:
            raise ConnectionLost(f"{self._client.base_url}: {error or type(error).__name__}") from error
        except h11.LocalProtocolError as error:  # httpx lets it through
            raise ClientError("the file changed while it was sent") from error

    def _decoded(self, response: httpx.Response) -> Any:
        try:
            return msgspec.json.decode(response.read())
        except msgspec.DecodeError as error:
            raise ClientError(f"{response.url} answered {response.status_code} with something that is no JSON") from error


def _refusal(response: httpx.Response) -> ApiError:
    try:
        error = dict(response.json()["error"])
        message = str(error["message"])
    except (ValueError, KeyError, TypeError):
        error, message = {}, response.text.strip()[:200] or f"{response.request.method} {response.url.path} failed"
    status = response.status_code
    # A 409 without this header is a twin of this request that still runs.
    again = {"true": True, "false": False}.get(
        response.headers.get("x-should-retry", ""), status in (408, 409, 429) or status >= 500
    )
    refused = NoValidRecords if error.get("code") == "no_valid_records" else ObjectMissing if status == 404 else RequestRefused
    kind = TryLater if again else refused
    return kind(message, response=response, error=error, retry_after=_retry_after(response.headers.get("retry-after", "")))


def _retry_after(text: str) -> float:
    """Read the header: seconds or a date; 0 when it is neither."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max((until - datetime.datetime.now(until.tzinfo)).total_seconds(), 0.0)
