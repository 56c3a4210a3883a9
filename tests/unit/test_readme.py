"""README's commands exist, with their options and files; what they do is tested on the rack."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from console.cli.main import main
from tests.parts.readme import README, blocks

LINES = [line for block in blocks("By hand") for line in block]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("lightloom ")])
def test_a_command_of_readme_is_one_of_lightloom(line: str) -> None:
    """Its help is shown once the whole line is parsed: nothing is carried out."""
    words = shlex.split(line)[1:]
    at = words.index("--") if "--" in words else len(words)
    assert main([*words[:at], "--help", *words[at:]]) == 0


@pytest.mark.parametrize("line", ["submit --nosuch 1", "checkpoints safe --nosuch", "nosuch"])
def test_what_lightloom_has_not_is_found(line: str) -> None:
    assert main([*line.split(), "--help"]) == 2


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith("lightloom ")])
def test_another_command_of_readme_names_a_file(line: str) -> None:
    program, file, *_ = shlex.split(line)
    assert program in {".", "python"}
    assert file == ".venv/bin/activate" or (README.parent / file).is_file()


def test_files_that_readme_submits_are_there() -> None:
    named = [word for line in LINES for word in shlex.split(line) if word.startswith("examples/")]
    assert named
    assert all((README.parent / Path(word)).is_file() for word in named)
    assert "torch-image:" in (README.parent / "Makefile").read_text(encoding="utf-8")
