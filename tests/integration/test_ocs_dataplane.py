"""Packets follow the light: a real emulator process, veth fibers, three endpoints."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import ocs_driver
from ocs_driver import CircuitRequest, CircuitState, Mode, OcsDriver
from testbed.ocs_emulator.veth import FILTER_PRIORITY
from tests.integration.waiting import eventually

pytestmark = pytest.mark.root

OCS = "ll-t-ocs"
ENDPOINTS = {"ll-t-a": "1.1.1", "ll-t-b": "1.1.2", "ll-t-c": "1.1.3"}
"""Endpoint namespace to switch port."""
CREDENTIAL = "x"
PATIENCE_S = 60
"""Longest that a machine with much other work is waited for."""


@dataclass(slots=True, frozen=True)
class Dialect:
    """A switch that is played, and how its URL names the same ports."""

    scheme: str
    personality: str
    front_end: str
    options: tuple[str, ...] = ()
    query: str = ""


_GRID = ("--port-grid", "1x1x8")
DIALECTS = (
    Dialect("calient+tl1", "calient-s320", "calient-tl1-raw"),
    Dialect("polatis+tl1", "polatis-48xCC", "polatis-tl1", _GRID, "?ports=1x1x8"),
    Dialect("polatis+scpi", "polatis-48xCC", "polatis-scpi", _GRID, "?ports=1x1x8"),
    Dialect("polatis+netconf", "polatis-48xCC", "polatis-netconf", _GRID, "?ports=1x1x8"),
    Dialect("polatis+tl1", "polatis-24x24", "polatis-tl1", _GRID, "?ports=1x1x8"),
)


def ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["ip", *words], check=check, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return done.stdout


def tc(*words: str) -> str:
    command = ["tc", "-n", OCS, *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stdout


def link_name(endpoint: str) -> str:
    return f"o-{endpoint[-1]}"


def address(endpoint: str) -> str:
    return f"10.99.0.{ord(endpoint[-1])}"


def plug(endpoint: str) -> None:
    """Lay the fiber between an endpoint and the switch."""
    far = ("peer", "name", link_name(endpoint), "netns", OCS)
    ip("-n", endpoint, "link", "add", "e0", "type", "veth", *far)
    ip("-n", endpoint, "addr", "add", f"{address(endpoint)}/24", "dev", "e0")
    ip("-n", endpoint, "link", "set", "e0", "up")


def has_carrier(endpoint: str) -> bool:
    (link,) = json.loads(ip("-n", endpoint, "-j", "link", "show", "e0"))
    return "LOWER_UP" in link["flags"]


def reaches(source: str, target: str, *, patience_s: int = PATIENCE_S) -> bool:
    """Whether one ping crosses. After carrier returns, the first ARP requests may be lost."""
    words = ["ping", "-q", "-c", "1", "-i", "0.2", "-w", str(patience_s), address(target)]
    command = ["ip", "netns", "exec", source, *words]
    return (
        subprocess.run(command, capture_output=True, check=False, timeout=2 * PATIENCE_S).returncode
        == 0
    )


async def cut_off(source: str, target: str) -> bool:
    return not await asyncio.to_thread(reaches, source, target, patience_s=1)


def filters(endpoint: str) -> list[int]:
    """Priorities of the ingress filters on the switch's end of a fiber."""
    shown = tc("-j", "filter", "show", "dev", link_name(endpoint), "ingress")
    return sorted({entry["pref"] for entry in json.loads(shown or "[]")})


@pytest.fixture
def fibers() -> Iterator[None]:
    namespaces = [OCS, *ENDPOINTS]
    for name in namespaces:
        ip("netns", "delete", name, check=False)
    try:
        for name in namespaces:
            ip("netns", "add", name)
        for endpoint in ENDPOINTS:
            plug(endpoint)
        yield
    finally:
        for name in namespaces:
            ip("netns", "delete", name, check=False)


@dataclass(slots=True)
class Running:
    process: asyncio.subprocess.Process
    driver: OcsDriver


@contextlib.asynccontextmanager
async def emulator(folder: Path, dialect: Dialect | None = None) -> AsyncIterator[Running]:
    dialect = dialect or DIALECTS[0]
    links = folder / "links.json"
    links.write_text(json.dumps({port: link_name(name) for name, port in ENDPOINTS.items()}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "testbed.ocs_emulator", "--personality", dialect.personality, *dialect.options),
        *("--listen", f"{dialect.front_end}=127.0.0.1:0"),
        *("--netns", OCS, "--links", str(links)),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            ready = json.loads(await process.stdout.readline())
        assert ready["event"] == "listening"
        url = f"{dialect.scheme}://admin@{ready['listen'][dialect.front_end]}{dialect.query}"
        async with ocs_driver.open(url, password=CREDENTIAL, state_dir=folder) as driver:
            yield Running(process, driver)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.scheme)
