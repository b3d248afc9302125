"""The documents say what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec

from haywain.settings import Settings

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def leaves(tree: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten a tree to dotted keys and JSON values."""
    flat: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= leaves(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = msgspec.json.encode(value).decode()
    return flat


def test_every_setting_is_documented() -> None:
    """docs/settings.md lists every setting with its default, and no other."""
    documented = dict(re.findall(r"^\| `([a-z_.]+)` \| `(.*?)` \|", (DOCS / "settings.md").read_text(), re.MULTILINE))
    assert documented == leaves(msgspec.to_builtins(Settings()))


def defined_names(path: Path) -> set[str]:
    """Every function and class of a file, methods as `Class.method` and by themselves."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (child for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))
            names |= {f"{node.name}.{method.name}" for method in methods}
    return names


def test_the_walk_names_what_exists() -> None:
    """Every `path.py: name` of docs/walk.md is in the code."""
    places = re.findall(r"`([a-z_/]+\.py)`: ((?:`[A-Za-z_.]+`(?:, )?)+)", (DOCS / "walk.md").read_text())
    assert len(places) > 20
    for file, names in places:
        assert (ROOT / file).exists(), file
        missing = set(re.findall(r"`([A-Za-z_.]+)`", names)) - defined_names(ROOT / file)
        assert not missing, (file, missing)


def test_every_route_is_documented() -> None:
    """docs/api.md has a section for each REST route, and none for others."""
    proto = (ROOT / "protos" / "haywain" / "gateway" / "v1" / "gateway.proto").read_text()
    routes = {f"{verb.upper()} {path}" for verb, path in re.findall(r'\b(get|post|delete): "([^"]+)"', proto)}
    documented = re.findall(r"^### ([A-Z]+ /\S*)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(route.replace("{model=**}", "{model}") for route in routes)


def test_links_between_documents_lead_somewhere() -> None:
    """Every relative link of the README and of docs/ names a file, and the heading that it points at."""
    broken = []
    for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            file = (page.parent / name) if name else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append((page.name, target))
    assert not broken


def anchors(file: Path) -> set[str]:
    """Every heading as GitHub links to it."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
