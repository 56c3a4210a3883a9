"""Tests the contract with a switch given by its address: an emulated one, or a real one.

    LIGHTLOOM_TEST_OCS_URL=polatis+scpi://10.0.0.5:5025 \\
    LIGHTLOOM_TEST_OCS_PORTS=17,18,19,20,21,22,23,24 \\
    LIGHTLOOM_OCS_PASSWORD=... pytest tests/contract/test_ocs_by_address.py

runs it on a real switch and touches only the eight given ports, which must be free and have
light. Without the variables it runs on every emulated switch.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import ocs_driver
from ocs_driver import CircuitOutcome, CircuitRequest, CircuitState, Mode, OcsConflict, OcsDriver
from tests.parts.ocs.rig import CREDENTIAL, VENDORS, Vendor, rig

URL = os.environ.get("LIGHTLOOM_TEST_OCS_URL", "")
PORTS = tuple(filter(None, os.environ.get("LIGHTLOOM_TEST_OCS_PORTS", "").split(",")))
DEADLINE_S = 30.0

OVER_SOCKETS = [
    pytest.param(vendor, marks=pytest.mark.real_time, id=f"{vendor}, over sockets")
    for vendor in VENDORS
    if vendor.personality == "polatis-24x24"
]
"""One of each protocol."""

pytestmark = [pytest.mark.real_time] if URL else []


@dataclass(slots=True, frozen=True)
class Switch:
    """A switch under test and the ports that the test may use."""

    driver: OcsDriver
    ports: Sequence[str]

    def straight(self, count: int) -> list[CircuitRequest]:
        return [CircuitRequest(self.ports[i], self.ports[4 + i]) for i in range(count)]

    def crossed(self) -> list[CircuitRequest]:
        return [CircuitRequest(self.ports[i], self.ports[4 + (i + 1) % 4]) for i in range(4)]


def shown(vendor: Vendor | None) -> str:
    """Return what a test is named by."""
    return URL.partition(":")[0] or str(vendor)


@pytest.fixture(params=[None] if URL else VENDORS, ids=shown)
async def switch(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Switch]:
    vendor: Vendor | None = request.param
    if vendor is None:
        assert len(PORTS) == 8, "LIGHTLOOM_TEST_OCS_PORTS has to name eight free ports"
        password = os.environ.get("LIGHTLOOM_OCS_PASSWORD")
        async with ocs_driver.open(URL, password=password, state_dir=tmp_path) as driver:
            before = await driver.read()
            assert not any(before.on_port(port) for port in PORTS), "a named port is in use"
            try:
                yield Switch(driver, PORTS)
            finally:
                now = (await driver.read()).circuits
                own = [CircuitRequest(c.a, c.b, c.duplex) for c in now if c.owner == "lightloom"]
                ours = [r for r in own if {r.a, r.b} & set(PORTS)]
                await driver.apply(ours, [], deadline_s=DEADLINE_S)
        return
    async with rig(vendor) as bench:
        url = bench.url()
        async with ocs_driver.open(url, password=CREDENTIAL, state_dir=tmp_path) as driver:
            yield Switch(driver, bench.ports)


async def test_the_switch_reports_its_identity_and_its_ports(switch: Switch) -> None:
    known = await switch.driver.capabilities()
    assert known.vendor
    assert known.serial
    listed = {info.port for info in await switch.driver.inventory()}
    assert set(switch.ports) <= listed


@pytest.mark.parametrize(
    "switch", [None] if URL else [*VENDORS, *OVER_SOCKETS], indirect=True, ids=shown
)
async def test_circuits_are_made_moved_and_removed(switch: Switch) -> None:
    made = await switch.driver.apply([], switch.straight(4), deadline_s=DEADLINE_S)
    assert made.ok, made.results
    states = {c.state for c in made.circuits.circuits if c.owner == "lightloom"}
    assert states == {CircuitState.TUNED}
    again = await switch.driver.apply([], switch.straight(4), deadline_s=DEADLINE_S)
    assert {r.outcome for r in again.results} == {CircuitOutcome.UNCHANGED}
    moved = await switch.driver.apply(switch.straight(4), switch.crossed(), deadline_s=DEADLINE_S)
    assert moved.ok, moved.results
    gone = await switch.driver.apply(switch.crossed(), [], deadline_s=DEADLINE_S)
    assert gone.ok, gone.results
    assert not any(gone.circuits.on_port(port) for port in switch.ports)


async def test_other_circuits_do_not_change(switch: Switch) -> None:
    def outside() -> set[tuple[str, str]]:
        ours = set(switch.ports)
        return {(c.a, c.b) for c in now.circuits if not {c.a, c.b} & ours}

    now = await switch.driver.read()
    before = outside()
    await switch.driver.apply([], switch.straight(2), deadline_s=DEADLINE_S)
    with pytest.raises(OcsConflict, match="port_busy"):
        await switch.driver.apply([], switch.crossed()[:1], mode=Mode.SAFE)
    now = await switch.driver.read()
    assert outside() == before
    await switch.driver.apply(switch.straight(2), [], deadline_s=DEADLINE_S)


async def test_a_second_user_sees_the_same_map(switch: Switch) -> None:
    await switch.driver.apply([], switch.straight(1), deadline_s=DEADLINE_S)
    one, two = await switch.driver.read(), await switch.driver.read()
    assert one.circuits == two.circuits
    await switch.driver.apply(switch.straight(1), [], deadline_s=DEADLINE_S)
