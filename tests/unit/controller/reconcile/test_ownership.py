"""Ownership of circuits on switches that store no owner: the controller over real drivers."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ocs_driver
from controller.devices.aggregators import AttachPoint
from controller.schema.plans import PlanRequest
from ocs_driver.base import CircuitRequest
from tests.parts.controller.emulated import KINDS, Kind, rack_on, switch_of, told
from tests.parts.controller.jobs import scattered, submit

UNIT = Path(__file__).parents[4] / "console/deploy/systemd/lightloom-controller.service"


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_the_ports_of_a_foreign_circuit_are_not_used(kind: Kind, tmp_path: Path) -> None:
    async with rack_on(kind, tmp_path / "state") as rack:
        switch_of(rack).foreign("1.1.6", "2.2.4")  # gpu5's fiber, and a port of as1
        await rack.up()
        (text,) = told(rack, "ForeignCircuit")
        assert "1.1.6" in text
        assert "--mode overwrite" in text
        endpoints = {e.name: e for e in await rack.desks.fabric.endpoints()}
        assert "foreign" in (endpoints["gpu5"].reason or "")
        assert rack.see.blocked_points() == {AttachPoint("as1", 4)}
        assert rack.see.fabric().held_ports == {("as1", "ocs0"): 1}
        await submit(rack, "red", 5)
        await rack.state("red", "running")
        assert frozenset(("1.1.6", "2.2.4")) in switch_of(rack).names()


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_regroup_over_a_foreign_circuit_is_refused_before_any_job_is_frozen(
    kind: Kind, tmp_path: Path
) -> None:
    async with rack_on(kind, tmp_path / "state") as rack:
        await rack.up()
        await scattered(rack)
        plan = await rack.desks.plans.make_plan(PlanRequest())
        (port,) = {p for link in plan.circuits.make for p in (link.a, link.b)} & {"2.1.4", "2.2.4"}
        switch_of(rack).foreign(port, "1.2.8")  # after the plan, so only the switch knows
        before, calls = switch_of(rack).names(), list(rack.engine.calls)
        done = await rack.desks.plans.apply(plan, wait_s=60)
        assert done.state == "rolled_back"
        assert "foreign_circuit" in done.error
        assert [p.name for p in done.phases] == ["admit"]
        assert [c for c in rack.engine.calls[len(calls) :] if c[0] == "freeze"] == []
        assert switch_of(rack).names() == before


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_own_circuits_survive_a_restart_and_are_regrouped(kind: Kind, tmp_path: Path) -> None:
    async with rack_on(kind, tmp_path / "state") as rack:
        await rack.up()
        await scattered(rack)
        await rack.down()
        await rack.up()
        assert told(rack, "ForeignCircuit") == []
        done = await rack.desks.plans.apply(
            await rack.desks.plans.make_plan(PlanRequest()), wait_s=60
        )
        assert done.state == "committed", done
    assert list((tmp_path / "state" / "ocs").glob("*.json"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_a_job_keeps_its_light_when_the_list_of_own_circuits_is_lost(
    kind: Kind, tmp_path: Path
) -> None:
    async with rack_on(kind, tmp_path / "state") as rack:
        await rack.up()
        red = await scattered(rack)
        await rack.down()
        for file in (tmp_path / "state" / "ocs").iterdir():
            file.unlink()
        switch_of(rack).foreign("1.2.1", "1.2.2")
        await rack.up()
        assert rack.desks.jobs.job("red").spread == red.spread
        assert len(told(rack, "Reclaimed")) == 1
        assert len(told(rack, "ForeignCircuit")) == 1
        done = await rack.desks.plans.apply(
            await rack.desks.plans.make_plan(PlanRequest()), wait_s=60
        )
        assert done.state == "committed", done


async def test_the_list_of_own_circuits_moves_below_the_state_directory(tmp_path: Path) -> None:
    """An earlier release kept it in the user's home directory."""
    kind = KINDS[0]
    async with rack_on(kind, tmp_path / "state") as rack:
        host, port = switch_of(rack).emulator.addresses[kind.front_end]
        url = f"{kind.scheme}://admin@{host}:{port}"
        async with ocs_driver.open(url, password="x") as driver:  # noqa: S106
            made = [CircuitRequest("1", "17"), CircuitRequest("2", "18")]
            assert (await driver.apply([], made)).ok
        (old,) = (tmp_path / "home").rglob("*.json")
        await rack.up()
        assert told(rack, "ForeignCircuit") == []
        assert not old.exists()
        (new,) = (tmp_path / "state" / "ocs").glob("*.json")
        assert {"1,17", "2,18"} <= json.loads(new.read_text()).keys()


def test_the_unit_lets_the_controller_write_its_list() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    helped = subprocess.run(
        [sys.executable, "-m", "controller", "--help"], capture_output=True, text=True, check=True
    )
    state_dir = re.search(r"--state-dir.*?default:\s+(\S+)", helped.stdout, re.DOTALL)
    assert state_dir is not None
    assert Path(state_dir[1]) == Path("/var/lib") / service["StateDirectory"]
    assert "--state-dir" not in service["ExecStart"]
