"""Every command that a text of the product names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.cli.main import main

ROOT = Path(__file__).parents[3]
PACKAGES = ("base", "console", "container_mgr", "controller", "measure", "ocs_driver", "scheduler")
_COMMAND = re.compile(r"`(?:sudo )?lightloom ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)?)")


def texts() -> Iterator[str]:
    """Yield the strings of the product's modules, and its pages' scripts."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
    for path in (ROOT / "console").rglob("*.js"):
        yield path.read_text(encoding="utf-8")


NAMED = sorted({found for text in texts() for found in _COMMAND.findall(text)})


@pytest.mark.parametrize("command", NAMED)
def test_a_command_that_a_text_names_exists(command: str) -> None:
    """Its first word is a verb; the second one is a verb of a group, or what it acts on."""
    first, *more = command.split()
    assert main([first, "--help"]) == 0
    if more and main([first, "nosuch", "--help"]) != 0:
        assert main([first, *more, "--help"]) == 0


def test_commands_are_named_at_all() -> None:
    assert len(NAMED) > 20
