"""The product speaks plain English: one name for one class, and no mannerisms in what it prints."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = (
    *("agentlink", "base", "checkpoints", "console", "container_mgr", "controller", "measure"),
    *("ocs_driver", "pki", "probe", "readings", "recorder", "scheduler", "sitefile", "testbed"),
)
PUBLISHED = {"State"}
"""Names that the REST schema has for classes."""
MANNERISMS = re.compile(
    r"\b(?:is|are) (?:no|(?-i:none))\b(?! (?:longer|more|less|fewer)\b)"
    r"|\bthere (?:is|are) (?:no|none)\b|\b(?:that|those) of none\b"
    r"|(?<!`)\b(?:nobody|somebody|whoever|afresh|anew|for ever)\b(?![`:])",
    re.IGNORECASE,
)
"""Denied nouns, people for processes, and old words."""
PEOPLE = re.compile(r"_*(?:hear|know|learn|look|say|take|tell|told|want)")
"""Names of functions that do not say what happens: it is read, polled, reported or applied."""


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _names(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


@pytest.mark.parametrize("package", PACKAGES)
def test_texts_have_no_mannerisms(package: str) -> None:
    found = {
        f"{file.relative_to(ROOT)}:{node.lineno}": match[0]
        for file in _files(package)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (match := MANNERISMS.search(node.value))
    }
    assert found == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_named_by_what_they_do(package: str) -> None:
    found = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in _files(package)
        for name in _names(file)
        if PEOPLE.fullmatch(name)
    }
    assert found == set()


def test_no_two_classes_share_a_name() -> None:
    files = defaultdict(set)
    for package in PACKAGES:
        for file in _files(package):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    files[node.name].add(str(file.relative_to(ROOT)))
    shared = {name: sorted(found) for name, found in files.items() if len(found) > 1}
    assert {name: found for name, found in shared.items() if name not in PUBLISHED} == {}
