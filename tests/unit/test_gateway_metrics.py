"""What processes tell becomes one answer, whatever they tell."""

from __future__ import annotations

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from gateway.metrics import Merged
from haywain.telemetry.v1 import telemetry_pb2

Family = telemetry_pb2.Family


def family(name: str, kind: int, *samples: tuple[str, dict[str, str], float]) -> telemetry_pb2.Family:
    """Make a family; samples are suffix, labels, value."""
    made = [telemetry_pb2.Sample(name=name + suffix, labels=labels, value=value) for suffix, labels, value in samples]
    return Family(name=name, help="Rows.", kind=kind, samples=made)  # type: ignore[arg-type]


def merged(*answers: telemetry_pb2.CollectResponse | None) -> str:
    """Merge the answers of processes 0, 1, … and write them; OpenMetrics must be able to, too."""
    merging = Merged()
    for number, answer in enumerate(answers):
        merging.add({"process": str(number)}, answer)
    assert generate_openmetrics(merging).endswith(b"# EOF\n")
    return generate_latest(merging).decode()


def answer(*families: telemetry_pb2.Family) -> telemetry_pb2.CollectResponse:
    """Make a process's answer."""
    return telemetry_pb2.CollectResponse(families=families)


def test_a_family_of_two_processes_is_told_once() -> None:
    """Samples of the same name come together under one heading, each with its process; who is silent is down."""
    counted = family("rows", Family.KIND_COUNTER, ("_total", {"kind": "a"}, 1.0))
    text = merged(answer(counted), answer(counted), None)
    assert text.splitlines() == [
        "# HELP haywain_up 1 when the process answered.",
        "# TYPE haywain_up gauge",
        'haywain_up{process="0"} 1.0',
        'haywain_up{process="1"} 1.0',
        'haywain_up{process="2"} 0.0',
        "# HELP rows_total Rows.",
        "# TYPE rows_total counter",
        'rows_total{kind="a",process="0"} 1.0',
        'rows_total{kind="a",process="1"} 1.0',
    ]


def test_nobody_speaks_for_another() -> None:
    """A label `process` of a process's own is overwritten, and what it says of `haywain_up` is dropped."""
    text = merged(
        answer(
            family("rows", Family.KIND_GAUGE, ("", {"process": "scheduler"}, 1.0)),
            family("haywain_up", Family.KIND_GAUGE, ("", {"process": "scheduler"}, 1.0)),
        )
    )
    assert 'rows{process="0"} 1.0' in text
    assert "scheduler" not in text


@pytest.mark.parametrize(
    "nonsense",
    [
        family("rows", Family.KIND_UNSPECIFIED, ("", {}, 1.0)),
        family("rows", 99, ("", {}, 1.0)),
        family("rows", Family.KIND_COUNTER, ("", {}, 1.0)),
        family("rows", Family.KIND_GAUGE, ("_total", {}, 1.0)),
        family("rows", Family.KIND_GAUGE, ("", {"a b": "x"}, 1.0)),
        family("rows", Family.KIND_GAUGE, ("", {"": "x"}, 1.0)),
        family("ro ws", Family.KIND_GAUGE, ("", {}, 1.0)),
        family("", Family.KIND_GAUGE, ("", {}, 1.0)),
        family("rows\n# TYPE x", Family.KIND_GAUGE, ("", {}, 1.0)),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_left_out(nonsense: telemetry_pb2.Family) -> None:
    """A family that could not be written costs only itself."""
    text = merged(answer(nonsense, family("good", Family.KIND_GAUGE, ("", {}, 1.0))))
    assert 'good{process="0"} 1.0' in text
    assert "rows" not in text


def test_another_kind_under_a_known_name_is_left_out() -> None:
    """The first process that names a family decides what it is."""
    first = family("rows", Family.KIND_GAUGE, ("", {}, 1.0))
    second = family("rows", Family.KIND_COUNTER, ("_total", {}, 2.0))
    text = merged(answer(first), answer(second))
    assert 'rows{process="0"} 1.0' in text
    assert "rows_total" not in text


def test_label_values_are_escaped() -> None:
    """Quotes and line feeds in values break no line."""
    text = merged(answer(family("rows", Family.KIND_GAUGE, ("", {"kind": 'a"\n\\b'}, 1.0))))
    assert 'rows{kind="a\\"\\n\\\\b",process="0"} 1.0' in text.splitlines()
