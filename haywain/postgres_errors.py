"""What PostgreSQL's errors mean, by SQLSTATE where there is one; a connection that fails has none, only a text."""

from __future__ import annotations

import enum
import re

import psycopg

from haywain import errors

__all__ = ["Trouble", "opening_error", "told", "trouble"]


class Trouble(enum.Enum):
    """What to do about an error."""

    AWAY = enum.auto()
    """The server, or this connection to it, is gone for now: connect again and try again."""
    COLLISION = enum.auto()
    """Two transactions were in each other's way: try again."""
    FULL = enum.auto()
    TEXT = enum.auto()
    """A text that can't be stored."""
    OURS = enum.auto()
    """A mistake of ours."""


_KINDS = {
    "40001": Trouble.COLLISION,  # serialization_failure
    "40P01": Trouble.COLLISION,  # deadlock_detected
    "53100": Trouble.FULL,  # disk_full
    "22021": Trouble.TEXT,  # character_not_in_repertoire
    "0A000": Trouble.AWAY,  # feature_not_supported: a prepared plan of a table that was changed since
    "25006": Trouble.AWAY,  # read_only_sql_transaction: the server became a standby
    "25P03": Trouble.AWAY,  # idle_in_transaction_session_timeout
    "26000": Trouble.AWAY,  # invalid_sql_statement_name: a pooler gave us another server
    "55P03": Trouble.AWAY,  # lock_not_available: another writer holds the lock for too long
    "57014": Trouble.AWAY,  # query_canceled: a statement_timeout
}
_SETTINGS = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|does not exist|is not permitted to log in|permission denied"
    r"|invalid |could not read|certificate|does not support SSL"
)


def trouble(error: psycopg.Error, *, lost: bool) -> Trouble:
    """Classify; `lost` when the connection it came from is closed."""
    state = error.sqlstate or ""
    if state in _KINDS:
        return _KINDS[state]
    # 08 connection, 53 resources, 57P shut down or starting; 58 and XX come with a disk or a server that breaks down
    if lost or state.startswith(("08", "53", "57P", "58")):
        return Trouble.AWAY
    if isinstance(error, psycopg.DataError) and "NUL" in str(error):
        return Trouble.TEXT
    return Trouble.OURS


def told(error: psycopg.Error) -> str:
    """Give the first line of an error's text, for the operator."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def opening_error(error: psycopg.Error, where: str) -> errors.HaywainError:
    """Tell an operator why a database can't be opened: SettingsError for what waiting doesn't cure, else Unavailable."""
    text = f"{where}: {told(error)}"
    refused = (error.sqlstate or "").startswith(("28", "3D", "42501"))
    if refused or (error.sqlstate is None and _SETTINGS.search(told(error))):
        return errors.SettingsError(text)
    return (
        errors.Unavailable(text, retry_after=1)
        if trouble(error, lost=error.sqlstate is None) is Trouble.AWAY
        else errors.HaywainError(text)
    )
