"""comms: over a real HTTP server."""

from __future__ import annotations

import pytest

from tests.unit.console.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("talking")


def test_a_table_of_operations_and_recorders(run: Run) -> None:
    lines = run("comms", "red").out.splitlines()
    assert lines[0].split()[:4] == ["OPERATION", "SIZE", "CALLS", "AVG"]
    assert lines[1].split()[:5] == ["all_reduce", "4", "MiB", "80", "100"]
    assert any(line.split()[:3] == ["0", "gpu0", "recording"] for line in lines)
    (efficiency,) = (line for line in lines if line.startswith("efficiency"))
    assert "50" in efficiency
    assert "of m7" in efficiency
    heads, row = run("comms", "red", "-o", "wide").out.splitlines()[:2]
    at = heads.index("LAST")
    assert row[at:].split()[:2] == ["1:", "75"] or row[at:].startswith("1: 75")


def test_json_is_the_answer(run: Run) -> None:
    view = run("comms", "red", "--rank", "1", "--since", "5m", "-o", "json").document
    assert (view["job"], view["rows"][0]["rank"], view["rows"][0]["calls"]) == ("red", 1, 80)
    assert view["since"] is not None


def test_what_is_not_kept_cannot_be_asked_for(run: Run) -> None:
    refused = run("comms", "red", "--since", "2h")
    assert refused.code == 2
    assert "last hour" in refused.err
    assert run("comms", "red", "--rank", "99").code != 0
    assert run("comms", "blue-that-is-not").code != 0
