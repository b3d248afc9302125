"""The pure parts of the scheduler: suspects, lines, entries, replay, merged models, rates."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from scheduler_held import make_held

from haywain.clock import FakeClock
from haywain.engine.v1 import engine_pb2
from services.scheduler.batch import Attempt, Tally
from services.scheduler.meter import Meter
from services.scheduler.models import merged
from services.scheduler.pieces import Piece, Pieces
from services.scheduler.replay import lines_after, replay, row_prefix
from services.scheduler.results import ResultLines, clean_body, unrun_line
from services.scheduler.rows import BadLine, Input, Lines, Window
from services.scheduler.suspects import Suspects


def numbers(attempts: list[Attempt]) -> list[int]:
    """Tell the rows."""
    return [attempt.row for attempt in attempts]


def test_rows_are_taken_once_and_recorded_ones_skipped() -> None:
    """Rows come in order, bounded in number and bytes; those recorded already never come."""
    held = make_held(8, recorded=(1, 2))
    assert held.waiting == 6
    assert numbers(held.take(2, 1000)) == [0, 3]
    assert numbers(held.take(9, 25)) == [4, 5]
    assert numbers(held.take(9, 1)) == [6]
    assert numbers(held.take(9, 1000)) == [7]
    assert (held.take(9, 1000), held.waiting) == ([], 0)


def test_rows_that_are_given_back_come_first() -> None:
    """A row that was given back is taken again before new ones, with its tries counted."""
    held = make_held(5)
    first = held.take(3, 1000)
    first[1].attempt = 2
    held.give_back(first[1:])
    assert held.waiting == 4
    again = held.take(9, 1000)
    assert numbers(again) == [1, 2, 3, 4]
    assert again[0].attempt == 2


def test_few_suspects_are_tried_at_a_time_and_those_of_two_losses_alone() -> None:
    """What a lost engine had in flight is tried a square root of it at a time; what was lost twice is to be alone, in order."""
    held = make_held(40)
    suspects = Suspects(max_losses=2)
    attempts = held.take(16, 1000)
    for attempt in attempts:
        attempt.losses = 1
    suspects.add(attempts, 1.0)
    assert (suspects.few, suspects.grave) == (4, False)
    tried = suspects.some(4, 1.5)
    assert numbers(tried) == [0, 1, 2, 3]
    beside = held.take(12, 1000)
    for attempt in tried:
        attempt.losses = 2
    for attempt in beside:
        attempt.losses = 1
    suspects.add([*beside, *tried], 2.0)
    assert (suspects.few, suspects.grave, suspects.since) == (4, True, 2.0)
    assert [numbers(suspects.alone(3.0)) for _ in range(5)] == [[0], [1], [2], [3], []]
    assert suspects.since == 3.0
    assert numbers(suspects.some(13, 4.0)) == [*range(16, 28), 4]
    held.batch.stop_reason = 1
    assert not suspects
    assert (suspects.some(9, 9.0), suspects.alone(9.0), suspects.few) == ([], [], 0)


def test_lines_are_read_in_windows(tmp_path: Path) -> None:
    """Lines are read by position, in any order, near and far; what is beyond the end is missing."""
    path = tmp_path / "input"
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(50_000)))
    wanted = [0, 1, 2, 40_000, 40_001, 7, 49_999]
    lines, _ = Input(path).read([(number * 7, 6) for number in wanted])
    assert lines == [b"%06d" % number for number in wanted]
    lines, _ = Input(path).read([(49_999 * 7 + 3, 6), (50_000 * 7, 6)])
    assert lines == [b"999\n", b""]


def test_lines_are_read_ahead(tmp_path: Path) -> None:
    """Neighbours are read with what follows, so that the next lines need no reading."""
    path = tmp_path / "input"
    path.write_bytes(b"".join(b"%06d\n" % number for number in range(50_000)))
    _, window = Input(path).read([(number * 7, 6) for number in range(100, 200)])
    following = [(number * 7, 6) for number in range(200, 300)]
    assert window.holds(following)
    assert window.lines(following) == [b"%06d" % number for number in range(200, 300)]
    assert not window.holds([(99 * 7, 6)])
    assert not window.holds([(50_000 * 7, 6)])
    assert not Window().holds([(0, 6)])


@pytest.mark.parametrize(
    ("body", "merged_body"),
    [
        ({}, {"temperature": 0.5, "max_tokens": 7}),
        ({"temperature": None}, {"temperature": None, "max_tokens": 7}),
        ({"max_completion_tokens": 1}, {"max_completion_tokens": 1, "temperature": 0.5}),
        ({"max_tokens": 2, "temperature": 1}, {"max_tokens": 2, "temperature": 1}),
    ],
)
def test_defaults(body: dict[str, object], merged_body: dict[str, object]) -> None:
    """Defaults are added where a body lacks them."""
    line = json.dumps({"custom_id": 'a"\u2028', "body": body}, ensure_ascii=False).encode()
    custom_id, request = Lines('{"temperature":0.5,"max_tokens":7}').parse(line)
    assert json.loads(request) == merged_body
    assert (json.loads(custom_id), custom_id.isascii()) == ('a"\u2028', True)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"custom_id":1}', b'{"body":{}}', b"\xff"])
def test_lines_that_are_none(line: bytes) -> None:
    """What validation should have refused is told as BadLine."""
    with pytest.raises(BadLine):
        Lines("").parse(line)


def test_result_lines_hold_to_the_contract() -> None:
    """Good lines end in a null error, bad ones in a brace; all are ASCII, on one line, with the ids exact."""
    engine = engine_pb2.Engine(engine_id='100%d"', backend="echo")
    lines = ResultLines(engine, "")
    [attempt] = make_held(300).take(1, 1000)
    attempt.row, attempt.custom_id = 0x12, b'"c"'
    result = engine_pb2.SequenceResult(sequence_id=1, status_code=200, body='{"a":\n"é"}'.encode(), seed=-3)
    line, good = lines.build(row_prefix("batch_ab"), attempt, result, 0)
    assert good
    assert line.startswith(b'{"id":"batch_req_ab_00000012","custom_id":"c","response":{"status_code":200,"request_id":"req_')
    assert line.endswith(b'"error":null}\n')
    assert line.count(b"\n") == 1
    assert line.isascii()
    parsed = json.loads(line)
    assert parsed["response"]["body"] == {"a": "é"}
    assert parsed["response"]["x_provenance"]["engine"] == '100%d"'
    assert parsed["response"]["x_provenance"]["seed"] == -3
    result = engine_pb2.SequenceResult(status_code=0, body=b"x")
    line, good = lines.build(row_prefix("batch_ab"), attempt, result, 0)
    assert not good
    assert line.endswith(b"}}\n")
    parsed = json.loads(line)
    assert parsed["response"]["status_code"] == 500
    assert parsed["response"]["body"]["error"]["code"] == "engine_error"
    assert parsed["error"] == {"code": "engine_error", "message": "the engine gave no reason", "line": 1}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"a":NaN}', b'{"a":"\n"}', b'{"a":"\xff"}', b"{}x", b"[" * 100_000])
def test_bodies_that_are_none(body: bytes) -> None:
    """What is not a JSON object on one line of ASCII, or can't be made one, is refused."""
    assert clean_body(body) is None


