"""README's commands exist, with their options and files; what they do is tested on the rack."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest
import typer

from console.cli.main import app
from tests.parts.readme import README, blocks

LINES = [line for block in blocks("By hand") for line in block]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("lightloom ")])
def test_a_command_of_readme_is_one_of_lightloom(line: str) -> None:
    """It is parsed as the shell would give it, and not carried out."""
    command: click.Command = typer.main.get_command(app)
    words, context = shlex.split(line)[1:], None
    while isinstance(command, click.Group):
        name = words.pop(0)
        found = command.commands.get(name)
        assert found is not None, f"there is no {name}"
        context = click.Context(command, parent=context, info_name=name)
        command = found
    command.make_context(command.name, words, parent=context)


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
