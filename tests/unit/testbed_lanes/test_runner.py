"""The runner of tests in lanes chooses what runs where, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import Unit, longest_first, total, units


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("test_rack.py", "test_install.py", "test_agent.py", "test_agent_gpu.py")
    for name in (*names, "paper/test_exec.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_a_folder_that_shares_a_rack_is_one_unit_and_some_run_outside(folder: Path) -> None:
    found = {unit.name: unit for unit in units(folder, [])}
    assert set(found) == {"paper", "rack", "install", "agent"}
    assert found["paper"].paths == ("tests/integration/paper",)
    assert found["agent"].paths == (
        "tests/integration/test_agent.py",
        "tests/integration/test_agent_gpu.py",
    )
    assert [unit.name for unit in found.values() if not unit.inside] == ["install"]


def test_paths_choose_units_and_tests_in_them(folder: Path) -> None:
    wanted = ["tests/integration/paper/test_exec.py", "tests/integration/test_rack.py::test_x"]
    assert [(unit.name, unit.paths) for unit in units(folder, wanted)] == [
        ("paper", (wanted[0],)),
        ("rack", (wanted[1],)),
    ]
    (agent,) = units(folder, ["tests/integration/test_agent_gpu.py"])
    assert (agent.name, agent.paths) == ("agent", ("tests/integration/test_agent_gpu.py",))
    assert len(units(folder, ["tests/integration"])) == 4
    assert units(folder, ["tests/unit"]) == []


def test_the_longest_and_the_unknown_are_first() -> None:
    found = [Unit(name, ()) for name in ("short", "long", "new")]
    ordered = longest_first(found, {"short": 1.0, "long": 9.0})
    assert [unit.name for unit in ordered] == ["new", "long", "short"]


def test_summaries_add_up() -> None:
    assert total(["3 passed, 2 deselected", "1 failed, 9 passed", "ended"]) == (
        "12 passed, 2 deselected, 1 failed"
    )