def test_replay(tmp_path: Path) -> None:
    """A journal gives back rows and, behind the checkpoint, tokens by shard; a torn end is cut; a row's first line counts."""
    prefix = row_prefix("batch_ab")
    good = prefix + b'%08x","custom_id":"c","response":{"body":{"usage":{"prompt_tokens":%d}}},"error":null}\n'
    bad = unrun_line(prefix, 3, b'"c"', 1, ("x", "y"))
    path = tmp_path / "journal"
    whole = good % (0, 5) + good % (2, 7) + bad + good % (0, 9)
    path.write_bytes(whole + b'{"id":"batch')
    found = replay(path, prefix, 5, 0, [0, 2])
    assert (list(found.recorded), found.end) == ([1, 0, 1, 2, 0], len(whole))
    assert found.tail == {0: Tally(completed=1, input_tokens=5), 1: Tally(completed=1, failed=1, input_tokens=7)}
    found = replay(path, prefix, 5, len(good % (0, 5)), [0, 2])
    assert found.tail == {1: Tally(completed=1, failed=1, input_tokens=7)}
    path.write_bytes(whole + b"\0" * 50 + b"\n" + good % (1, 1))
    assert replay(path, prefix, 5, 0, [0]).end == len(whole)
    assert replay(tmp_path / "none", prefix, 2, 0, [0]) == msgspec.structs.replace(found, recorded=bytearray(2), end=0, tail={})
    lines = Pieces([Piece(str(path), 0, len(whole))])
    assert [piece[1] for piece in lines_after(lines.lines(), 1)] == [4]
    assert b"".join(piece for piece, _ in lines_after(lines.lines(), 3)) == good % (0, 9)


def test_models_of_several_engines_are_one() -> None:
    """A model's entry holds the fields that all its engines honour, the smallest context and every alias."""

    def engine(**terms: object) -> engine_pb2.Engine:
        return engine_pb2.Engine(models=[engine_pb2.ModelDescription(model="m", **terms)])  # type: ignore[arg-type]

    engines = [
        engine(fields=["a", "b"], context_length=8, aliases=["x"]),
        engine(context_length=0),
        engine(fields=["b", "c"], context_length=4, aliases=["y"], deterministic=True),
    ]
    [model] = merged(engines)
    assert (list(model.fields), model.context_length, list(model.aliases)) == (["b"], 4, ["x", "y"])
    assert model.deterministic
    assert list(merged(engines[1:2])[0].fields) == []


def test_rates_are_of_the_last_seconds() -> None:
    """Rates follow what was counted lately and fall to nothing when nothing comes."""
    clock = FakeClock()
    meter = Meter(clock)
    assert meter.rates() == (0, 0)
    for _ in range(10):
        clock.advance(1)
        meter.add(100, 1000)
    assert meter.rates() == pytest.approx((100, 1000))
    clock.advance(30)
    assert meter.rates() == (0, 0)
