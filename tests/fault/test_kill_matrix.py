"""The kill matrix: a process dies at a named point of its code, and what was promised holds: over both databases.

One mesh a database plays all scenes. Each arms its point, does what passes it, waits for the end, and asserts the law; the last
test looks at what all these deaths have left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from crash_batches import BatchScenes
from crash_cases import CASES, Case
from crash_files import FileScenes
from crash_stage import Stage
from mesh import until
from postgres_fixture import PostgresServer


@pytest.fixture(scope="module")
def stage(request: pytest.FixtureRequest, haywain: Path) -> Iterator[Stage]:
    """Give one mesh for all scenes over a database."""
    url = ""
    if request.param != "sqlite":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.database()
    stage = Stage(
        haywain, url, *(("--replicas", "scheduler=2", "--set", "scheduler.lease_seconds=2") if request.param == "two" else ())
    )
    with stage.mesh:
        yield stage


class AllScenes(BatchScenes, FileScenes):
    """What can be played."""


FIRST_CASES = list({case.point: case for case in reversed(CASES)}.values())[::-1]
"""One for each point."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("stage", ["sqlite"], indirect=True, scope="module")
def test_a_death_costs_nothing(stage: Stage, case: Case) -> None:
    """Whatever was answered holds, what wasn't is done once when it is asked for again, and no recorded row runs again."""
    getattr(AllScenes(stage, case), case.scene)()


@pytest.mark.parametrize("case", FIRST_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("stage", ["postgresql"], indirect=True, scope="module")
def test_a_death_costs_nothing_over_postgresql(stage: Stage, case: Case) -> None:
    """The same."""
    getattr(AllScenes(stage, case), case.scene)()


TWO_CASES = [case for case in CASES if case.point.startswith("scheduler:") and case.scene in ("batch", "large", "cancel")]


@pytest.mark.parametrize("case", TWO_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("stage", ["two"], indirect=True, scope="module")
def test_a_death_of_one_of_two_schedulers_costs_nothing(stage: Stage, case: Case) -> None:
    """The same."""
    getattr(AllScenes(stage, case), case.scene)()


@pytest.mark.parametrize("stage", ["sqlite", "postgresql", "two"], indirect=True, scope="module")
def test_nothing_is_left_of_the_dead(stage: Stage) -> None:
    """Every batch ends and is settled, every file can be read, and a blob has a record, or an intent, or is young."""
    scene = AllScenes(stage, Case("", ""))
    until("all batches are settled", lambda: not stage.sql("batches", "select batch_id from batches where settled = 0"))
    batches = stage.sql("batches", "select batch_id, status from batches")
    assert {status for _, status in batches} <= {"completed", "cancelled", "expired"}
    assert not list(stage.orders.iterdir())
    whole = {row[0] for row in stage.sql("files", "select id from files where has_bytes = 1")}
    for file in (file for file in scene.files() if file["id"] in whole):
        content = scene.content(file["id"])
        assert isinstance(content, bytes), (file, content)
        assert len(content) == file["bytes"]
    keys = {path.name for path in stage.blobs.glob("[0-9a-f][0-9a-f]/*")}
    known = {row[0] for row in stage.sql("files", "select blob_key from files where has_bytes = 1")}
    assert known <= keys
    intents = {row[0] for row in stage.sql("batches", "select batch_id from intents")}
    orphans = {key for key in keys - known if key.partition("-")[2] not in intents}
    assert all(key.startswith(("input-", "part_")) for key in orphans), orphans
    for key in orphans:
        stage.age(stage.blob(key))
    stage.mesh.kill("files")
    until("the orphans are gone", lambda: not any(stage.blob(key).exists() for key in orphans))
    assert not stage.sql("scheduler", "select batch_id from submissions")
    assert not stage.sql("scheduler", "select batch_id from shards")
