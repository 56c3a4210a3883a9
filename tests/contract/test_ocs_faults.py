"""Tests every driver with every fault of the emulator."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import ocs_driver
from ocs_driver import (
    CircuitOutcome,
    CircuitRequest,
    EventKind,
    OcsDriver,
    OcsError,
    OcsUnreachable,
)
from ocs_driver.polatis.netconf_session import NetconfTiming
from ocs_driver.scpi.session import ScpiTiming
from ocs_driver.tl1.session import Tl1Timing
from testbed.ocs_emulator.control import KINDS, Control
from testbed.ocs_emulator.faults import Trick
from testbed.ocs_emulator.netconf_server import NetconfServer
from testbed.ocs_emulator.sessions import SessionRules
from tests.parts.ocs.rig import (
    CREDENTIAL,
    PATIENCE_S,
    VENDORS,
    Rig,
    Vendor,
    rig,
    until,
)


@pytest.fixture(params=VENDORS, ids=str)
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    vendor: Vendor = request.param
    async with rig(vendor) as running:
        yield running


@pytest.fixture
async def driver(bench: Rig) -> AsyncIterator[OcsDriver]:
    async with bench.driver() as connected:
        yield connected


async def order(bench: Rig, **what: Any) -> None:
    answer = await Control(bench.emulator).order(what)
    assert answer == {"ok": True}


def two(bench: Rig) -> list[CircuitRequest]:
    return [CircuitRequest(bench.ports[i], bench.ports[4 + i]) for i in range(2)]


@pytest.mark.parametrize("trick", list(Trick))
async def test_tricks_on_a_make_end_in_the_right_map_or_a_reason(bench: Rig, trick: Trick) -> None:
    await order(bench, fault=trick.value, code="SROF")
    async with bench.driver() as driver:
        result = await driver.apply([], two(bench), deadline_s=PATIENCE_S)
        lost = {r.code for r in result.results if r.outcome is CircuitOutcome.FAILED}
        if trick is Trick.DENY:
            # The pairs of a refused list are sent one by one, so one refusal may be recovered.
            assert result.ok or lost
        elif trick in (Trick.NO_EFFECT, Trick.HOLLOW):
            assert result.ok or lost
        else:
            assert result.ok, result.results
        for request in two(bench):
            shown = result.circuits.find(request)
            assert (shown is not None) or lost


@pytest.mark.parametrize("release", ["old", "new"])
async def test_unusual_replies_have_the_same_meaning(
    bench: Rig, driver: OcsDriver, release: str
) -> None:
    await driver.apply([], two(bench))
    plain = await driver.read()
    await order(bench, fault="firmware", release=release)
    await order(bench, fault="segments", bytes=3)
    await order(bench, fault="shuffle-rows")
    await order(bench, fault="storm", count=50, interleave=2)
    strange = await driver.read()
    assert sorted((c.a, c.b, c.state, c.owner) for c in plain.circuits) == sorted(
        (c.a, c.b, c.state, c.owner) for c in strange.circuits
    )


async def test_slow_and_stuck_mirrors(bench: Rig, driver: OcsDriver) -> None:
    await order(bench, fault="slow", seconds=0.2, count=4)
    assert (await driver.apply([], two(bench)[:1])).ok
    await order(bench, fault="stuck", count=2)
    result = await driver.apply([], two(bench)[1:])
    assert result.results[0].outcome is CircuitOutcome.FAILED
    assert result.results[0].code in {"not_tuned", "circuit_failed"}


async def test_stray_fading_and_missing_light(bench: Rig, driver: OcsDriver) -> None:
    if not bench.vendor.measures_light:
        return  # unmeasured light cannot be detected
    a, b = bench.ports[0], bench.ports[4]
    elsewhere = bench.ports[7]
    beside = {f: o for o, f in bench.emulator.personality.partner.items()}
    await order(bench, fault="stray", port=beside.get(elsewhere, elsewhere))
    astray = await driver.apply([], [CircuitRequest(a, b)], deadline_s=PATIENCE_S)
    assert astray.results[0].code == "circuit_failed"
    assert (await driver.apply([], [CircuitRequest(a, b)], deadline_s=PATIENCE_S)).ok, "made again"
    await driver.apply([CircuitRequest(a, b)], [])
    for fault, extra in (("dark", {}), ("creep", {"db": 45.0}), ("fail", {})):
        await order(bench, fault=fault, port=a, **extra)
        failed = await driver.apply([], [CircuitRequest(a, b)], deadline_s=PATIENCE_S)
        assert not failed.ok, fault
        assert failed.results[0].message
        await driver.apply([CircuitRequest(a, b)], [])
        await order(bench, fault="repair", port=a)
    assert (await driver.apply([], [CircuitRequest(a, b)])).ok


@pytest.mark.parametrize("keeps", ["preserve", "empty"])
async def test_a_reboot_of_a_connected_switch(bench: Rig, keeps: str) -> None:
    async with bench.driver() as driver:
        await driver.apply([], two(bench))
        events = driver.subscribe()
        await bench.emulator.reboot(preserve=keeps == "preserve")
        async with asyncio.timeout(PATIENCE_S):
            while (await anext(events)).kind is not EventKind.SESSION_RESTORED:
                pass
        circuits = (await driver.read()).circuits
        assert len(circuits) == (2 if keeps == "preserve" else 0)
        assert (await driver.apply([], two(bench))).ok


async def test_a_stopped_switch_does_not_serve_an_accepted_connection(
    bench: Rig,
) -> None:
    """The connection is accepted, and served only after the switch was stopped."""
    server = bench.emulator.servers[bench.vendor.front_end]
    if isinstance(server, NetconfServer):
        return  # its server ends a connection as soon as it is made
    await bench.emulator.stop()
    async with (
        await asyncio.start_server(server.serve, "127.0.0.1", 0) as late,  # type: ignore[attr-defined]
        asyncio.timeout(PATIENCE_S),
    ):
        reader, writer = await asyncio.open_connection(*late.sockets[0].getsockname())
        writer.write(b"ACT-USER::admin:1::x;*IDN?\r\n")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_one_session_too_many(bench: Rig, driver: OcsDriver) -> None:
    await driver.read()
    await order(bench, fault="sessions", limit=1)
    with pytest.raises((OcsUnreachable, OcsError)):
        async with bench.driver():
            pass
    assert (await driver.read()).circuits == ()


async def test_the_driver_recovers_from_an_idle_logout(
    bench: Rig, driver: OcsDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = 0
    leave = SessionRules.leave

    def leaving(self: SessionRules) -> None:
        nonlocal ended
        ended += 1
        leave(self)

    monkeypatch.setattr(SessionRules, "leave", leaving)
    for request in two(bench):
        before = ended
        await order(bench, fault="idle-logout", seconds=5.0)
        await driver.read()
        await until(lambda before=before: ended > before, "the session to be ended")
        await order(bench, fault="idle-logout", seconds=0)
        assert (await driver.apply([], [request])).ok


async def test_the_driver_waits_for_the_end_of_the_login_race(bench: Rig) -> None:
    await order(bench, fault="login-race", seconds=0.2)
    async with bench.driver() as driver:
        assert (await driver.apply([], two(bench))).ok


async def test_sessions_are_released(bench: Rig) -> None:
    await order(bench, fault="sessions", limit=2)
    for _ in range(5):
        async with bench.driver() as driver:
            await driver.read()


async def test_a_foreign_edit_is_reported_and_not_changed(bench: Rig, driver: OcsDriver) -> None:
    beside = {f: o for o, f in bench.emulator.personality.partner.items()}
    a, b = bench.ports[2], bench.ports[6]
    await order(bench, fault="foreign", a=a, b=beside.get(b, b))
    (circuit,) = (await driver.read()).circuits
    assert circuit.owner != "lightloom"
    assert (await driver.apply([], two(bench))).ok
    await order(bench, fault="foreign", a=a, b=beside.get(b, b), remove=1)
    assert len((await driver.read()).circuits) == 2


async def test_invalid_orders_get_an_error(bench: Rig) -> None:
    control = Control(bench.emulator)
    for bad in ({}, {"fault": "frob"}, {"fault": "dark"}, {"fault": "dark", "port": "zz"}):
        answer = await control.order(bad)
        assert not answer["ok"]
        assert answer["error"]
    assert set(KINDS) >= {"slow", "stuck", "stray", "creep", "dark", "fail", "reboot", "clear"}


async def test_orders_through_the_socket(bench: Rig, tmp_path: Path) -> None:
    control = Control(bench.emulator)
    path = tmp_path / "control.sock"
    await control.listen(path)
    assert path.stat().st_mode & 0o077 == 0
    reader, writer = await asyncio.open_unix_connection(path)
    for line, ok in ((b'{"fault": "delay", "seconds": "0.01"}', True), (b"nonsense", False)):
        writer.write(line + b"\n")
        assert json.loads(await reader.readline())["ok"] is ok
    writer.close()
    await control.close()
    assert bench.emulator.switch.faults.delay_s == 0.01


_HELLO_S = {
    "tl1": Tl1Timing().login_s,
    "scpi": ScpiTiming().hello_s,
    "netconf": NetconfTiming().connect_s,
}
"""How long a driver waits for the first response."""


async def test_the_scheme_of_another_dialect(bench: Rig) -> None:
    """The error reports the wrong dialect, or no response with the duration of the wait."""
    host, port = bench.address
    for scheme in ocs_driver.DRIVERS.keys() - {bench.vendor.scheme}:
        driver = ocs_driver.open(
            f"{scheme}://admin@{host}:{port}", password=CREDENTIAL, state_dir=bench.state_dir
        )
        with pytest.raises(OcsError) as caught:
            await driver.connect()
        await driver.close()
        assert caught.value.obj == f"{host}:{port}"
        assert CREDENTIAL not in str(caught.value)
        if caught.value.code == "wrong_dialect":
            continue
        assert isinstance(caught.value, OcsUnreachable)
        waited = re.search(r"([\d.]+) s\b", caught.value.hint)
        assert "is this the" in caught.value.hint
        hello_s = _HELLO_S[scheme.partition("+")[2]]
        assert waited is None or 0 < float(waited[1]) <= hello_s
        assert waited is not None or "banner" in caught.value.hint
    assert bench.emulator.model.circuits == {}
