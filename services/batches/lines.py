"""What is wrong with one line of an input: REST.md §4, the first rule that applies.

Runs in the validation process: imports nothing heavy, holds nothing but the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from haywain.openai import asks_for_nothing
from haywain.strict_json import NotJSON
from services.batches.record import Fault

__all__ = ["CONTENT", "CUSTOM_ID_LENGTH", "LineRules", "Remember", "Served", "custom_id_of", "not_json"]

CUSTOM_ID_LENGTH = 512
_QUOTED = 120
_FIELDS = ("custom_id", "method", "url", "body")


class Served(msgspec.Struct, frozen=True):
    """What may be asked of a model under one of its ids.

    `model` is the id that engines know it by; `here`: it serves the batch's endpoint; `fields` None: every one is honoured.
    """

    model: str
    here: bool = True
    fields: frozenset[str] | None = None
    deterministic: bool = True
    missing: bool = False
    """The id is an operator's alias of a model that nobody serves."""


Remember = Callable[[str, int, int], int]


class LineRules:
    """Checks lines one after the other, and knows what the first one asked for."""

    def __init__(
        self, endpoint: str, default_model: str, served: dict[str, Served] | None, *, mixed_models: bool, remember: Remember
    ) -> None:
        """`served` by model id, None to accept any; `remember` is `SeenIds.add`."""
        self._endpoint = endpoint
        self._default_model = default_model
        self._served = served
        self._mixed = mixed_models
        self._remember = remember
        self._check_content = _CONTENT[endpoint]
        self.model = ""
        """As the first line that asks for a model that is served asks for it."""
        self._first = ""

    def common(self, body: dict[str, Any]) -> tuple[str, frozenset[str]] | None:
        """Tell what lines must have in common with one that passed to pass as well: the model that is named, and fields at most.

        None where each line must be looked at.
        """
        name = body.get("model", self._default_model)
        served = self._served.get(name) if self._served is not None else None
        if served is None or served.fields is None:
            return None
        return name, served.fields - {"stream"}

    def check(self, record: Any, line: int, offset: int) -> str | Fault:
        """Check a decoded line; answers the model it runs on, by its canonical id, or what is wrong."""
        if type(record) is not dict:
            return Fault("invalid_json_line", f"This line is not a JSON object but {_kind(record)}.", "", line)
        try:
            custom_id, method, url, body = record["custom_id"], record["method"], record["url"], record["body"]
        except KeyError as missing:
            if (custom_id := custom_id_of(record)) is not None:
                self._remember(custom_id, line, offset)  # later lines with the id of a bad one are to know
            name = missing.args[0]
            return Fault("missing_required_parameter", f"Missing required parameter: '{name}'.", name, line)
        if type(custom_id) is not str or not 0 < len(custom_id) <= CUSTOM_ID_LENGTH:
            return _bad_custom_id(custom_id, line)
        if first := self._remember(custom_id, line, offset):
            message = f"The custom_id {_quote(custom_id)} was used before, on line {first}; each must be unique in its file."
            return Fault("duplicate_custom_id", message, "custom_id", line)
        if method != "POST":
            return Fault("invalid_method", f"The method must be 'POST', but is {_quote(method)}.", "method", line)
        if url != self._endpoint:
            message = f"The url {_quote(url)} is not the endpoint of the batch, '{self._endpoint}'."
            return Fault("invalid_url", message, "url", line)
        return self._check_body(body, line)

    def _check_body(self, body: Any, line: int) -> str | Fault:
        if type(body) is not dict:
            return Fault("invalid_request", f"The body must be an object, but is {_kind(body)}.", "body", line)
        model = body.get("model", self._default_model)
        if type(model) is not str or not model:
            return _bad_model(body, line)
        wrong = self._check_content(body, line)
        if wrong is not None:
            return wrong
        stream = body.get("stream")
        if stream is not None and stream is not False:
            message = "Streaming is not supported in a batch: 'stream' must be false or absent."
            return Fault("streaming_unsupported", message, "body.stream", line)
        served = self._served.get(model) if self._served is not None else Served(model)
        name = _not_honoured(body, served)
        if name is not None:
            message = f"No engine of the model {_quote(model)} honours the parameter {_quote(name)}."
            return Fault("unsupported_parameter", message, f"body.{name[:_QUOTED]}", line)
        if served is None or not served.here:
            return self._not_served(model, served, line)
        if not self._first:
            self.model, self._first = model, served.model
        if served.model != self._first and not self._mixed:
            both = f"the first asks for {_quote(self.model)}, this one for {_quote(model)}"
            return Fault("mismatched_model", f"All lines of a batch must ask for one model: {both}.", "body.model", line)
        return served.model

    def _not_served(self, model: str, served: Served | None, line: int) -> Fault:
        if served is not None and served.missing:
            message = f"The model {_quote(model)} is an alias of {_quote(served.model)}, which is not served."
            return Fault("model_not_found", message, "body.model", line)
        where = f" at {self._endpoint}" if served is not None else ""
        return Fault("model_not_found", f"The model {_quote(model)} is not served{where}.", "body.model", line)


