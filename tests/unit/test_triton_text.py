"""A choice's text: whole characters, and nothing from a stop string on, however it is cut into pieces."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.triton.text import Text


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at these places."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@given(st.text("ab é🙂"), st.lists(st.text("ab é", min_size=1, max_size=3), max_size=3), st.lists(st.integers(0, 200), max_size=8))
def test_pieces_say_what_the_whole_says(text: str, stops: list[str], cuts: list[int]) -> None:
    """The shown pieces are the text up to the first stop string, also when characters and stop strings are cut."""
    shown = Text(stops)
    said = "".join([shown.add(piece) for piece in pieces(text.encode(), cuts)]) + shown.add(b"", last=True)
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    assert said == (text[: min(places)] if places else text)
    assert shown.stopped == bool(places)


def test_nothing_is_kept_back_without_need() -> None:
    """A piece that can't begin a stop string is shown at once."""
    text = Text(["STOP"])
    assert [text.add(b"one S"), text.add(b"ix"), text.add(b" ST"), text.add(b"OPPED")] == ["one ", "Six", " ", ""]
    assert text.stopped


def test_a_model_that_repeats_itself_is_shown_once() -> None:
    """With `accumulates` each piece is the whole so far; only what is new is shown."""
    text = Text([], accumulates=True)
    assert [text.add(b"one"), text.add(b"one two"), text.add(b"one two")] == ["one", " two", ""]


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    """What isn't UTF-8 is shown as U+FFFD, a cut-off character at the end as well."""
    text = Text([])
    assert text.add(b"a\xffb\xc3") + text.add(b"", last=True) == "a�b�"
