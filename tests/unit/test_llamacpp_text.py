"""Bytes to text."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.llamacpp.text import Text

STOPS = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=4)


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.binary(max_size=40), st.lists(st.integers(0, 99), max_size=8))
def test_streamed_text_equals_the_whole(data: bytes, cuts: list[int]) -> None:
    """Whatever the bytes and wherever tokens cut them, the deltas join to the text decoded at once."""
    text = Text()
    told = []
    for piece in _pieces(data, cuts):
        assert not text.add(piece)
        told.append(text.take())
    told.append(text.rest())
    assert "".join(told) == data.decode("utf-8", "replace")


@given(st.text(alphabet="abcé", max_size=30), STOPS, st.lists(st.integers(0, 99), max_size=10), st.booleans())
def test_the_text_ends_where_the_first_stop_string_begins(content: str, stops: list[str], cuts: list[int], stream: bool) -> None:
    """Stop strings are found over any token borders, nothing of them is shown, and streaming changes nothing."""
    text = Text([stop.encode() for stop in stops])
    told = []
    fed = b""
    for piece in _pieces(content.encode(), cuts):
        fed += piece
        if text.add(piece):
            break
        if stream:
            told.append(text.take())
    else:
        assert not any(stop in content for stop in stops)
        assert "".join([*told, text.rest()]) == content
        return
    told.append(text.rest())
    places = [place for stop in stops if (place := fed.find(stop.encode())) >= 0]
    assert "".join(told).encode() == fed[: min(places)]


def test_half_characters_and_half_stop_strings_are_held_back() -> None:
    """What may still become something else is not told yet."""
    text = Text([b"END"])
    text.add("né".encode()[:-1])
    assert text.take() == "n"
    text.add("é".encode()[1:] + b" E")
    assert text.take() == "é "
    text.add(b"N")
    assert text.take() == ""
    text.add(b"O")
    assert text.take() == "ENO"


def test_a_cut_off_character_is_replaced() -> None:
    """An answer that ends inside a character ends with U+FFFD."""
    text = Text()
    text.add("€".encode()[:2])
    assert text.take() == ""
    assert text.rest() == "\ufffd"
