"""What haywain.strict_json takes and refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haywain.strict_json import NotJSON, decode

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "data",
    [
        b"NaN", b"[Infinity]", b"[-Infinity]", b"[1e400]", b"[-1e400]", b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"',
        b'{"\\ud800":1}', b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\x80"', b'"a\x00b"', b'"a\x1fb"', b"[01]", b"[1.]", b"[.5]",
        b"[+1]", b"[1]x", b"[1,]",
        b'{"a":1,}', b"{'a':1}", b"{1:2}", b"tru", b"", b" ", b"\xef\xbb\xbf{}", b'"\\x"', b"\x0b1", b'{"a":1}\x00',
        b'{"a":1', b"{}{}",
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused(data: bytes) -> None:
    """NaN, infinities, overflow, lone surrogates, bad UTF-8, control characters and every slip of syntax are refused."""
    with pytest.raises(NotJSON):
        decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":2}', b'{"a":1,"\\u0061":2}', b'{"a" : 1, "a"\t: 2}', b'{"a":1,"a":"\\u0022\\u0022"}', b'{"a":"\\"\\"","a":1}',
        b'[{"b":{"c":1,"c":1}}]', b'{"":1,"":2}', b'{"a":{"x":1},"a":{"y":"\\u003A"}}', b'{"a":1,"a":"\\u003a"}',
        b'{"a":1,"b":2,"a":"b\\":"}',
    ],
)  # fmt: skip
def test_duplicate_keys_are_refused_by_name(data: bytes) -> None:
    """A key that is twice in one object is refused, however it is spelt and whatever quotes stand around it."""
    with pytest.raises(NotJSON, match="duplicate key"):
        decode(data)


def test_the_same_key_in_two_objects_is_fine() -> None:
    """Only keys of one and the same object clash."""
    assert decode(b'[{"a":{"a":1}},{"a":2}]') == [{"a": {"a": 1}}, {"a": 2}]


def test_escaped_quotes_and_colons_are_no_duplicates() -> None:
    """Quotes and colons inside strings, however they are written, are content."""
    assert decode(b'{"a":"\\u003a\\u003A:"}') == {"a": ":::"}
    assert decode(b'{"a":"\\u0022:","b":"\\":","c\\"":"\\\\u0022"}') == {"a": '":', "b": '":', 'c"': "\\u0022"}


def test_integers_keep_all_their_digits() -> None:
    """Nothing is rounded through a float."""
    assert decode(b"[9007199254740993,123456789012345678901234567890]") == [9007199254740993, 123456789012345678901234567890]


def test_an_integer_past_every_limit_is_refused_and_not_a_crash() -> None:
    """More digits than Python converts are refused in words."""
    with pytest.raises(NotJSON):
        decode(b"[" + b"9" * 10_000 + b"]")


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[" * 20_000 + b"]" * 20_000, b'{"a":' * 20_000 + b"1" + b"}" * 20_000])
def test_deep_nesting_is_refused_and_not_a_crash(data: bytes) -> None:
    """Nesting past the stack is refused in words."""
    with pytest.raises(NotJSON):
        decode(data)


@pytest.mark.parametrize(
    ("data", "why"),
    [(b'"\\ud800"', "surrogate"), (b'["\xff"]', "UTF-8 at byte 2"), (b"", "nothing"), (b"[1,]", "trailing comma")],
)
def test_the_message_says_why(data: bytes, why: str) -> None:
    """A refusal names its cause."""
    with pytest.raises(NotJSON, match=why):
        decode(data)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_every_json_value_survives(value: Any, ascii_only: bool, indent: int | None) -> None:
    """Whatever a standard encoder writes comes back equal."""
    try:
        data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8")
    except UnicodeEncodeError:
        return
    assert decode(data) == value


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), VALUES, min_size=1, max_size=4), st.data())
def test_a_repeated_member_is_always_found(members: dict[str, Any], data: st.DataObject) -> None:
    """Whatever the other members are, a repeated key is refused."""
    key = data.draw(st.sampled_from(sorted(members)))
    other = data.draw(VALUES)
    pairs = [*members.items(), (key, other)]
    text = "{" + ",".join(f"{json.dumps(k)}:{json.dumps(v)}" for k, v in data.draw(st.permutations(pairs))) + "}"
    with pytest.raises(NotJSON):
        decode(text.encode())
