"""What the Files service learns of bytes that pass by, however they are cut."""

from __future__ import annotations

import hashlib
import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.files.measure import PIECE_BYTES, Measure

BOM = b"\xef\xbb\xbf"
LINES = st.lists(st.sampled_from([b"", b" ", b"\t\r", b"{}", b'{"a":1}', b"[1]", b"x", b"\x1f\x8b", BOM, b"\xef", b"\xc2\x85"]))


def measured(*pieces: bytes) -> Measure:
    measure = Measure(1_000)
    for piece in pieces:
        measure.feed(piece)
    measure.finish()
    return measure


@given(st.sampled_from([b"", BOM]), LINES, st.booleans(), st.lists(st.integers(0, 60)))
def test_cuts_change_nothing(start: bytes, lines: list[bytes], ended: bool, cuts: list[int]) -> None:
    """Size, hash, lines and refusal are those of the whole, wherever it is cut."""
    data = start + b"\n".join(lines) + b"\n" * ended
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    cut = measured(*(data[a:b] for a, b in itertools.pairwise(edges)))
    whole = measured(data)
    assert (cut.size_bytes, cut.sha256, cut.line_count) == (whole.size_bytes, whole.sha256, whole.line_count)
    assert str(cut.refusal) == str(whole.refusal)
    text = data.removeprefix(BOM)
    assert (whole.size_bytes, whole.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert whole.line_count == sum(bool(line.strip()) for line in text.split(b"\n"))


@given(st.sampled_from([b"", BOM, b"\n", BOM + b"\r\n \n"]), LINES)
def test_a_refusal_is_about_the_first_line(start: bytes, lines: list[bytes]) -> None:
    """Bytes can be a batch file exactly when their first line that isn't blank is a JSON object."""
    data = start + b"\n".join(lines)
    text = data.removeprefix(BOM)
    first = next((line.strip() for line in text.split(b"\n") if line.strip()), b"")
    assert (measured(data).refusal is None) == first.startswith(b"{")


def test_a_refusal_is_known_early() -> None:
    """What can't be a batch file is known at its first bytes, not at its end."""
    for start in (b"PK\x03", b"\x1f\x8b\x08", BOM + b"\n\n["):
        measure = Measure(1_000)
        measure.feed(start)
        assert measure.refusal is not None


def test_a_first_line_over_the_limit_is_left_to_validation() -> None:
    """A first line that is too long to hold is not looked into, whether it ends in the same message or never."""
    for data in (b'{"a":' + b"x" * 2_000, b'{"a":' + b"x" * 2_000 + b"\n", b"{" + b" " * 999 + b"x\n"):
        assert measured(data).refusal is None
        assert measured(*(data[at : at + 7] for at in range(0, len(data), 7))).refusal is None


def test_large_pieces_count_like_small_ones() -> None:
    """A message of several pieces has the lines of them all."""
    data = b"\n" * PIECE_BYTES + b"x\n" * PIECE_BYTES + b" \n" * 3 + b"y"
    assert measured(data).line_count == PIECE_BYTES + 1