async def test_only_the_url_changes(fibers: None, tmp_path: Path, dialect: Dialect) -> None:
    """The same cables and port names with another vendor's switch in between."""
    a, b, c = ENDPOINTS
    async with emulator(tmp_path, dialect) as running:
        assert (await running.driver.apply([], [between(a, b)])).ok
        assert await asyncio.to_thread(reaches, a, b)
        moved = await running.driver.apply([between(a, b)], [between(a, c)])
        assert moved.ok
        assert await asyncio.to_thread(reaches, a, c)
        assert await cut_off(a, b)


@pytest.fixture
async def switch(fibers: None, tmp_path: Path) -> AsyncIterator[Running]:
    async with emulator(tmp_path) as running:
        yield running


def between(a: str, b: str) -> CircuitRequest:
    return CircuitRequest(ENDPOINTS[a], ENDPOINTS[b])


async def carrier_comes(endpoint: str) -> None:
    await eventually(lambda: has_carrier(endpoint), limit_s=PATIENCE_S)


async def only_state_comes(driver: OcsDriver, state: CircuitState) -> None:
    """The switch says what it did to the links when it is done with all of them."""
    deadline = time.monotonic() + PATIENCE_S
    while [c.state for c in (await driver.read()).circuits] != [state]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def test_packets_follow_the_light(switch: Running) -> None:
    a, b, c = ENDPOINTS
    assert not any(map(has_carrier, ENDPOINTS))
    assert await cut_off(a, b)

    assert (await switch.driver.apply([], [between(a, b)])).ok
    assert [has_carrier(name) for name in (a, b, c)] == [True, True, False]
    assert await asyncio.to_thread(reaches, a, b)
    assert await asyncio.to_thread(reaches, b, a)

    # Re-pointing leaves no ghost: both directions of the old circuit are gone.
    assert (await switch.driver.apply([], [between(a, c)], mode=Mode.UPDATE)).ok
    assert [has_carrier(name) for name in (a, b, c)] == [True, False, True]
    assert filters(b) == []
    assert filters(a) == filters(c) == [FILTER_PRIORITY]
    assert await asyncio.to_thread(reaches, a, c)
    assert await cut_off(b, a)

    assert (await switch.driver.apply([between(a, c)], [])).ok
    assert not any(map(has_carrier, ENDPOINTS))
    assert filters(a) == filters(c) == []


async def test_an_endpoint_made_anew_gets_its_light_back(switch: Running) -> None:
    a, b, _ = ENDPOINTS
    assert (await switch.driver.apply([], [between(a, b)])).ok
    events = switch.driver.subscribe()
    ip("-n", b, "link", "delete", "e0")
    async with asyncio.timeout(PATIENCE_S):
        assert (await anext(events)).obj == ENDPOINTS[b]
    (circuit,) = (await switch.driver.read()).circuits
    assert circuit.state is CircuitState.FAILED
    assert not has_carrier(a)
    plug(b)
    await carrier_comes(b)
    await carrier_comes(a)
    assert await asyncio.to_thread(reaches, a, b)
    await only_state_comes(switch.driver, CircuitState.TUNED)


async def test_a_link_that_appears_later_is_found(switch: Running) -> None:
    a, b, _ = ENDPOINTS
    ip("-n", b, "link", "delete", "e0")
    assert not (await switch.driver.apply([], [between(a, b)])).ok
    plug(b)
    await carrier_comes(b)
    assert (await switch.driver.apply([], [between(a, b)])).ok
    assert await asyncio.to_thread(reaches, a, b)


async def test_termination_darkens_everything_and_touches_nothing_foreign(switch: Running) -> None:
    a, b, _ = ENDPOINTS
    assert (await switch.driver.apply([], [between(a, b)])).ok
    on = ("dev", link_name(a))
    match_all = ("protocol", "ip", "u32", "match", "u32", "0", "0", "flowid", "1:1")
    tc("filter", "add", *on, "ingress", "prio", "60000", *match_all)
    tc("qdisc", "add", *on, "root", "pfifo", "limit", "77")
    switch.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        assert await switch.process.wait() == os.EX_OK
    assert not any(map(has_carrier, ENDPOINTS))
    assert filters(a) == [60000]
    assert filters(b) == []
    assert "pfifo" in (shown := tc("qdisc", "show", *on))
    assert "limit 77p" in shown


async def test_a_crashed_switch_starts_dark(fibers: None, tmp_path: Path) -> None:
    a, b, _ = ENDPOINTS
    async with emulator(tmp_path) as crashing:
        assert (await crashing.driver.apply([], [between(a, b)])).ok
        crashing.process.kill()
        await crashing.process.wait()
        assert has_carrier(a)
    async with emulator(tmp_path) as restarted:
        assert (await restarted.driver.read()).circuits == ()
        assert not any(map(has_carrier, ENDPOINTS))
        assert filters(a) == filters(b) == []
