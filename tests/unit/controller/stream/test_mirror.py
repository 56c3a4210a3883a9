"""A client that follows the stream and reads what it names has the current lists, in any case.

A frame is published after its change can be read, and every change of a list has a frame. Each
story runs random operations on a controller over devices in memory; after each operation the
mirror must become equal to the lists, and it reads only on a frame.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.devices.aggregators import AggregatorConnected, AggregatorLost, PortStatus
from controller.schema.jobs import read_job
from controller.schema.plans import PlanRequest
from controller.schema.stream import ChangedView, TransactionFrameView
from controller.schema.submit.request import JobRequest
from controller.state.intend.intentions import Make
from controller.stream.publisher import MANY
from ocs_driver.base import PortPower
from tests.parts.controller.mirror import Mirror
from tests.parts.controller.rack import Rack

ENDPOINTS = [f"gpu{n}" for n in range(6)]
STEPS = 14


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    rack = Rack(tmp_path)
    for number in range(6):
        rack.switch.add(f"1.1.{number + 1}", f"2.{1 + number // 3}.{1 + number % 3}")
    await rack.up()
    yield rack
    await rack.down()


@pytest.fixture
async def mirror(rack: Rack) -> AsyncIterator[Mirror]:
    mirror = Mirror(rack.service)
    await mirror.start()
    yield mirror
    await mirror.stop()


async def settled(rack: Rack, mirror: Mirror, what: str) -> None:
    left: list[str] = []

    async def equal() -> bool:
        left[:] = await mirror.differences()
        return not left

    try:
        await rack.until(equal)
    except TimeoutError:
        pytest.fail(f"after {what} the mirror is wrong: " + "; ".join(left))


class Story:
    """Operations on a rack and faults of it; every choice comes from ``dice``."""

    def __init__(self, rack: Rack, dice: random.Random) -> None:
        self._rack = rack
        self._dice = dice
        self._jobs = 0

    def operations(self) -> list[Callable[[], Awaitable[None]]]:
        found = [getattr(self, name) for name in dir(type(self)) if name.startswith("do_")]
        self._dice.shuffle(found)
        return found

    async def do_submit(self) -> None:
        for _ in range(self._dice.randint(1, 3)):
            self._jobs += 1
            count = self._dice.randint(1, 4)
            body: dict[str, object] = {"name": f"job-{self._jobs}", "count": count}
            body["policy"] = self._dice.choice(["pause", "live", "restart"])
            body["locality"] = self._dice.choice(["any", "preferred", "regroup"])
            if self._dice.random() < 0.5:
                body["endpoints"] = self._dice.sample(ENDPOINTS, count)
            await self._rack.desks.jobs.submit(read_job(body))

    async def do_submit_again(self) -> None:
        await self.do_submit()

    async def do_cancel(self) -> None:
        jobs = [j.name for j in await self._rack.desks.jobs.jobs() if j.state != "cancelled"]
        if jobs:
            await self._rack.desks.jobs.cancel(self._dice.choice(jobs))

    async def do_pause(self) -> None:
        for job in await self._rack.desks.jobs.jobs():
            if job.state == "running":
                await self._rack.desks.jobs.pause(job.name)
                break

    async def do_end(self) -> None:
        for key in list(self._rack.engine.statuses)[:2]:
            self._rack.engine.exit(*key, self._dice.choice([0, 1]))

    async def do_attach(self) -> None:
        request = self._dice.choice(["as0", "as1", None])
        await self._rack.desks.plans.attach(self._dice.choice(ENDPOINTS), request, 10)

    async def do_regroup(self) -> None:
        plan = await self._rack.desks.plans.make_plan(PlanRequest())
        await self._rack.desks.plans.apply(plan, 10)

    async def do_fail_a_port(self) -> None:
        for port in range(1, 5):
            self._rack.switch.refused.add(f"2.{self._dice.choice([1, 2])}.{port}")
        with contextlib.suppress(ServiceError):
            await self.do_attach()
        self._rack.switch.refused.clear()

    async def do_release(self) -> None:
        for entry in self._rack.desks.quarantine.views():
            await self._rack.desks.quarantine.release(entry.object)

    async def do_lose_a_server(self) -> None:
        servers = {s.name for s in self._rack.site.servers}
        self._rack.engine.lost = set() if self._rack.engine.lost else {sorted(servers)[0]}

    async def do_lose_the_switch(self) -> None:
        self._rack.switch.away = not self._rack.switch.away

    async def do_lose_an_aggregator(self) -> None:
        away = self._rack.aggregators.away
        self._rack.aggregators.away = away ^ {"as1"}
        self._rack.aggregators.post(
            AggregatorConnected("as1", ()) if away else AggregatorLost("as1")
        )

    async def do_flap(self) -> None:
        at = self._rack.see.light.attachments
        for point in list(at.values())[:1] * 6:
            for up in (False, True):
                self._rack.aggregators.post(PortStatus(point.aggregator, point.port, up))

    async def do_steal_a_fiber(self) -> None:
        lit = {p for pair in self._rack.switch.lit() for p in pair}
        free = sorted({f"2.{a}.{p}" for a in (1, 2) for p in range(1, 5)} - lit)
        if len(free) > 1:
            self._rack.switch.add(free[0], free[1], owner="other")

    async def do_sicken(self) -> None:
        self._rack.engine.sick = {self._dice.choice(ENDPOINTS): "its GPU fell off the bus"}

    async def do_heal(self) -> None:
        self._rack.engine.sick = {}

    async def do_dim(self) -> None:
        level = -self._dice.random()

        async def power(ports: tuple[str, ...]) -> tuple[PortPower, ...]:
            return tuple(PortPower(port, level, level) for port in ports)

        self._rack.switch.power = power  # type: ignore[method-assign,assignment]
        await self._rack.parts.power.measure()


@pytest.mark.parametrize("seed", range(4))
async def test_the_stream_announces_every_change(rack: Rack, mirror: Mirror, seed: int) -> None:
    story = Story(rack, random.Random(seed))  # noqa: S311 - a test, not a secret
    for operation in story.operations()[:STEPS]:
        with contextlib.suppress(ServiceError):
            await operation()
        await settled(rack, mirror, f"{operation.__name__} of story {seed}")
    ends = [f.data for f in mirror.frames if isinstance(f.data, TransactionFrameView)]
    for end in (view for view in ends if view.finished_at is not None):
        assert end.phases
        assert {s.endpoint for s in (*end.circuits.break_, *end.circuits.make)} == {
            move.endpoint for move in end.moves
        }


async def test_a_transaction_between_two_rounds_has_its_circuits(
    rack: Rack, mirror: Mirror
) -> None:
    """The publisher does not run between its begin and its end."""
    publisher = rack.parts.publisher
    publish, publisher.publish_changes = publisher.publish_changes, lambda: None  # type: ignore[method-assign]
    moved = await rack.desks.plans.attach("gpu0", "as1", 10)
    assert moved.state == "committed"
    publisher.publish_changes = publish  # type: ignore[method-assign]
    await settled(rack, mirror, "a move")
    (frame,) = [f.data for f in mirror.frames if isinstance(f.data, TransactionFrameView)]
    assert [s.endpoint for s in frame.circuits.make] == ["gpu0"]
    assert [s.endpoint for s in frame.circuits.break_] == ["gpu0"]
    assert next(phase.name for phase in frame.phases) == "admit"


async def test_many_changes_at_once_are_one_frame(rack: Rack, mirror: Mirror) -> None:
    publisher = rack.parts.publisher
    publish, publisher.publish_changes = publisher.publish_changes, lambda: None  # type: ignore[method-assign]
    for number in range(MANY + 1):
        await rack.desks.jobs.submit(JobRequest(name=f"many-{number}", count=1))
    publisher.publish_changes = publish  # type: ignore[method-assign]
    await settled(rack, mirror, "a storm")
    jobs = [f.data for f in mirror.frames if isinstance(f.data, ChangedView)]
    assert next(view.name for view in jobs if view.kind == "job") == ""


async def test_a_transaction_that_did_not_begin_ends_too(
    rack: Rack, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's allocation could not be made durable, so its light is not moved."""
    await rack.desks.plans.attach("gpu0", None, 10)
    save, failed = rack.parts.ender.save, []

    async def once(name: str, made: Make) -> None:
        if not failed:
            failed.append(name)
            raise ServiceError("failed", "the disk is full")
        await save(name, made)

    monkeypatch.setattr(rack.parts.ender, "save", once)
    await rack.desks.jobs.submit(JobRequest(name="red", count=1, endpoints=["gpu0"]))
    await rack.state("red", "running")
    await settled(rack, mirror, "a transaction that was not begun")
    ended = {t.id: t for t in rack.desks.plans.transactions()}
    assert [ended[i].state for i in ("t1", "t2", "t3")] == ["committed", "rolled_back", "committed"]
    assert ended["t2"].error == "the disk is full"
