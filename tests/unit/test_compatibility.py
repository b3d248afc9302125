"""docs/compatibility.md promises nothing without a proof."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
import yaml

from gateway.routes import ROUTES
from haywain.settings import Settings

ROOT = Path(__file__).parent.parent.parent
TESTS = ROOT / "tests"
PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
DISAGREEMENTS = {
    "batches.invalid_rows", "batches.mixed_models", "batches.completion_windows", "batches.one_active_per_file",
    "batches.cancel_conflict", "files.uploaded_status", "batches.check_file_at_create",
}  # fmt: skip


def rows(heading: str | None = None) -> list[list[str]]:
    """Read the tables of a section, or of the page: the cells of each row, without headings."""
    text = PAGE if heading is None else PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for table in lines for line in table.splitlines()[2:]]


@functools.cache
def cases() -> list[str]:
    """List the cases of tests/contract/rest_cases, as their tests' ids are."""
    files = sorted((TESTS / "contract" / "rest_cases").glob("*.yaml"))
    return [f"{file.stem}: {case['case']}" for file in files for case in yaml.safe_load(file.read_text("utf-8"))]


@functools.cache
def functions(file: str) -> frozenset[str]:
    """List the tests of a file."""
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def exists(proof: str) -> bool:
    """Tell whether a test, or exactly one case that begins so, is there."""
    file, _, name = proof.partition("::")
    if file.endswith(".py"):
        return (TESTS / file).is_file() and name.startswith("test_") and name in functions(file)
    return sum(case.startswith(proof) for case in cases()) == 1


PROOFS = sorted({proof for row in rows() for cell in row for proof in re.findall(r"`((?:[a-z0-9]+/test_|[a-z]+: )[^`]+)`", cell)})


@pytest.mark.parametrize("proof", PROOFS)
def test_a_proof_is_there(proof: str) -> None:
    """Each test that the page names exists."""
    assert exists(proof), proof


def test_every_row_has_a_proof() -> None:
    """The last cell of each row is a list of proofs and nothing else."""
    assert len(rows()) > 100
    for row in rows():
        named = re.findall(r"`([^`]+)`", row[-1])
        assert named, row
        assert set(named) <= set(PROOFS), row


def test_every_route_has_a_row() -> None:
    """The routes of the page are those of the API, in its words."""
    listed = [match[1] for row in rows("Routes") if (match := re.match(r"`([A-Z]+ /[^`]*)`$", row[0]))]
    assert sorted(listed) == sorted(f"{route.method} {route.path}" for route in ROUTES)


def test_both_sides_of_each_disagreement_have_a_proof() -> None:
    """Each setting by which the references' habits are chosen has a row, with a proof of either behaviour."""
    found = set()
    for row in rows("Where they disagree"):
        settings = re.findall(r"`([a-z]+\.[a-z_]+)`", row[2])
        found |= set(settings)
        assert settings, row
        assert all(set(re.findall(r"`([^`]+)`", cell)) & set(PROOFS) for cell in row[3:]), row
    assert found == DISAGREEMENTS


def test_settings_are_real() -> None:
    """Each setting that the page names is one."""
    sections = {name: getattr(Settings(), name) for name in ("files", "batches", "scheduler")}
    for section, name in re.findall(r"`(files|batches|scheduler)\.([a-z_]+)`", PAGE):
        assert hasattr(sections[section], name), (section, name)