def _not_honoured(body: dict[str, Any], served: Served | None) -> str | None:
    if served is None or served.fields is None or served.fields.issuperset(body):
        return None
    return next((name for name in body if name not in served.fields and not asks_for_nothing(name, body[name])), None)


def custom_id_of(record: Any) -> str | None:
    """Find a line's custom_id, None when it has none that could be one."""
    custom_id = record.get("custom_id") if type(record) is dict else None
    return custom_id if type(custom_id) is str and 0 < len(custom_id) <= CUSTOM_ID_LENGTH else None


def not_json(error: NotJSON, line: int) -> Fault:
    """Make the fault of a line that can't be decoded."""
    return Fault("invalid_json_line", f"This line is not parseable as valid JSON: {error}.", "", line)


def _bad_custom_id(custom_id: Any, line: int) -> Fault:
    is_text = type(custom_id) is str
    measured = f"has {len(custom_id)}" if is_text else f"is {_kind(custom_id)}"
    message = f"The custom_id must be a string of 1 to {CUSTOM_ID_LENGTH} characters, but {measured}."
    return Fault("invalid_custom_id", message, "custom_id", line)


def _bad_model(body: dict[str, Any], line: int) -> Fault:
    if "model" not in body:
        return Fault("invalid_request", "The body has no 'model', and neither has the batch.", "body.model", line)
    model = body["model"]
    found = "is empty" if model == "" else f"is {_kind(model)}"
    return Fault("invalid_request", f"The body's 'model' must be a string that is not empty, but {found}.", "body.model", line)


def _chat(body: dict[str, Any], line: int) -> Fault | None:
    messages = body.get("messages")
    if type(messages) is list and messages:
        return None
    return _bad_content(body, "messages", "a list that is not empty", line)


def _completion(body: dict[str, Any], line: int) -> Fault | None:
    return _texts(body, "prompt", line)


def _embedding(body: dict[str, Any], line: int) -> Fault | None:
    return _texts(body, "input", line)


def _texts(body: dict[str, Any], name: str, line: int) -> Fault | None:
    """Check a text, tokens, or a list of either that is not empty."""
    value = body.get(name)
    if type(value) is str:
        return None
    if type(value) is list and value:
        kinds = set(map(type, value))
        if kinds in ({str}, {int}):
            return None
        if kinds == {list} and all(tokens and set(map(type, tokens)) == {int} for tokens in value):
            return None
    return _bad_content(body, name, "a string, a list of tokens, or a list of either that is not empty", line)


def _bad_content(body: dict[str, Any], name: str, expected: str, line: int) -> Fault:
    found = "is missing" if name not in body else f"is {_kind(body[name])}"
    return Fault("invalid_request", f"The body's '{name}' must be {expected}, but {found}.", f"body.{name}", line)


CONTENT: dict[str, tuple[str, type]] = {
    "/v1/chat/completions": ("messages", list), "/v1/completions": ("prompt", str), "/v1/embeddings": ("input", str)
}  # fmt: skip
"""By endpoint: the member of a body that says what to do, and the type that makes it right when it isn't empty."""

_CONTENT = {"/v1/chat/completions": _chat, "/v1/completions": _completion, "/v1/embeddings": _embedding}
_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if value in ([], {}):
        return f"{_KINDS[type(value)].replace('an ', 'an empty ')}"
    return _KINDS[type(value)]


def _quote(value: Any) -> str:
    """Quote a client's value, cut to a readable length."""
    text = value if type(value) is str else _kind(value)
    cut = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
    return f"'{cut}'" if type(value) is str else cut
