"""Rows that begin alike come one after another, and go to one engine."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from struct import Struct

import pytest
from scheduler_held import make_held

from services.scheduler import sharing
from services.scheduler.sharing import Order, Stretches, arranged

CHAT = "/v1/chat/completions"
_ENTRY = Struct("<QII")


def written(folder: Path, lines: Sequence[bytes]) -> tuple[Path, bytes]:
    """Write an input; gives it and its index."""
    path, at, entries = folder / "input", 0, []
    for number, line in enumerate(lines, 1):
        entries.append(_ENTRY.pack(at, len(line), number))
        at += len(line) + 1
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path, b"".join(entries)


def chat(name: str, *contents: str) -> bytes:
    """Write a line whose name comes before its messages."""
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    body = {"model": "m", "temperature": len(name), "messages": messages, "max_tokens": 3}
    return json.dumps({"custom_id": name, "method": "POST", "url": CHAT, "body": body}, ensure_ascii=False).encode()


def groups_of(order: Order, groups: int) -> list[int]:
    """Tell the groups of rows that were dealt to groups in turns, each once for all neighbours of the same."""
    found = [row % groups for row in order.rows]
    return [group for at, group in enumerate(found) if at == 0 or found[at - 1] != group]


def test_rows_that_begin_alike_become_neighbours(tmp_path: Path) -> None:
    """Rows of several groups that come in turns are put together, whatever stands before their messages; each row stays one."""
    lines = [chat(f"name {row}", f"{row % 7} is the system prompt of these rows. " * 9, f"Ask {row}.") for row in range(70)]
    order = arranged(*written(tmp_path, lines), CHAT)
    assert sorted(order.rows) == list(range(70))
    assert sorted(groups_of(order, 7)) == list(range(7))
    begins = [at for at, common in enumerate(order.common) if common < 50]
    assert begins == list(range(0, 70, 10))


def test_a_prompt_has_its_rows_put_together_too(tmp_path: Path) -> None:
    """Rows of /v1/completions are compared by their prompt."""
    bodies = [{"model": "m", "seed": row, "prompt": f"{row % 3}: it was a dark and stormy night. " * 4} for row in range(12)]
    lines = [json.dumps({"custom_id": f"c{row}", "body": body}).encode() for row, body in enumerate(bodies)]
    assert groups_of(arranged(*written(tmp_path, lines), "/v1/completions"), 3) == [0, 1, 2]


def test_an_order_that_brings_nothing_is_not_taken(tmp_path: Path) -> None:
    """Rows that share nothing, and rows that share one prompt, come as the input has them: its lines are read one after another."""
    dice = random.Random(5)
    alone = [chat(f"c{row}", "".join(dice.choices("abcdefgh ", k=200))) for row in range(60)]
    one = [chat(f"c{row}", "You are of much help. " * 20, "".join(dice.choices("abcdefgh ", k=50))) for row in range(60)]
    for lines in (alone, one):
        assert list(arranged(*written(tmp_path, lines), CHAT).rows) == list(range(60))


def test_turns_of_a_conversation_follow_each_other(tmp_path: Path) -> None:
    """Conversations that grow, each turn a row of its own and all of them shuffled, are put together."""
    turns = [("One may ask what this is about.", "About a conversation.", "I see; go on with it, please.", "It goes on.")] * 4
    rows = [(talk, turn) for talk in range(9) for turn in range(1, 5)]
    random.Random(2).shuffle(rows)
    lines = [chat(f"c{at}", *(f"{talk}. {said}" for said in turns[0][:turn])) for at, (talk, turn) in enumerate(rows)]
    talks = [rows[row][0] for row in arranged(*written(tmp_path, lines), CHAT).rows]
    assert [talk for at, talk in enumerate(talks) if at == 0 or talks[at - 1] != talk] == list(range(9))


def test_a_large_shard_is_put_in_order_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What doesn't fit the memory is put in order in pieces, a line that is larger than a piece among them; every row is there."""
    lines = [chat(f"c{row}", f"{row % 2} " * 60, "x" * (row == 20) * 9_000) for row in range(40)]
    monkeypatch.setattr(sharing, "_PIECE_BYTES", 4_096)
    order = arranged(*written(tmp_path, lines), CHAT)
    assert sorted(order.rows) == list(range(40))
    assert len(order.common) == 40
    assert list(order.rows) != list(range(40))
    assert max(abs(row - at) for at, row in enumerate(order.rows)) < 20


def test_an_input_that_is_lost_has_its_rows_in_order(tmp_path: Path) -> None:
    """Rows whose lines can't be read come as they are: who sends them sees what is wrong. An index may point at nothing."""
    _, index = written(tmp_path, [chat("a", "b")] * 3)
    assert list(arranged(tmp_path / "none", index, CHAT).rows) == [0, 1, 2]
    assert list(arranged(*written(tmp_path, [])[:1], b"".join(_ENTRY.pack(0, 0, row) for row in range(3)), CHAT).rows) == [0, 1, 2]


def test_two_texts_have_in_common_what_they_begin_with() -> None:
    """What texts have in common is counted to the byte."""
    dice = random.Random(3)
    for _ in range(300):
        one, two = (bytes(dice.choices(b"aab", k=dice.randrange(12))) for _ in range(2))
        alike = next((at for at, (left, right) in enumerate(zip(one, two, strict=False)) if left != right), min(len(one), len(two)))
        assert sharing._common(one, two) == alike


def test_an_engine_goes_on_where_it_was_until_its_part_ends() -> None:
    """Each engine takes rows of its own part, one after the other; who has none left takes from the largest, whoever had that."""
    ways = Stretches(Order(range(100)))
    taken: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    dice = random.Random(1)
    for engine in ["a", "b", "c", *dice.choices("abbb", k=1_000)]:
        if (stretch := ways.of(engine)) is not None:
            taken[engine].append(stretch.at)
            stretch.at += 1
    assert not ways
    assert sorted(itertools.chain(*taken.values())) == list(range(100))
    for engine, most in (("a", 8), ("b", 8), ("c", 0)):
        rows = taken[engine]
        assert sum(1 for one, two in itertools.pairwise(rows) if two != one + 1) <= most


def test_a_part_is_cut_where_groups_part() -> None:
    """An order is cut between groups, near its middle, where there is such a place; else in the middle."""
    ways = Stretches(Order(range(40), [0, *([9] * 11), 0, *([9] * 14), 0, *([9] * 12)]))
    first, second = ways.of("a"), ways.of("b")
    assert first is not None
    assert second is not None
    assert (first.at, first.end, second.at, second.end) in [(0, 12, 12, 40), (0, 27, 27, 40)]
    even = Stretches(Order(range(40), [9] * 40))
    assert even.of("a") is not None
    assert (stretch := even.of("b")) is not None
    assert (stretch.at, stretch.end) == (20, 40)


def test_engines_without_a_place_take_rows_in_order() -> None:
    """Engines that don't reuse prefixes share one part; each row comes once, whichever engines ask and whatever is given back."""
    held = make_held(60, recorded=(3, 30))
    first = held.take(5, 1_000) + held.take(5, 1_000)
    assert [attempt.row for attempt in first] == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    held.give_back(first[:2])
    rows = [attempt.row for attempt in first[2:]]
    dice = random.Random(4)
    while held.waiting:
        found = held.take(dice.randrange(1, 4), dice.randrange(1, 40), dice.choice(["", "a", "b"]))
        assert found
        rows += [attempt.row for attempt in found]
    assert sorted(rows) == [row for row in range(60) if row not in (3, 30)]
