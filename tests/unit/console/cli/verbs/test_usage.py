"""usage: over a real HTTP server."""

from __future__ import annotations

import csv
import io

import pytest

from tests.unit.console.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("used")


def test_a_table_has_a_total(run: Run) -> None:
    lines = run("usage").out.splitlines()
    assert lines[0].split() == ["PROJECT", "HELD", "FROZEN", "DARK", "WEIGHTED", "JOBS"]
    assert lines[1].split() == ["vision", "2h00m", "10m00s", "0.5s", "2h30m", "1"]
    assert lines[-1].split()[:2] == ["(total)", "2h00m"]


def test_by_job_and_by_user(run: Run) -> None:
    assert run("usage", "--by", "job").out.splitlines()[1].split()[:3] == [
        "red",
        "vision",
        "=cmd()",
    ]
    assert run("usage", "--by", "user").out.splitlines()[1].split()[0] == "=cmd()"
    assert run("usage", "--by", "endpoint").code == 2


def test_json_and_csv_have_seconds(run: Run) -> None:
    view = run("usage", "--since", "1970-01-02T00:00Z", "-o", "json").document
    assert (view["since"], view["total"]["held_s"], view["by"]) == (86400.0, 7200.0, "project")
    rows = list(csv.DictReader(io.StringIO(run("usage", "--by", "user", "-o", "csv").out)))
    assert [row["line"] for row in rows] == ["user", "others", "total"]
    assert (rows[0]["user"], rows[0]["dark_s"]) == ("'=cmd()", "0.5")


def test_a_time_that_is_none_is_refused(run: Run) -> None:
    refused = run("usage", "--since", "soon")
    assert refused.code == 2
    assert "2026-01-31" in refused.err
