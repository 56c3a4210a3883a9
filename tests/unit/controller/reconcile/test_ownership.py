"""Ownership of circuits on switches that store no owner: the controller over real drivers."""

from __future__ import annotations

import configparser
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ocs_driver
from controller.daemon.compose import make_driver
from controller.devices.aggregators import AttachPoint
from controller.schema.plans import PlanRequest
from ocs_driver.base import CircuitRequest, OcsDriver
from ocs_driver.grid import Grid
from sitefile.model import SwitchCable
from testbed.ocs_emulator import Emulator, load_personality
from tests.unit.controller.fakes import FakeOcs, Rack
from tests.unit.controller.service.test_service import scattered, submit

UNIT = Path(__file__).parents[4] / "console/deploy/systemd/lightloom-controller.service"


@dataclass(slots=True, frozen=True)
class Kind:
    scheme: str
    personality: str
    front_end: int
    grid: str

    def __str__(self) -> str:
        return self.scheme


KINDS = (
    Kind("polatis+tl1", "polatis-48xCC", 0, "2x2x8"),
    Kind("polatis+scpi", "polatis-48xCC", 1, "2x2x8"),
    Kind("glimmerglass+tl1", "glimmerglass-48", 0, "2x2x8@10001"),
)


class Emulated(FakeOcs):
    """A switch over a real driver, whose light is read from the emulator."""

    def __init__(self, emulator: Emulator, kind: Kind, state_dir: Path) -> None:
        super().__init__()
        host, port = emulator.addresses[kind.front_end]
        self.emulator, self.grid = emulator, Grid.parse(kind.grid)
        url = f"{kind.scheme}://admin@{host}:{port}?ports={kind.grid}"
        self.driver = make_driver(SwitchCable("ocs0", url, None), state_dir)
        for name in OcsDriver.__abstractmethods__ | {"adopt"}:
            setattr(self, name, getattr(self.driver, name))

    def lit(self) -> list[tuple[str, str]]:
        fiber, name = self.emulator.personality.fiber, self.grid.name
        return [(name(fiber(c.a)), name(fiber(c.b))) for c in self.emulator.model.circuits.values()]

    def foreign(self, a: str, b: str) -> None:
        """Make a circuit on the switch itself, as another client would."""
        beside = {f: o for o, f in self.emulator.personality.partner.items()}
        one, other = self.grid.number(a), self.grid.number(b)
        pairs = [(one, beside[other]), (other, beside[one])] if beside else [(one, other)]
        for pair in pairs:
            self.emulator.model.connect(*pair, "", self.emulator.switch.now())
        self.emulator.switch.poke()

    def names(self) -> set[frozenset[str]]:
        """Return the ends of all circuits."""
        return {frozenset(pair) for pair in self.lit()}


@contextlib.asynccontextmanager
async def rack_on(kind: Kind, folder: Path) -> AsyncIterator[Rack]:
    """Yield a controller, not started yet, with an emulated switch."""
    personality = load_personality(kind.personality)
    async with Emulator(personality, [("127.0.0.1", 0)] * (kind.front_end + 1)) as emulator:
        rack = Rack(folder)
        rack.switch = Emulated(emulator, kind, folder)
        yield rack
        await rack.down()


def switch_of(rack: Rack) -> Emulated:
    assert isinstance(rack.switch, Emulated)
    return rack.switch


def told(rack: Rack, reason: str) -> list[str]:
    return [e.message for e in rack.service._state.events.newer(0) if e.reason == reason]


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", "x")
    monkeypatch.delenv("LIGHTLOOM_OCS_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_the_ports_of_a_foreign_circuit_are_not_used(kind: Kind, tmp_path: Path) -> None:
    async with rack_on(kind, tmp_path / "state") as rack:
        switch_of(rack).foreign("1.1.6", "2.2.4")  # gpu5's fiber, and a port of as1
        await rack.up()
        (text,) = told(rack, "ForeignCircuit")
        assert "1.1.6" in text
        assert "--mode overwrite" in text
        endpoints = {e.name: e for e in await rack.service.queries.endpoints()}
        assert "foreign" in (endpoints["gpu5"].reason or "")
        assert rack.service._state.blocked_points() == {AttachPoint("as1", 4)}
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
        plan = await rack.service.commands.make_plan(PlanRequest())
        (port,) = {p for link in plan.circuits.make for p in (link.a, link.b)} & {"2.1.4", "2.2.4"}
        switch_of(rack).foreign(port, "1.2.8")  # after the plan, so only the switch knows
        before, calls = switch_of(rack).names(), list(rack.engine.calls)
        done = await rack.service.commands.apply(plan, wait_s=60)
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
        done = await rack.service.commands.apply(
            await rack.service.commands.make_plan(PlanRequest()), wait_s=60
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
        assert (await rack.service.queries.job("red")).spread == red.spread
        assert len(told(rack, "Reclaimed")) == 1
        assert len(told(rack, "ForeignCircuit")) == 1
        done = await rack.service.commands.apply(
            await rack.service.commands.make_plan(PlanRequest()), wait_s=60
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
