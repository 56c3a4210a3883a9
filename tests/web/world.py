"""A controller over fakes with traffic, and its console on loopback."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Page, expect

from controller.api.app import create_app
from controller.api.gate.access import Access
from controller.devices.counters import PortCounters
from controller.fabric import executor
from controller.people.accounts import Accounts, StoredProject
from controller.people.authz import Role
from controller.schema.submit.request import JobRequest
from controller.transaction.model import Phase
from controller.transaction.phases import PHASES
from ocs_driver.base import Alarm, ApplyResult, PortHealth, PortInfo
from scheduler.model import Locality, RankOrder
from sitefile import CabledSite
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.rack import Rack
from tests.parts.controller.switch import FakeOcs

TOGETHER_BPS = 228e6
"""What a container receives while its job is under one aggregator."""
APART_BPS = 57e6
"""The same while the job's ring crosses between aggregators."""
PATIENCE_S = 600.0
"""Longer than any test."""


class Traffic(FakeAggregators):
    """Ports count what their containers send: slowly while the job is spread."""

    async def port_counters(self, as_name: str) -> Mapping[int, PortCounters]:
        assert self.engine is not None
        light = self.light()
        homes: dict[str, set[str]] = {}
        for status in self.engine.statuses.values():
            if status.endpoint in light:
                homes.setdefault(status.job, set()).add(light[status.endpoint].aggregator)
        for status in self.engine.statuses.values():
            at = light.get(status.endpoint)
            if at is not None and at.aggregator == as_name:
                rate = TOGETHER_BPS if len(homes[status.job]) == 1 else APART_BPS
                # One read is one second of the switch's clock; ports send twice what they count.
                self.counters[at] = self.counters.get(at, 0) + int(rate / 8 / 2)
        return await super().port_counters(as_name)


class LitOcs(FakeOcs):
    """Reports its ports and an alarm."""

    async def inventory(self) -> tuple[PortInfo, ...]:
        lit = {port for circuit in self.circuits for port in (circuit.a, circuit.b)}
        ports = [f"{side}.{i}" for side in ("1.1", "2.1", "2.2") for i in range(1, 9)]
        return tuple(
            PortInfo(p, PortHealth.TUNED if p in lit else PortHealth.BLOCKED) for p in ports
        )

    async def alarms(self) -> tuple[Alarm, ...]:
        return (Alarm("1.1.3", "minor", "low light"),)


class TalkingRack(Rack):
    """The paper's rack with traffic; beside a browser everything may take long."""

    aggregators_kind = Traffic

    def __init__(self, state_dir: Path, site: CabledSite | None = None) -> None:
        super().__init__(state_dir, site)
        self.switch = LitOcs()

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> None:
        await super().until(condition, limit_s)


class HeldSwitch:
    """Holds back all changes of the optical switch until `let_go`."""

    def __init__(self, rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go_on, self._apply = asyncio.Event(), rack.switch.apply
        monkeypatch.setattr(rack.switch, "apply", self._held)
        # Without these the transaction would time out and roll back.
        monkeypatch.setattr(executor, "SWITCH_TIMEOUT_S", PATIENCE_S)
        rules = replace(PHASES[Phase.SWITCH], deadline_s=PATIENCE_S)
        monkeypatch.setitem(PHASES, Phase.SWITCH, rules)

    async def _held(self, *changes: Any, **how: Any) -> ApplyResult:
        await self._go_on.wait()
        return await self._apply(*changes, **how)

    def let_go(self) -> None:
        """Let it carry out the changes."""
        self._go_on.set()


@asynccontextmanager
async def served(rack: Rack, access: Access | None = None) -> AsyncIterator[str]:
    """Serve the API and the console of a rack; yields the URL."""
    async with serving(create_app(rack.desks, access)) as url:
        yield url


class _Server(uvicorn.Server):
    """Leaves signals to the test runner."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serve an application on loopback; yields the URL."""
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        log_level="warning",
        lifespan="off",
        access_log=False,
        # A client that reuses a connection while it closes would lose an answer.
        timeout_keep_alive=int(PATIENCE_S),
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[bound]))
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await task
        bound.close()


async def people(directory: Path) -> tuple[Access, dict[str, str]]:
    """Return accounts with one user per role, and their tokens by role."""
    accounts = Accounts(directory / "accounts.sqlite", clock=time.time)
    await accounts.open()
    await accounts.put_project(StoredProject("vision"))
    tokens = {}
    for role in Role:
        projects = ["vision"] if role in (Role.USER, Role.VIEWER) else []
        _, tokens[role.value] = await accounts.create(f"some-{role}", role, projects)
    return Access(accounts), tokens


async def enter(page: Page, url: str, token: str) -> None:
    """Sign in."""
    await page.goto(url)
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("navigation", name="Views")).to_be_visible()


def scattered(name: str, count: int, project: str = "default") -> JobRequest:
    """Request a job that is placed as by a scheduler without knowledge of the fabric."""
    return JobRequest(
        name=name,
        count=count,
        project=project,
        locality=Locality.ANY,
        rank_order=RankOrder.PLACED,
        command=["train"],
    )


async def until(page: Page, condition: str, limit_s: float = 30.0) -> None:
    """Wait until a JavaScript expression is true; the page's policy forbids wait_for_function."""
    deadline = time.monotonic() + limit_s
    while not await page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        await asyncio.sleep(0.05)


async def stand_still(page: Page) -> None:
    """Stop the page's clock, which must be installed: its timers fire only when it is moved."""
    await page.clock.pause_at(await page.evaluate("Date.now()") / 1000 + 1)


async def point(page: Page, element: str) -> tuple[float, float]:
    """Return the centre of a drawn element on the page."""
    await until(page, f"lightloom.view.scene?.cy.getElementById('{element}').nonempty()")
    box = await page.locator(".canvas").bounding_box()
    assert box is not None
    at = await page.evaluate(
        "(id) => { const b = lightloom.view.scene.cy.getElementById(id).renderedBoundingBox();"
        " return [(b.x1 + b.x2) / 2, (b.y1 + b.y2) / 2]; }",
        element,
    )
    return box["x"] + at[0], box["y"] + at[1]


async def drag(page: Page, endpoint: str, to: str) -> None:
    """Drag an endpoint to an element and drop it."""
    await carry(page, endpoint, to)
    await page.mouse.up()


async def carry(page: Page, endpoint: str, to: str) -> None:
    """Drag an endpoint to an element without dropping it."""
    await page.mouse.move(*await point(page, f"endpoint/{endpoint}"))
    await page.mouse.down()
    await page.mouse.move(*await point(page, to), steps=8)
