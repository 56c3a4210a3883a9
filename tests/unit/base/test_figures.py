"""Figures that people read."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from base.figures import MOST_DECIMALS, figure

ROOT = Path(__file__).parents[3]
SHOWN = ("console", "measure", "controller/advice", "controller/ranks/tolerance.py")
"""Where nearly every number that is written is a measured or computed one."""
AS_OTHERS_WRITE = frozenset({"measure/collectives/table.py"})
"""The table of nccl-tests, which other programs read."""


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (9.94734e6, 4, "9947340"),
        (1010.0, 3, "1010"),
        (3600.0, 3, "3600"),
        (1.25e-5, 2, "0.000013"),
        (9.996, 3, "10"),
        (-0.5, 3, "-0.5"),
        (0.0, 3, "0"),
        (7.0, 6, "7"),
        (float("inf"), 3, "inf"),
    ],
)
def test_a_figure_has_few_digits_and_no_exponent(value: float, digits: int, text: str) -> None:
    assert figure(value, digits) == text


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 9))
def test_a_figure_is_the_value_that_it_stands_for(value: float, digits: int) -> None:
    text = figure(value, digits)
    assert re.fullmatch(r"-?\d+(\.\d+)?", text)
    least = 0.5 * 10.0**-MOST_DECIMALS
    assert float(text) == pytest.approx(value, rel=5.01 * 10.0**-digits, abs=1.01 * least)


def test_what_people_read_has_no_exponent() -> None:
    """``g`` turns to an exponent from some size on: a constant in capitals has its size."""
    found = []
    for folder in SHOWN:
        at = ROOT / folder
        for file in [at] if at.is_file() else sorted(at.rglob("*.py")):
            name = str(file.relative_to(ROOT))
            if name not in AS_OTHERS_WRITE:
                found += [f"{name}:{line}" for line in _general(file)]
    assert found == []


def _general(file: Path) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.FormattedValue)
        and node.format_spec is not None
        and re.search(r"[eEgG]'?$", ast.unparse(node.format_spec).rstrip("\"'"))
        and not (isinstance(node.value, ast.Name) and node.value.id.isupper())
    ]
