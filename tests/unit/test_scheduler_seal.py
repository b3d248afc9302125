"""Sealing, against the plainest way to say what it should write."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from struct import Struct

import pytest

from services.scheduler.pieces import Piece, Pieces
from services.scheduler.replay import row_prefix
from services.scheduler.results import unrun_line
from services.scheduler.seal import Plan, Sealed, seal

_ENTRY = Struct("<QII")
PREFIX = row_prefix("batch_ab")


def result(row: int, *, good: bool, size: int) -> bytes:
    """Make a journal line."""
    line = PREFIX + b'%08x","custom_id":"c%d","response":{"body":"%b"},"error":' % (row, row, b"x" * size)
    return line + (b"null}\n" if good else b'{"code":"c"}}\n')


def pieces(folder: Path, end: int, *, whole: bool = True) -> tuple[Piece, ...]:
    """Make the results of a journal."""
    return (Piece(str(folder / "journal"), 0, end, whole),)


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_written_once_in_input_order(seed: int, tmp_path: Path) -> None:
    """Completed rows to the output, all others to the error file, both by line number, whatever the journal's order."""
    dice = random.Random(seed)
    count, models, shuffle = dice.randint(1, 400), dice.randint(1, 3), dice.choice([0, 8, 400])
    lines = {number: json.dumps({"custom_id": f"c{number}", "body": {}}).encode() for number in range(1, count + 1)}
    (tmp_path / "input").write_bytes(b"".join(line + b"\n" for line in lines.values()))
    rejected = sorted(dice.sample(range(1, count + 1), dice.choice([0, 0, count // 5])))
    starts = {number: sum(len(line) + 1 for line in list(lines.values())[: number - 1]) for number in lines}
    by_model = [[number for number in lines if number % models == model and number not in rejected] for model in range(models)]
    numbers = [number for run in by_model for number in run]
    entries = b"".join(_ENTRY.pack(starts[number], len(lines[number]), number) for number in numbers)
    bad = {number: b'{"custom_id":null,"error":{"line":%d}}\n' % number for number in rejected}
    (tmp_path / "rejected").write_bytes(b"".join(bad.values()))
    rows = [row for row in range(len(numbers)) if dice.random() < dice.choice([0.5, 1, 1])]
    rows.sort(key=lambda row: row + dice.uniform(0, shuffle))
    recorded = {row: result(row, good=dice.random() < 0.9, size=dice.choice([10, 20_000])) for row in rows}
    journal = b"".join(recorded.values())
    again = b"".join(result(row, good=True, size=1) for row in rows[:3])
    (tmp_path / "journal").write_bytes(journal + again + b"\0\n" + result(0, good=True, size=3))
    firsts = [sum(map(len, by_model[:model])) for model in range(models) if by_model[model]]
    (tmp_path / "index").write_bytes(entries)
    plan = Plan(
        input=str(tmp_path / "input"), index=entries if seed % 2 else tmp_path / "index",
        results=pieces(tmp_path, len(journal + again)), prefix=PREFIX, row_count=len(numbers), models=tuple(firsts),
        unrun=("u", "m"),
        rejected=str(tmp_path / "rejected") if rejected else "", output=str(tmp_path / "output"), error=str(tmp_path / "error"),
    )  # fmt: skip
    sealed = seal(plan)
    wanted: dict[int, bytes] = dict(bad)
    for row, number in enumerate(numbers):
        wanted[number] = recorded.get(row) or unrun_line(PREFIX, row, b'"c%d"' % number, number, ("u", "m"))
    ordered = [wanted[number] for number in sorted(wanted)]
    for told, name, good in ((sealed[0], "output", True), (sealed[1], "error", False)):
        expected = [line for line in ordered if line.endswith(b"null}\n") is good]
        path = tmp_path / name
        content = path.read_bytes() if path.exists() else b""
        assert content == b"".join(expected)
        assert told == Sealed(len(expected), len(content), hashlib.sha256(content).hexdigest())


def test_a_batch_whose_input_is_lost_can_still_be_sealed(tmp_path: Path) -> None:
    """Rows that ran are as they were; those that never ran have no custom_id."""
    (tmp_path / "journal").write_bytes(result(1, good=True, size=1))
    gone = str(tmp_path / "gone")
    plan = Plan(
        input=gone, index=Path(gone), results=pieces(tmp_path, 1 << 30, whole=False), prefix=PREFIX, row_count=3, models=(0,),
        unrun=("u", "m"), output=str(tmp_path / "output"), error=str(tmp_path / "error"),
    )  # fmt: skip
    output, error = seal(plan)
    assert (output.lines, error.lines) == (1, 2)
    failed = [json.loads(line) for line in (tmp_path / "error").read_bytes().splitlines()]
    assert [(line["custom_id"], line["error"]["line"]) for line in failed] == [(None, 1), (None, 3)]


def test_pieces_are_read_as_one_file(tmp_path: Path) -> None:
    """Whatever the files that results lie in, sealing is the same as from one; what isn't committed isn't read."""
    lines = [result(row, good=row != 3, size=10 + row) for row in range(8)]
    (tmp_path / "journal").write_bytes(b"".join(lines))
    late = result(7, good=True, size=99)
    some = []
    for name, rows in (("b", (4, 5)), ("a", (6, 0, 1)), ("c", (2, 3, 7))):
        data = b"".join(lines[row] for row in rows)
        (tmp_path / name).write_bytes(data + late + b"torn")
        half = len(lines[rows[0]])
        some += [Piece(str(tmp_path / name), 0, half), Piece(str(tmp_path / name), half, len(data))]
    told = []
    for number, results in enumerate((pieces(tmp_path, 1 << 30, whole=False), tuple(some))):
        output, error = str(tmp_path / f"output{number}"), str(tmp_path / f"error{number}")
        gone = str(tmp_path / "gone")
        told.append(
            seal(
                Plan(
                    input=gone, index=Path(gone), results=results, prefix=PREFIX, row_count=8, models=(0,), unrun=("u", "m"),
                    output=output, error=error,
                )
            )
        )  # fmt: skip
    assert told[0] == told[1]
    assert (told[0][0].lines, told[0][1].lines) == (7, 1)
    with pytest.raises(OSError, match="cut short"):
        list(Pieces([Piece(str(tmp_path / "a"), 0, 1 << 20)]).lines())
