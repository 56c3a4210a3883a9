"""Tests the driver contract: the same expectations for every optical-switch driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import ocs_driver
from ocs_driver import (
    Action,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
    EventKind,
    Mode,
    OcsConflict,
    OcsDriver,
    OcsError,
    OcsLogin,
    OcsTimeout,
    OcsUnreachable,
    PortHealth,
    describe,
)
from testbed.ocs_emulator.faults import FaultRule, Trick
from testbed.ocs_emulator.model import Fault, ModelError
from tests.parts.ocs.rig import (
    CREDENTIAL,
    FOREIGN,
    PATIENCE_S,
    VENDORS,
    CuttingProxy,
    Rig,
    Vendor,
    rig,
)


@pytest.fixture(params=VENDORS, ids=str)
def vendor(request: pytest.FixtureRequest) -> Vendor:
    chosen: Vendor = request.param
    return chosen


@pytest.fixture
async def bench(vendor: Vendor) -> AsyncIterator[Rig]:
    async with rig(vendor) as running:
        yield running


@pytest.fixture
async def driver(bench: Rig) -> AsyncIterator[OcsDriver]:
    async with bench.driver() as connected:
        yield connected


def straight(bench: Rig, count: int = 4) -> list[CircuitRequest]:
    half = len(bench.ports) // 2
    return [CircuitRequest(bench.ports[i], bench.ports[half + i]) for i in range(count)]


def rotated(bench: Rig) -> list[CircuitRequest]:
    half = len(bench.ports) // 2
    return [CircuitRequest(bench.ports[i], bench.ports[half + (i + 1) % half]) for i in range(half)]


async def test_the_switch_reports_its_identity(bench: Rig, driver: OcsDriver) -> None:
    capabilities = await driver.capabilities()
    personality = bench.emulator.personality
    assert capabilities.vendor == personality.vendor
    assert capabilities.model == personality.model
    assert capabilities.serial == personality.serial
    assert capabilities.firmware == personality.firmware


async def test_inventory_lists_all_ports_dark_at_first(bench: Rig, driver: OcsDriver) -> None:
    ports = await driver.inventory()
    assert {p.port for p in ports} == set(bench.emulator.personality.ports)
    assert {p.health for p in ports} == {PortHealth.BLOCKED}


async def test_make_read_delete(bench: Rig, driver: OcsDriver) -> None:
    wanted = straight(bench, 1)
    made = await driver.apply([], wanted)
    assert made.ok
    assert [r.outcome for r in made.results] == [CircuitOutcome.DONE]
    (circuit,) = (await driver.read()).circuits
    assert circuit.matches(wanted[0])
    assert circuit.state is CircuitState.TUNED
    assert circuit.owner == "lightloom"
    a, b = wanted[0].a, wanted[0].b
    assert bench.dataplane.paths == {a: b, b: a}
    lit = {p.port for p in await driver.inventory() if p.health is PortHealth.TUNED}
    assert {bench.emulator.personality.fiber(port) for port in lit} == {a, b}
    gone = await driver.apply(wanted, [])
    assert [(r.action, r.outcome) for r in gone.results] == [(Action.DELETE, CircuitOutcome.DONE)]
    assert (await driver.read()).circuits == ()
    assert bench.dataplane.paths == {}


async def test_everything_is_idempotent(bench: Rig, driver: OcsDriver) -> None:
    wanted = straight(bench)
    await driver.apply([], wanted)
    again = await driver.apply([], wanted)
    assert {r.outcome for r in again.results} == {CircuitOutcome.UNCHANGED}
    await driver.apply(wanted, [])
    again = await driver.apply(wanted, [])
    assert {r.outcome for r in again.results} == {CircuitOutcome.UNCHANGED}


async def test_all_circuits_move_in_one_call(bench: Rig, driver: OcsDriver) -> None:
    await driver.apply([], straight(bench))
    moved = await driver.apply(straight(bench), rotated(bench))
    assert moved.ok
    assert len(moved.results) == 8
    assert all(moved.circuits.find(wanted) for wanted in rotated(bench))
    assert len(moved.circuits.circuits) == 4


async def test_simplex_circuit_carries_one_direction(bench: Rig, driver: OcsDriver) -> None:
    a, b = bench.ports[0], bench.ports[4]
    assert (await driver.apply([], [CircuitRequest(a, b, duplex=False)])).ok
    # A switch whose paths carry light both ways has no one-way circuits.
    both = {a: b, b: a} if bench.vendor.reciprocal else {a: b}
    assert bench.dataplane.paths == both
    assert (await driver.apply([CircuitRequest(a, b, duplex=False)], [])).ok


async def test_safe_mode_leaves_busy_ports_alone(bench: Rig, driver: OcsDriver) -> None:
    await driver.apply([], straight(bench, 1))
    before = bench.dataplane.paths
    with pytest.raises(OcsConflict, match="port_busy"):
        await driver.apply([], rotated(bench)[:1])
    assert bench.dataplane.paths == before


async def test_update_mode_displaces_own_circuits_and_reports_it(
    bench: Rig, driver: OcsDriver
) -> None:
    await driver.apply([], straight(bench, 1))
    moved = await driver.apply([], rotated(bench)[:1], mode=Mode.UPDATE)
    assert moved.ok
    assert [r.action for r in moved.results] == [Action.DELETE, Action.MAKE]


@pytest.mark.parametrize("mode", [Mode.SAFE, Mode.UPDATE])
async def test_foreign_circuits_are_never_touched(
    bench: Rig, driver: OcsDriver, mode: Mode
) -> None:
    bench.foreign(bench.ports[0], bench.ports[4])
    foreign = straight(bench, 1)
    untouched = list(bench.emulator.model.circuits.values())
    for delete, make in ((foreign, []), ([], rotated(bench)[:1]), ([], foreign)):
        with pytest.raises(OcsConflict, match="foreign_circuit"):
            await driver.apply(delete, make, mode=mode)
    (circuit,) = (await driver.read()).circuits
    assert circuit.owner != "lightloom"
    assert list(bench.emulator.model.circuits.values()) == untouched


async def test_overwrite_mode_takes_ports_from_others(bench: Rig, driver: OcsDriver) -> None:
    bench.foreign(bench.ports[0], bench.ports[4])
    bench.foreign(bench.ports[3], bench.ports[7])
    taken = await driver.apply([], rotated(bench)[:1], mode=Mode.OVERWRITE)
    assert taken.ok
    assert taken.circuits.find(straight(bench)[3]) is not None


async def test_a_refused_circuit_is_reported_and_the_others_are_made(
    bench: Rig, driver: OcsDriver
) -> None:
    nowhere = CircuitRequest(bench.ports[0], "9.9.9" if "." in bench.ports[0] else "9999")
    result = await driver.apply([], [nowhere, *straight(bench)[1:]])
    assert [r.outcome for r in result.results] == [CircuitOutcome.FAILED] + [
        CircuitOutcome.DONE
    ] * 3
    assert result.results[0].code
    assert result.results[0].message


async def test_a_half_made_circuit_is_undone(
    bench: Rig, driver: OcsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    activate = bench.emulator.model.activate

    def refuse(name: str, now: float) -> None:
        # On a simplex device the second of the two pairs is refused.
        if name.startswith(bench.ports[4]) or (not simplex and bench.ports[0] in name):
            if not bench.vendor.two_step:
                bench.emulator.model.drop(name)
            raise ModelError(Fault.BUSY, name)
        activate(name, now)

    simplex = bool(bench.emulator.personality.partner)
    monkeypatch.setattr(bench.emulator.model, "activate", refuse)
    result = await driver.apply([], straight(bench))
    assert [r.outcome for r in result.results] == [CircuitOutcome.FAILED] + [
        CircuitOutcome.DONE
    ] * 3
    assert result.circuits.on_port(bench.ports[0]) == ()
    assert len((await driver.read()).circuits) == 3


async def test_half_a_duplex_circuit_is_completed(bench: Rig, driver: OcsDriver) -> None:
    if bench.vendor.reciprocal:
        return  # there are no halves
    a, b = bench.ports[0], bench.ports[4]
    await driver.apply([], [CircuitRequest(a, b, duplex=False)])
    whole = await driver.apply([], [CircuitRequest(a, b)])
    assert whole.ok
    (circuit,) = whole.circuits.circuits
    assert circuit.duplex
    assert bench.dataplane.paths == {a: b, b: a}


async def test_no_light_is_a_failure_and_an_alarm(bench: Rig, driver: OcsDriver) -> None:
    bench.dataplane.missing.add(bench.ports[0])
    result = await driver.apply([], straight(bench, 2))
    assert [r.outcome for r in result.results] == [CircuitOutcome.FAILED, CircuitOutcome.DONE]
    assert result.results[0].code == "circuit_failed"
    assert any(bench.ports[0] in alarm.obj for alarm in await driver.alarms())
    failed = {p.port for p in await driver.inventory() if p.health is PortHealth.FAILED}
    circuit = {bench.ports[0], bench.ports[4]}
    assert circuit & {bench.emulator.personality.fiber(port) for port in failed}
    # A failed circuit is made again when it is requested again.
    bench.dataplane.missing.clear()
    assert (await driver.apply([], straight(bench, 2))).ok
    assert await driver.alarms() == ()


async def test_a_circuit_still_tuning_at_the_deadline_is_not_done(vendor: Vendor) -> None:
    async with rig(vendor, never_settles=True) as slow, slow.driver() as driver:
        result = await driver.apply([], straight(slow, 1))
    assert result.results[0].code == "not_tuned"
    assert result.circuits.circuits[0].state is CircuitState.TUNING


@pytest.mark.parametrize("after_effect", [True, False])
async def test_a_lost_response_is_resolved_by_another_read(bench: Rig, after_effect: bool) -> None:
    if not bench.vendor.activate:
        trick = Trick.CUT_AFTER if after_effect else Trick.CUT_BEFORE
        bench.emulator.switch.faults.rules.append(FaultRule(trick))
        async with bench.driver() as driver:
            assert (await driver.apply([], straight(bench))).ok
        assert not bench.emulator.switch.faults.rules
        return
    proxy = CuttingProxy(bench.address, bench.vendor.activate, after_effect=after_effect)
    async with proxy.listening() as address, bench.driver(address) as driver:
        result = await driver.apply([], straight(bench))
        assert proxy.cut.is_set()
        assert result.ok
        assert len(result.circuits.circuits) == 4


async def test_a_switch_that_dies_during_a_change_leaves_the_outcome_unknown(bench: Rig) -> None:
    bench.emulator.switch.faults.rules.append(FaultRule(Trick.NO_REPLY))
    async with bench.driver() as driver:
        changing = asyncio.create_task(driver.apply([], straight(bench)))
        await bench.heard()
        await bench.emulator.stop()
        with pytest.raises(OcsTimeout, match="outcome_unknown"):
            await changing


async def test_changes_are_made_one_after_the_other(bench: Rig, driver: OcsDriver) -> None:
    one, two, three, four = straight(bench)
    results = await asyncio.gather(
        driver.apply([], [one, two]), driver.apply([], [three, four]), driver.apply([], [one])
    )
    assert all(result.ok for result in results)
    assert len((await driver.read()).circuits) == 4


async def test_power_of_a_lit_and_of_a_dark_port(bench: Rig, driver: OcsDriver) -> None:
    await driver.apply([], straight(bench, 1))
    lit, dark = await driver.power([bench.ports[4], bench.ports[5]])
    assert dark.out_dbm is None
    if bench.vendor.measures_light:
        assert lit.out_dbm is not None
        assert lit.out_dbm < bench.emulator.personality.light.launch_dbm
    else:
        assert lit.out_dbm is None
    with pytest.raises(OcsError):
        await driver.power(["no-such-port"])


async def test_malformed_ports_are_refused_before_anything_is_sent(
    bench: Rig, driver: OcsDriver
) -> None:
    await driver.apply([], straight(bench, 1))
    with pytest.raises(OcsError, match="bad_port"):
        await driver.apply(straight(bench, 1), [CircuitRequest("1.1.1;DLT-CRS", "x")])
    assert len((await driver.read()).circuits) == 1


async def test_events_of_port_and_session(bench: Rig, driver: OcsDriver) -> None:
    events = driver.subscribe()
    await driver.apply([], straight(bench, 1))
    watch = getattr(driver, "_watch", None)
    if watch is not None:
        await watch.poll()
    bench.dataplane.missing.add(bench.ports[0])
    async with asyncio.timeout(PATIENCE_S):
        while (alarm := await anext(events)).kind is not EventKind.ALARM:
            pass
    assert bench.ports[0] in alarm.obj or bench.ports[0] in alarm.text or alarm.text
    assert alarm.severity in {"critical", "major"}
    bench.foreign(bench.ports[1], bench.ports[5])
    bench.emulator.switch.changed("foreign", FOREIGN)
    async with asyncio.timeout(PATIENCE_S):
        while (await anext(events)).kind is not EventKind.CIRCUIT:
            pass
    await bench.emulator.stop()
    async with asyncio.timeout(PATIENCE_S):
        while (await anext(events)).kind is not EventKind.SESSION_LOST:
            pass
    await driver.close()
    assert {event.kind async for event in events} <= {EventKind.ALARM, EventKind.CLEAR}


async def test_wrong_password(bench: Rig) -> None:
    if not bench.vendor.logs_in:
        return  # SCPI has no login
    with pytest.raises(OcsLogin, match="refused") as caught:
        async with ocs_driver.open(bench.url(), password=CREDENTIAL + "x"):
            pass
    assert CREDENTIAL not in str(caught.value)


async def test_an_address_without_listener(vendor: Vendor) -> None:
    async with rig(vendor) as gone:
        await gone.emulator.stop()
        with pytest.raises(OcsUnreachable):
            async with ocs_driver.open(gone.url(), password=CREDENTIAL):
                pass


async def test_documents_for_the_command_line(bench: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTLOOM_OCS_STATE_DIR", str(bench.state_dir))
    a, b = bench.ports[0], bench.ports[4]
    made = await describe.connect(bench.url(), a, b, password=CREDENTIAL)
    assert made["results"] == [
        {
            "action": "make",
            "a": a,
            "b": b,
            "duplex": True,
            "outcome": "done",
            "code": "",
            "message": "",
        }
    ]
    shown = await describe.show(bench.url(), password=CREDENTIAL)
    assert shown["device"]["serial"] == bench.emulator.personality.serial
    assert set(shown["ports"][0]) == {
        "port",
        "health",
        "power_in_dbm",
        "power_out_dbm",
        "label",
    }
    (circuit,) = shown["circuits"]
    assert circuit["state"] == "tuned"
    assert circuit["duplex"] is True
    gone = await describe.disconnect(bench.url(), b, a, password=CREDENTIAL)
    assert gone["ok"]
    assert gone["circuits"] == []
    await describe.connect(bench.url(), a, b, duplex=False, password=CREDENTIAL)
    gone = await describe.disconnect(bench.url(), a, b, password=CREDENTIAL)
    assert gone["circuits"] == []
