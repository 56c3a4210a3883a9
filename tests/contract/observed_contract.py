"""The contract of every observed engine. Subclass it and provide a ``rig``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import pytest

from controller.devices.observed import (
    End,
    EngineJob,
    JobChanges,
    ObservedEngine,
    ObservedError,
    Published,
    Turn,
    Verdict,
)


class Rig(Protocol):
    """An engine without jobs, whose endpoints are ``gpu0`` to ``gpu6``, and hands on its jobs."""

    engine: ObservedEngine

    async def submit(self, endpoints: int) -> str:
        """Queue a job that wants so many endpoints; return its key."""
        ...

    async def allocate(self, key: str, *endpoints: str) -> None: ...

    async def run(self, key: str) -> None: ...

    async def begin_to_end(self, key: str) -> None:
        """Have the engine end a job whose processes do not go at once."""
        ...

    async def end(self, key: str, end: End) -> None: ...

    async def requeue(self, key: str) -> None: ...

    async def forget(self, key: str) -> None: ...

    async def go_away(self) -> None: ...

    async def noticed(self) -> None:
        """Return once those who watch have noticed that it is away."""
        ...

    async def come_back(self) -> None: ...

    def forbid(self) -> None:
        """Take the right to answer and to publish."""
        ...

    def told(self, key: str) -> str:
        """Return what the job's owner reads; empty for nothing."""
        ...

    def leaf(self, endpoint: str) -> str | None:
        """Return the aggregator under which the engine has an endpoint, None for none."""
        ...

    def writes(self) -> int:
        """Return how often a topology was written."""
        ...


class Watcher:
    """Takes batches, and keeps what they say."""

    def __init__(self, batches: AsyncIterator[JobChanges]) -> None:
        self._batches = batches
        self.jobs: dict[str, EngineJob] = {}
        self.latest = JobChanges((), complete=False)

    async def until(self, good: Callable[[], bool]) -> None:
        """Take batches until it is good; fail after half a minute."""
        async with asyncio.timeout(30):
            while not good():
                self.latest = batch = await anext(self._batches)
                if batch.complete:
                    self.jobs = {}
                self.jobs |= {seen.key: seen for seen in batch.seen}

    async def see(self, key: str, turn: Turn) -> EngineJob:
        """Take batches until a job has come so far; return it."""
        await self.until(lambda: key in self.jobs and self.jobs[key].turn is turn)
        return self.jobs[key]


@asynccontextmanager
async def watching(engine: ObservedEngine) -> AsyncIterator[Watcher]:
    """Watch an engine's changes, after its first batch."""
    batches = engine.changes()
    watcher = Watcher(batches)
    try:
        await watcher.until(lambda: watcher.latest.complete)
        yield watcher
    finally:
        await batches.aclose()  # type: ignore[attr-defined]


def published(epoch: int, **homes: str) -> Published:
    """Return a topology: endpoint=aggregator; the others of seven endpoints are dark."""
    leaves: dict[str, tuple[str, ...]] = {}
    for endpoint, home in sorted(homes.items()):
        leaves[home] = (*leaves.get(home, ()), endpoint)
    dark = tuple(f"gpu{i}" for i in range(7) if f"gpu{i}" not in homes)
    return Published(epoch, leaves, dark)


