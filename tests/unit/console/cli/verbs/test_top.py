"""``top -w`` in a terminal, whose user must see the table."""

from __future__ import annotations

import re

import pytest

from tests.parts.terminal import Program, last_screen

pytestmark = pytest.mark.usefixtures("busy")


def test_it_is_drawn_without_colours_as_well(url: str) -> None:
    environment = {"LIGHTLOOM_URL": url, "NO_COLOR": "1"}
    program = Program("top", "jobs", "-w", "--count", "2", environment=environment)
    assert program.end() == 0
    assert last_screen(program.said)[0].startswith("lightloom top jobs")
    assert not re.search("\x1b\\[[0-9;]*3[0-9]m", program.said)


@pytest.mark.parametrize("what", ["jobs", "containers", "endpoints"])
@pytest.mark.parametrize(("rows", "columns"), [(24, 80), (10, 40), (50, 200)])
def test_the_table_is_on_the_screen(url: str, what: str, rows: int, columns: int) -> None:
    program = Program(
        *("top", what, "-w", "--count", "2"),
        rows=rows,
        columns=columns,
        environment={"LIGHTLOOM_URL": url},
    )
    assert program.end() == 0
    screen = last_screen(program.said, rows=rows, columns=columns)
    assert screen[0].startswith(f"lightloom top {what}")
    assert screen[1] == ""
    assert screen[2].split()[:2] == ["NAME", "STATE"]
    assert len(screen[3].split()) > 2
    if columns >= 80:
        assert "Ctrl-C ends" in screen[0]
    if columns >= 200 or (columns == 80 and what == "jobs"):
        assert screen[2].split()[-1] == "HISTORY"
        assert screen[3].endswith("█")
