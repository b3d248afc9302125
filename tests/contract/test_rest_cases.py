"""The REST contract, case by case: rest_cases/*.yaml over HTTP through Envoy, typed counterparts over gRPC through it as well."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from rest_seam import RestMesh
from rest_steps import Case, cases

ALL = dict(cases())


@pytest.mark.parametrize("case", ALL.values(), ids=ALL.keys())
def test_case(case: dict[str, Any], rest_mesh: RestMesh, rest_channel: grpc.Channel) -> None:
    """Each case is the sentence it proves."""
    Case(rest_mesh, rest_channel).run(case["steps"])