class ObservedContract:
    async def test_the_first_batch_is_everything(self, rig: Rig) -> None:
        keys = {await rig.submit(1), await rig.submit(2)}
        first = await anext(rig.engine.changes())
        assert first.complete
        assert {seen.key for seen in first.seen} == keys
        assert all(key.startswith(f"{rig.engine.kind}:") for key in keys)
        assert rig.engine.reach().up

    async def test_an_engine_without_jobs_says_so(self, rig: Rig) -> None:
        assert await anext(rig.engine.changes()) == JobChanges((), complete=True)
        assert rig.engine.endpoints == {f"gpu{i}" for i in range(7)}

    async def test_a_job_from_queue_to_end(self, rig: Rig) -> None:
        async with watching(rig.engine) as watcher:
            key = await rig.submit(2)
            waits = await watcher.see(key, Turn.WAITS)
            assert (waits.endpoints, waits.wants.count, waits.scope) == ((), 2, "")
            await rig.allocate(key, "gpu2", "gpu3")
            allocated = await watcher.see(key, Turn.ALLOCATED)
            assert allocated.endpoints == ("gpu2", "gpu3")
            await rig.run(key)
            running = await watcher.see(key, Turn.RUNNING)
            assert (running.endpoints, running.scope) == (("gpu2", "gpu3"), key)
            await rig.end(key, "completed")
            ended = await watcher.see(key, Turn.ENDED)
            assert (ended.end, ended.endpoints) == ("completed", ("gpu2", "gpu3"))
            assert ended.ended_at is not None
            seen = (waits, allocated, running, ended)
            assert len({job.revision for job in seen}) == 4
            assert not watcher.latest.complete

    @pytest.mark.parametrize("end", ["failed", "cancelled"])
    async def test_how_a_job_ended(self, rig: Rig, end: End) -> None:
        async with watching(rig.engine) as watcher:
            key = await rig.submit(1)
            await rig.allocate(key, "gpu6")
            await rig.run(key)
            await watcher.see(key, Turn.RUNNING)
            await rig.end(key, end)
            assert (await watcher.see(key, Turn.ENDED)).end == end

    async def test_whether_a_job_is_ending(self, rig: Rig) -> None:
        key = await rig.submit(1)
        await rig.allocate(key, "gpu0")
        await rig.run(key)
        assert not await rig.engine.ends_jobs()
        await rig.begin_to_end(key)
        assert await rig.engine.ends_jobs()
        seen = await rig.engine.read_job(key)
        assert seen is not None
        assert (seen.turn, seen.ending) == (Turn.RUNNING, True)
        await rig.end(key, "cancelled")
        assert not await rig.engine.ends_jobs()
        await rig.go_away()
        with pytest.raises(ObservedError):
            await rig.engine.ends_jobs()

    async def test_only_what_changed_is_told(self, rig: Rig) -> None:
        other = await rig.submit(1)
        async with watching(rig.engine) as watcher:
            key = await rig.submit(1)
            await watcher.see(key, Turn.WAITS)
            await rig.allocate(key, "gpu0")
            await watcher.see(key, Turn.ALLOCATED)
            assert [seen.key for seen in watcher.latest.seen] == [key]
            assert watcher.jobs[other].turn is Turn.WAITS

    async def test_a_requeued_job_is_a_new_attempt(self, rig: Rig) -> None:
        async with watching(rig.engine) as watcher:
            key = await rig.submit(1)
            await rig.allocate(key, "gpu0")
            await rig.run(key)
            first = await watcher.see(key, Turn.RUNNING)
            await rig.requeue(key)
            again = await watcher.see(key, Turn.WAITS)
            assert (first.attempt, again.attempt, again.endpoints) == (0, 1, ())
            assert not await rig.engine.still(key, first.revision)

    async def test_positions_in_the_queue(self, rig: Rig) -> None:
        keys = [await rig.submit(1) for _ in range(3)]
        async with watching(rig.engine) as watcher:
            assert [watcher.jobs[key].ahead for key in keys] == [0, 1, 2]
            await rig.allocate(keys[0], "gpu0")
            await watcher.until(lambda: watcher.jobs[keys[2]].ahead == 1)
            assert watcher.jobs[keys[1]].ahead == 0

    async def test_a_job_that_vanishes_has_ended(self, rig: Rig) -> None:
        async with watching(rig.engine) as watcher:
            key = await rig.submit(1)
            await rig.allocate(key, "gpu0")
            await rig.run(key)
            await watcher.see(key, Turn.RUNNING)
            await rig.forget(key)
            await watcher.see(key, Turn.ENDED)
            assert await rig.engine.read_job(key) is None

    async def test_a_gap_is_followed_by_everything(self, rig: Rig) -> None:
        gone = await rig.submit(1)
        async with watching(rig.engine) as watcher:
            await rig.go_away()
            waiting = asyncio.create_task(watcher.until(lambda: gone not in watcher.jobs))
            await rig.noticed()
            with pytest.raises(ObservedError) as error:
                await rig.engine.read_job(gone)
            assert error.value.code == "unavailable"
            reach = rig.engine.reach()
            assert not reach.up
            assert reach.detail
            assert not waiting.done()
            key = await rig.submit(1)
            await rig.forget(gone)
            await rig.come_back()
            await waiting
            assert watcher.latest.complete
            assert set(watcher.jobs) == {key}
            assert rig.engine.reach().up

    async def test_look_and_still(self, rig: Rig) -> None:
        key = await rig.submit(1)
        await rig.allocate(key, "gpu1")
        seen = await rig.engine.read_job(key)
        assert seen is not None
        assert seen.endpoints == ("gpu1",)
        assert await rig.engine.still(key, seen.revision)
        await rig.run(key)
        assert not await rig.engine.still(key, seen.revision)
        for unknown in (f"{rig.engine.kind}:999999", "elsewhere:1", ""):
            assert await rig.engine.read_job(unknown) is None
            assert not await rig.engine.still(unknown, seen.revision)

    async def test_an_answer_reaches_the_owner(self, rig: Rig) -> None:
        key = await rig.submit(1)
        await rig.engine.answer(key, Verdict.WAIT, "2 moves first")
        assert "2 moves first" in rig.told(key)
        await rig.engine.answer(key, Verdict.GO, "1.2 s")
        assert "1.2 s" in rig.told(key)
        await rig.engine.answer(f"{rig.engine.kind}:999999", Verdict.GO, "")
        await rig.engine.answer("elsewhere:1", Verdict.GO, "")

    async def test_a_topology_is_read_back(self, rig: Rig) -> None:
        near = published(7, gpu0="as0", gpu1="as0", gpu2="as0", gpu3="as0", gpu6="as1")
        read = await rig.engine.publish(near)
        assert (read.epoch, read.differences) == (7, ())
        assert [rig.leaf(f"gpu{i}") for i in (0, 2, 6)] == ["as0", "as0", "as1"]
        assert rig.leaf("gpu4") is None
        writes = rig.writes()
        assert (await rig.engine.publish(near)).epoch == 7
        assert rig.writes() == writes
        moved = published(8, gpu0="as0", gpu1="as0", gpu2="as1", gpu3="as1", gpu6="as1")
        read = await rig.engine.publish(moved)
        assert (read.epoch, read.differences) == (8, ())
        assert [rig.leaf(f"gpu{i}") for i in (0, 2, 6)] == ["as0", "as1", "as1"]

    async def test_what_is_forbidden(self, rig: Rig) -> None:
        key = await rig.submit(1)
        rig.forbid()
        with pytest.raises(ObservedError) as error:
            await rig.engine.answer(key, Verdict.GO, "")
        assert error.value.code == "forbidden"
        with pytest.raises(ObservedError) as error:
            await rig.engine.publish(published(9, gpu0="as1", gpu1="as1"))
        assert error.value.code == "forbidden"
        assert rig.engine.reach().missing

    async def test_the_examination_never_raises(self, rig: Rig) -> None:
        lines = await rig.engine.check()
        assert lines
        assert all(line.mend for line in lines if line.grade != "ok")
        await rig.go_away()
        lines = await rig.engine.check()
        assert any(line.grade == "fault" for line in lines)
        await rig.engine.close()
