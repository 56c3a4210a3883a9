"""Tests replies of success that lack what they must hold: they are never read as "none"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from ocs_driver import CircuitRequest, OcsBadReply, OcsDriver, OcsError, OcsTimeout
from ocs_driver.describe import disconnect, show
from testbed.ocs_emulator.control import Control
from tests.parts.ocs.rig import CREDENTIAL, VENDORS, Rig, Vendor, rig, until

OPTICAL = "http://www.polatis.com/yang/optical-switch"
ERROR = "<error-type>rpc</error-type><error-tag>resource-denied</error-tag>"
NETCONF = (
    "",
    "<ok/>",
    f'<rpc-error xmlns="">{ERROR}</rpc-error>',
    f'<data/><rpc-error xmlns="urn:other">{ERROR}</rpc-error>',
    '<data xmlns="urn:other"/>',
    "<data>busy</data>",
    f'<data><rpc-error xmlns="{OPTICAL}">{ERROR}</rpc-error></data>',
    f'<data><ports xmlns="{OPTICAL}"/></data>',
    f'<data><cross-connects xmlns="{OPTICAL}">busy</cross-connects></data>',
    f'<data><cross-connects xmlns="{OPTICAL}"><busy/></cross-connects></data>',
    f'<data><cross-connects xmlns="{OPTICAL}"><pair><ingress>1</ingress></pair>'
    "</cross-connects></data>",
)
TL1 = ("   SYSTEM BUSY", '   "SYSTEM BUSY"', '   ""', '   "1:STATE=IS"')
SCPI = ('-350,"Queue overflow"', "1", "(@1,2)", "(@1),(@2),(@3)", "ERROR (@),(@)", '""')
LISTS = {
    "calient+tl1": "RTRV-CRS",
    "polatis+tl1": "RTRV-PATCH",
    "glimmerglass+tl1": "RTRV-CRS",
    "polatis+scpi": "CONN:STAT?",
    "polatis+netconf": "GET",
}
"""The command that reads the circuits."""


def bodies(vendor: Vendor) -> tuple[str, ...]:
    dialect = vendor.scheme.partition("+")[2]
    return {"netconf": NETCONF, "tl1": TL1, "scpi": SCPI}[dialect]


def cases() -> Iterator[tuple[Vendor, str]]:
    """Return one switch for each dialect, with each reply."""
    by_scheme = {vendor.scheme: vendor for vendor in VENDORS}
    return ((vendor, body) for vendor in by_scheme.values() for body in bodies(vendor))


@pytest.fixture(params=cases(), ids=lambda case: f"{case[0]}-{bodies(case[0]).index(case[1])}")
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Rig, str]]:
    vendor, body = request.param
    async with rig(vendor) as running:
        yield running, body


async def hollow(bench: Rig, body: str) -> None:
    """Answer every read of the circuits with ``body``, from now on."""
    match = LISTS[bench.vendor.scheme]
    order = {"fault": "hollow", "match": match, "count": 1000, "code": body}
    assert await Control(bench.emulator).order(order) == {"ok": True}


def wanted(bench: Rig) -> CircuitRequest:
    return CircuitRequest(bench.ports[0], bench.ports[4])


async def owned(driver: OcsDriver) -> list[tuple[str, str, str]]:
    return [(c.a, c.b, c.owner) for c in (await driver.read()).circuits]


async def test_a_list_without_its_element_is_not_an_empty_list(bench: tuple[Rig, str]) -> None:
    running, body = bench
    async with running.driver() as driver:
        assert (await driver.apply([], [wanted(running)])).ok
        before = await owned(driver)
        await hollow(running, body)
        for call in (driver.read, driver.alarms):
            with pytest.raises(OcsBadReply):
                await call()
        with pytest.raises(OcsBadReply):
            await driver.apply([wanted(running)], [])
        running.emulator.switch.faults.clear()
        assert await owned(driver) == before


async def test_show_and_disconnect_of_such_a_switch_fail_and_keep_the_owner(
    bench: tuple[Rig, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``lightloom ocs`` does, also long after the circuit was made."""
    running, body = bench
    monkeypatch.setenv("LIGHTLOOM_OCS_STATE_DIR", str(running.state_dir))
    request, url = wanted(running), running.url()
    async with running.driver() as driver:
        assert (await driver.apply([], [request])).ok
        before = await owned(driver)
    await asyncio.sleep(120)
    await hollow(running, body)
    for call in (
        show(url, password=CREDENTIAL),
        disconnect(url, request.a, request.b, password=CREDENTIAL),
    ):
        with pytest.raises(OcsError, match="bad_reply"):
            await call
    running.emulator.switch.faults.clear()
    async with running.driver() as driver:
        assert await owned(driver) == before


async def test_a_change_that_cannot_be_read_back_has_an_unknown_outcome(
    bench: tuple[Rig, str],
) -> None:
    running, body = bench
    async with running.driver() as driver:
        assert (await driver.apply([], [wanted(running)])).ok
        before = await owned(driver)
        other = CircuitRequest(running.ports[1], running.ports[5])
        change = asyncio.create_task(driver.apply([], [other], deadline_s=2.0))
        revision = driver.revision  # type: ignore[attr-defined]
        await until(lambda: driver.revision > revision, "the change to be sent")  # type: ignore[attr-defined]
        await hollow(running, body)
        with pytest.raises(OcsTimeout, match="outcome_unknown"):
            await change
        running.emulator.switch.faults.clear()
        assert set(before) < set(await owned(driver))


@pytest.mark.parametrize("vendor", VENDORS, ids=str)
async def test_a_switch_without_circuits_is_empty(vendor: Vendor) -> None:
    async with rig(vendor) as running, running.driver() as driver:
        assert await owned(driver) == []
        if vendor.scheme == "polatis+netconf":
            await hollow(running, "<data/>")
            assert await owned(driver) == []
