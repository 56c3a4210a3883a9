"""A gate's line says what ran, how long, what failed and how to run it alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import gates
from tests.gates import Result, again, failures, quoted, summary

FAILED = "tests/unit/test_x.py::test_y[a b]"
LOG = f"""..F.
___ test_y[a b] ___
E   assert 1 == 2
=== short test summary info ===
FAILED {FAILED} - assert 1 == 2
ERROR tests/unit/test_z.py - ImportError
1 failed, 3 passed, 1 error in 2.10s (0:00:02)
"""
MAKEFILE = """
good: ; @echo '3 passed in 1.00s'
bad: ; @echo 'FAILED tests/x.py::test_y - why'; echo '1 failed in 1.00s'; exit 1
"""


def test_pytests_own_words_are_read() -> None:
    lines = LOG.splitlines()
    assert summary(lines) == "1 failed, 3 passed, 1 error"
    assert failures(lines) == (FAILED, "tests/unit/test_z.py")
    assert summary(["Success: no issues found in 9 files"]) == ""


def test_a_line_of_a_failed_gate_has_the_command_that_runs_it_alone() -> None:
    good = Result("unit", 0, 61.0, 100.0, "9 passed", ())
    bad = Result("unit", 2, 61.0, 100.0, "1 failed", (FAILED,))
    assert list(good.lines()) == ["unit      ok       61.0 s   100.0 s of processor  9 passed"]
    assert list(bad.lines())[1:] == [
        f"    {FAILED}",
        f"    log: {gates.log_of('unit')}",
        f"    alone: make unit T='{FAILED}'",
    ]
    assert again("lint", ()) == "make lint"
    assert again("unit", [f"t{n}" for n in range(99)]) == "make unit"


def test_words_pass_make_and_the_shell() -> None:
    assert quoted("tests/a.py::test_b") == "tests/a.py::test_b"
    assert quoted("a[it's $1]") == "'a[it'\\''s $$1]'"


@pytest.mark.real_time
def test_a_gate_that_fails_fails_the_run_and_leaves_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    monkeypatch.setattr(gates, "ROOT", tmp_path)
    monkeypatch.setattr(gates, "LOGS", tmp_path / "logs")
    assert gates.main(["good"]) == 0
    assert gates.main(["bad", "good", "none"]) == 1
    said = capsys.readouterr().out
    assert "alone: make bad T=tests/x.py::test_y" in said
    assert f"failed: bad, none; logs are in {tmp_path / 'logs'}" in said
    figures = json.loads((tmp_path / "logs" / gates.FIGURES).read_text(encoding="utf-8"))
    assert [(one["gate"], one["status"] == 0) for one in figures] == [
        ("bad", False),
        ("good", True),
        ("none", False),
    ]
