"""A new reading is one edit of the catalogue and the code that measures it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.real_time
def test_a_reading_in_the_catalogue_is_seen_everywhere() -> None:
    """Documents and columns are made when the product is loaded: it is loaded anew, edited."""
    plugins = ["no:cacheprovider", "no:schemathesis", "tests.unit.readings.fan"]
    options = [part for plugin in plugins for part in ("-p", plugin)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options, HERE / "with_a_fan.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    assert "3 passed" in run.stdout
