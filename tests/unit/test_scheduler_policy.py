"""Whose rows go next, in pure integers."""

from __future__ import annotations

from collections import Counter

from services.scheduler.policy import NEW_ROWS, Turns


def put(turns: Turns, order: int, *, lane: int = 3, tenant: str = "a", deadline: int = 0, sent: int = 0) -> None:
    """Add a batch."""
    turns.put(order, lane=lane, tenant=tenant, deadline=deadline, sent=sent)


def served(turns: Turns, times: int, rows: int = 10) -> list[int]:
    """Serve whose turn it is, again and again."""
    found = []
    for _ in range(times):
        order = turns.next()
        assert order is not None
        turns.charge(order, rows)
        found.append(order)
    return found


def test_nothing_waits() -> None:
    """Without batches it is nobody's turn."""
    turns = Turns()
    assert (turns.next(), turns.lane(), len(turns)) == (None, None, 0)
    turns.drop(7)


def test_lower_lanes_go_first() -> None:
    """Expedited batches go before standard ones, whatever their deadline or order."""
    turns = Turns()
    put(turns, 1, lane=3, deadline=1)
    put(turns, 2, lane=2, deadline=9, tenant="b")
    assert served(turns, 3) == [2, 2, 2]
    turns.drop(2)
    assert turns.next() == 1


def test_tenants_share_evenly() -> None:
    """Two tenants get the same number of rows, however many batches each has and whatever they take at a time."""
    turns = Turns()
    for order in range(5):
        put(turns, order, tenant="many")
    put(turns, 9, tenant="few")
    rows: Counter[str] = Counter()
    for turn in range(100):
        order = turns.next()
        assert order is not None
        size = 1 + turn * 7 % 13
        turns.charge(order, size)
        rows["few" if order == 9 else "many"] += size
    assert abs(rows["few"] - rows["many"]) <= 13


def test_weights_scale_the_share() -> None:
    """A tenant of weight 3 gets three times the rows of one of weight 1."""
    turns = Turns({"heavy": 3})
    put(turns, 1, tenant="heavy")
    put(turns, 2, tenant="light")
    counted = Counter(served(turns, 400))
    assert counted[1] == 300


def test_idle_time_is_not_saved_up() -> None:
    """A tenant that comes back after a pause shares from then on; it does not catch up."""
    turns = Turns()
    put(turns, 1, tenant="a")
    put(turns, 2, tenant="b")
    served(turns, 10)
    turns.drop(2)
    served(turns, 1000)
    put(turns, 3, tenant="b")
    counted = Counter(served(turns, 100))
    assert abs(counted[1] - counted[3]) <= 1


def test_leaving_and_coming_back_gains_nothing() -> None:
    """A tenant whose batches come and go after every turn still gets its share only."""
    turns = Turns()
    put(turns, 1, tenant="steady")
    rows: Counter[str] = Counter()
    for order in range(2, 102):
        put(turns, order, tenant="hopper")
        for _ in range(2):
            chosen = turns.next()
            assert chosen is not None
            turns.charge(chosen, 10)
            rows["steady" if chosen == 1 else "hopper"] += 10
        turns.drop(order)
    assert abs(rows["steady"] - rows["hopper"]) <= 20


def test_within_a_tenant_the_earliest_deadline_goes_first() -> None:
    """A tenant's batches go by deadline, then by arrival."""
    turns = Turns()
    put(turns, 1, deadline=50)
    put(turns, 2, deadline=10)
    put(turns, 3, deadline=10)
    assert served(turns, 2) == [2, 2]
    turns.drop(2)
    assert served(turns, 1) == [3]
    turns.drop(3)
    put(turns, 1, deadline=5)
    assert len(turns) == 1
    assert served(turns, 1) == [1]


def test_a_small_batch_does_not_wait_for_a_large_one() -> None:
    """A new batch goes before one that had its first rows, and a later deadline doesn't hold it back."""
    turns = Turns()
    put(turns, 1, deadline=1)
    assert served(turns, NEW_ROWS // 100 + 5, rows=100) == [1] * (NEW_ROWS // 100 + 5)
    put(turns, 2, deadline=9)
    assert served(turns, 1, rows=20) == [2]
    turns.drop(2)
    assert turns.next() == 1


def test_small_batches_leave_a_quarter_to_large_ones() -> None:
    """However many new batches come, batches that had their first rows get a quarter of what is sent."""
    turns = Turns()
    put(turns, 0, sent=NEW_ROWS)
    rows: Counter[bool] = Counter()
    for order in range(1, 401):
        put(turns, order)
    for _ in range(400):
        chosen = turns.next()
        assert chosen is not None
        turns.charge(chosen, 20)
        rows[chosen == 0] += 20
        if chosen:
            turns.drop(chosen)
    assert abs(3 * rows[True] - rows[False]) <= 80


def test_what_was_sent_is_not_forgotten() -> None:
    """A large batch that has nothing to send for a moment isn't new when it comes back."""
    turns = Turns()
    put(turns, 1, sent=NEW_ROWS)
    put(turns, 2, deadline=9)
    assert served(turns, 1) == [2]
    turns.drop(1)
    put(turns, 1, sent=NEW_ROWS + 1)
    put(turns, 3, deadline=9, sent=NEW_ROWS)
    turns.drop(2)
    assert served(turns, 2) == [1, 1]
