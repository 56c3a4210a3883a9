"""What the probe finds out about the emulator is what the emulator was told to be."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import ocs_driver
from ocs_driver import BusyPort, CircuitRequest, OcsConflict, OcsError
from ocs_driver.probe import probe
from testbed.ocs_emulator import Emulator, Personality, load_personality
from testbed.ocs_emulator.personality import Busy, Timing
from tests.contract.ocs_rig import CREDENTIAL, VENDORS, Vendor

TIMING = Timing(command_s=0.004, mirror_s=0.05, bulk_s=0.15, conflict_bulk_s=0.4)
SESSIONS = 3


@pytest.fixture(params=VENDORS, ids=str)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    chosen: Vendor = request.param
    return chosen


def odd(vendor: Vendor, busy: Busy) -> Personality:
    """A personality that no file has."""
    changed = load_personality(vendor.personality).behaving(busy=busy, max_sessions=SESSIONS)
    light = dataclasses.replace(changed.light, launch_dbm=-3.0, loss_mean_db=2.5)
    return dataclasses.replace(
        changed, serial="PROBE77", firmware="9.8.7", timing=TIMING, light=light
    )


class Lateness:
    """How late a machine with other work lets this process run, at worst, in seconds."""

    worst_s = 0.0

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + 0.001
            await asyncio.sleep(0.001)
            self.worst_s = max(self.worst_s, time.monotonic() - due)


@asynccontextmanager
async def lateness() -> AsyncIterator[Lateness]:
    seen = Lateness()
    watching = asyncio.create_task(seen.watch())
    yield seen
    watching.cancel()


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
        async with lateness() as late:
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
    # Times are measured through sockets: each of some messages may wait for this machine.
    waits_s = 8 * late.worst_s
    assert same.timing.mirror_s == pytest.approx(truth.timing.mirror_s, abs=0.03 + waits_s)
    assert same.timing.bulk_s == pytest.approx(truth.timing.bulk_s, abs=0.09 + waits_s)
    assert {"timing.mirror_s", "timing.bulk_s"} <= set(found["probe"]["measured"])
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
