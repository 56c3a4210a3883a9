"""Tests that the probe measures the configured behaviour of the emulator."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import ocs_driver
from ocs_driver import BusyPort, CircuitRequest, OcsConflict, OcsError
from ocs_driver.probe import probe
from testbed.ocs_emulator import Emulator, Personality, load_personality
from testbed.ocs_emulator.personality import Busy, SwitchTiming
from tests.parts.ocs.rig import CREDENTIAL, VENDORS, Vendor

TIMING = SwitchTiming(command_s=0.004, mirror_s=0.05, bulk_s=0.15, conflict_bulk_s=0.4)
SESSIONS = 3


@pytest.fixture(params=VENDORS, ids=str)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    chosen: Vendor = request.param
    return chosen


def odd(vendor: Vendor, busy: Busy) -> Personality:
    """Return a personality that differs from all files."""
    changed = load_personality(vendor.personality).behaving(busy=busy, max_sessions=SESSIONS)
    light = dataclasses.replace(changed.light, launch_dbm=-3.0, loss_mean_db=2.5)
    return dataclasses.replace(
        changed, serial="PROBE77", firmware="9.8.7", timing=TIMING, light=light
    )


@pytest.mark.parametrize("busy", list(Busy))
async def test_the_probe_recovers_the_personality(
    vendor: Vendor, busy: Busy, tmp_path: Path
) -> None:
    truth = odd(vendor, busy)
    listen = [("127.0.0.1", 0)] * len(truth.front_ends)
    async with Emulator(truth, listen, password=CREDENTIAL) as emulator:
        host, port = emulator.addresses[vendor.front_end]
        url = f"{vendor.scheme}://admin@{host}:{port}"
        spare = list(truth.fibers[:16])
        found = await probe(
            url, password=CREDENTIAL, spare_ports=spare, state_dir=tmp_path / "state"
        )
        assert emulator.model.circuits == {}, "the probe leaves nothing behind"
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(found))
    same = load_personality(str(file))
    for name in ("vendor", "model", "serial", "firmware", "sid", "platform", "ports", "partner"):
        assert getattr(same, name) == getattr(truth, name), name
    assert same.front_ends == truth.front_ends
    assert same.behaviour == truth.behaviour
    if vendor.measures_light and not vendor.reciprocal:
        assert same.light.launch_dbm == pytest.approx(-3.0, abs=0.1)
        assert same.light.loss_mean_db == pytest.approx(2.5, abs=0.2)
    assert "behaviour.busy" in found["probe"]["measured"]
    # Emulator and driver load the file.
    async with Emulator(same, listen) as again:
        host, port = again.addresses[vendor.front_end]
        url = f"{vendor.scheme}://admin@{host}:{port}?personality={file}"
        async with ocs_driver.open(url, password=CREDENTIAL, state_dir=tmp_path) as driver:
            assert (await driver.capabilities()).busy_port is BusyPort(busy.value)


async def test_the_probe_measures_times(vendor: Vendor, tmp_path: Path) -> None:
    truth = odd(vendor, Busy.REJECT)
    listen = [("127.0.0.1", 0)] * len(truth.front_ends)
    async with Emulator(truth, listen, password=CREDENTIAL) as emulator:
        host, port = emulator.addresses[vendor.front_end]
        url = f"{vendor.scheme}://admin@{host}:{port}"
        spare = list(truth.fibers[:16])
        found = await probe(url, password=CREDENTIAL, spare_ports=spare, state_dir=tmp_path)
    assert {"timing.mirror_s", "timing.bulk_s"} <= set(found["probe"]["measured"])
    # A bulk is timed from when the last of its (at most 16) commands was accepted.
    slack_s = 16 * TIMING.command_s
    assert found["timing"]["mirror_s"] == pytest.approx(TIMING.mirror_s, abs=TIMING.command_s)
    assert found["timing"]["bulk_s"] == pytest.approx(TIMING.bulk_s, abs=slack_s)


async def test_without_spare_ports_it_only_reads(vendor: Vendor, tmp_path: Path) -> None:
    truth = load_personality(vendor.personality)
    listen = [("127.0.0.1", 0)] * len(truth.front_ends)
    async with Emulator(truth, listen, password=CREDENTIAL) as emulator:
        emulator.model.on_change = lambda: pytest.fail("the map was changed")
        host, port = emulator.addresses[vendor.front_end]
        url = f"{vendor.scheme}://admin@{host}:{port}"
        found = await probe(url, password=CREDENTIAL, state_dir=tmp_path)
    assert found["serial"] == truth.serial
    assert "behaviour.busy" in found["probe"]["assumed"]


async def test_ports_in_use_are_not_spare(vendor: Vendor, tmp_path: Path) -> None:
    truth = load_personality(vendor.personality)
    listen = [("127.0.0.1", 0)] * len(truth.front_ends)
    async with Emulator(truth, listen, password=CREDENTIAL) as emulator:
        host, port = emulator.addresses[vendor.front_end]
        url = f"{vendor.scheme}://admin@{host}:{port}"
        a, b, c, d = truth.fibers[:4]
        async with ocs_driver.open(url, password=CREDENTIAL, state_dir=tmp_path) as driver:
            await driver.apply([], [CircuitRequest(a, truth.fibers[8])])
        before = list(emulator.model.circuits)
        with pytest.raises(OcsConflict, match="in use"):
            await probe(url, password=CREDENTIAL, spare_ports=[a, b, c, d], state_dir=tmp_path)
        with pytest.raises(OcsError, match="four"):
            await probe(url, password=CREDENTIAL, spare_ports=[b, c], state_dir=tmp_path)
        assert list(emulator.model.circuits) == before
