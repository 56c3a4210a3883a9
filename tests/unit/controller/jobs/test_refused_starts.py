"""A start that is refused for the server's reason is not the job's end, and swallows no queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentlink.ranks import RankSpec
from agentlink.values import RegistryLogin
from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, EngineFault, PullProgress, RankState, RankStatus
from controller.fabric.intent import FabricIntent
from sitefile import load_site
from tests.parts.controller.jobs import events, submit, until
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

Code = Callable[[RankSpec], str]
"""Returns the code with which a rank is refused; empty starts it."""


class Refusing:
    """Agents that refuse to start ranks, as ``code`` says."""

    def __init__(self, rack: Rack, code: Code) -> None:
        self.code = code
        self.tries: Counter[str] = Counter()
        """By endpoint."""
        self._start = rack.engine.start
        rack.engine.start = self.start  # type: ignore[method-assign]

    async def start(self, ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        self.tries.update(spec.endpoint for spec in ranks)
        faults = [
            EngineFault(code, spec.key.container, "no space left")
            for spec in ranks
            if (code := self.code(spec))
        ]
        if faults:
            raise EngineError(faults)
        return await self._start(ranks, deadline_s)


async def run_all(rack: Rack, jobs: int) -> None:
    """Let every job that runs end with exit code 0 until none is left."""

    def over() -> bool:
        for (job, rank), status in list(rack.engine.statuses.items()):
            if status.state is RankState.RUNNING:
                rack.engine.exit(job, rank, 0)
        states = Counter(job.state for job in rack.see.jobs.values())
        return states["completed"] + states["failed"] == jobs

    await rack.until(over, 600)


@pytest.mark.parametrize("code", ["failed", "not_found", "conflict", "unavailable"])
async def test_an_endpoint_that_refuses_every_start_swallows_no_queue(
    rack: Rack, code: str
) -> None:
    refusing = Refusing(rack, lambda spec: code if spec.endpoint == "gpu0" else "")
    for number in range(40):
        await submit(rack, f"job{number}", 1)
    await run_all(rack, 40)
    assert {job.state for job in rack.see.jobs.values()} == {"completed"}
    assert refusing.tries["gpu0"] <= 5
    shown = {e.name: e for e in await rack.desks.fabric.endpoints()}
    assert shown["gpu0"].state == "quarantined"
    assert "it refused to start 3 different jobs" in shown["gpu0"].reason
    assert "no space left" in shown["gpu0"].reason
    assert any("refused to start" in text for text in await events(rack, "Quarantined"))
    assert {e.state for name, e in shown.items() if name != "gpu0"} == {"idle"}


async def test_a_server_goes_out_of_use_with_its_second_endpoint(tmp_path: Path) -> None:
    site = load_site(PAPER)
    cables = tuple(replace(c, server="srv0") if c.name < "gpu4" else c for c in site.endpoints)
    rack = Rack(tmp_path, replace(site, endpoints=cables))
    await rack.up()
    refusing = Refusing(rack, lambda spec: "failed" if spec.server == "srv0" else "")
    for number in range(20):
        await submit(rack, f"job{number}", 1)
    await run_all(rack, 20)
    assert {job.state for job in rack.see.jobs.values()} == {"completed"}
    assert max(refusing.tries[f"gpu{n}"] for n in range(4)) <= 5
    whole = [text for text in await events(rack, "Quarantined") if "its server srv0" in text]
    assert whole
    assert whole[0].startswith("its server srv0 refuses to start jobs on gpu")
    await rack.down()


async def test_a_start_that_is_refused_for_the_jobs_own_reason_ends_it_at_once(rack: Rack) -> None:
    refusing = Refusing(rack, lambda spec: "invalid")
    await submit(rack, "red", 1)
    red = await until(rack, "red", state="failed")
    assert "no space left" in red.reason
    assert refusing.tries.total() == 1


async def test_a_job_that_every_server_refuses_takes_no_endpoint_with_it(rack: Rack) -> None:
    """Its image has no shell: nobody knows that from the first refusal."""
    refusing = Refusing(rack, lambda spec: "failed" if spec.job.startswith("bad") else "")
    for number in range(12):
        await submit(rack, f"bad{number}", 1)
    await run_all(rack, 12)
    assert {job.state for job in rack.see.jobs.values()} == {"failed"}
    assert refusing.tries.total() <= 3 * 12
    shown = await rack.desks.fabric.endpoints()
    assert {e.state for e in shown} == {"idle"}
    await submit(rack, "good", 6)
    await until(rack, "good", state="running")


async def test_a_job_avoids_what_refused_it_and_says_so(rack: Rack) -> None:
    refusing = Refusing(rack, lambda spec: "conflict" if spec.endpoint == "gpu0" else "")
    await submit(rack, "red", 1, endpoints=["gpu0"])

    async def waits() -> bool:
        wait = rack.desks.jobs.job("red").wait
        return wait is not None and wait.code == "refused"

    await rack.until(waits)
    red = rack.desks.jobs.job("red")
    assert red.reason == "a start on gpu0 failed lately"
    refusing.code = lambda spec: ""
    await until(rack, "red", state="running")


@pytest.mark.parametrize("restart", ["never", "on-failure:1"])
async def test_a_server_that_falls_silent_during_a_first_start_is_not_the_jobs_end(
    rack: Rack, restart: str
) -> None:
    start, silent = rack.engine.start, True

    async def starting(ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        nonlocal silent
        if not silent:
            return await start(ranks, deadline_s)
        silent, rack.engine.lost = False, {"srv0"}
        rack.engine.hanging += [living(spec) for spec in ranks]  # it has the order
        raise EngineError([EngineFault("unavailable", "server/srv0", "away")])

    rack.engine.start = starting  # type: ignore[method-assign]
    red = await submit(rack, "red", 2, restart=restart)
    first = await until(rack, "red", state="starting")
    assert set(first.endpoints) == {"gpu0", "gpu1"}
    red = await until(rack, "red", state="running")
    assert not {"gpu0", "gpu1"} & set(red.endpoints)
    assert rack.see.jobs["red"].failures == 0
    told = [*await events(rack, "NotStarted"), *await events(rack, "HardwareLost")]
    assert any("srv0" in text for text in told)
    await submit(rack, "next", 4)
    await asyncio.sleep(60)
    assert rack.desks.jobs.job("next").state == "pending", "a rank may live there"
    rack.engine.lost = set()
    await until(rack, "next", state="running")
    assert not rack.engine.hanging, "it was stopped when its server was back"
    assert rack.desks.jobs.job("red").state == "running"


def living(spec: RankSpec) -> RankStatus:
    return RankStatus(
        spec.job, spec.key.rank, spec.key.epoch, spec.endpoint, spec.server, RankState.RUNNING
    )


async def test_an_image_that_others_have_is_not_the_jobs_reason(rack: Rack) -> None:
    """The job needs a server whose disk is full for an hour."""
    pull, full = rack.engine.pull_image, True

    async def pulling(
        server: str, image: str, login: RegistryLogin | None, *, refresh: bool = False
    ) -> AsyncGenerator[PullProgress]:
        if server == "srv0" and full:
            raise EngineError([EngineFault("failed", image, "no space left on device")])
        async for step in pull(server, image, login, refresh=refresh):
            yield step

    rack.engine.pull_image = pulling  # type: ignore[method-assign]
    await submit(rack, "red", 6, pull="missing")

    async def refused() -> bool:
        red = rack.desks.jobs.job("red")
        assert red.state != "failed"
        return len(await events(rack, "NotStarted")) >= 4

    await rack.until(refused, 600)
    assert all("server srv0 did not fetch it" in text for text in await events(rack, "NotStarted"))
    full = False
    red = await until(rack, "red", state="running")
    assert (rack.see.jobs["red"].failures, red.restarts) == (0, 0)


async def test_a_server_of_several_that_cannot_fetch_an_image_is_left_alone(rack: Rack) -> None:
    pull = rack.engine.pull_image

    async def pulling(
        server: str, image: str, login: RegistryLogin | None, *, refresh: bool = False
    ) -> AsyncGenerator[PullProgress]:
        if server == "srv0":
            raise EngineError([EngineFault("failed", image, "no space left on device")])
        async for step in pull(server, image, login, refresh=refresh):
            yield step

    rack.engine.pull_image = pulling  # type: ignore[method-assign]
    await submit(rack, "red", 4, pull="missing")
    red = await until(rack, "red", state="running")
    assert not {"gpu0", "gpu1"} & set(red.endpoints)
    (told,) = await events(rack, "NotStarted")
    assert "server srv0 did not fetch it: no space left on device" in told


@pytest.mark.parametrize(
    ("code", "state"), [("failed", "running"), ("unavailable", "running"), ("not_found", "failed")]
)
async def test_a_server_that_cannot_fetch_an_image_is_left_alone(
    rack: Rack, code: str, state: str
) -> None:
    """Its disk is full; an image that does not exist is the job's own reason."""
    pull = rack.engine.pull_image

    async def pulling(
        server: str, image: str, login: RegistryLogin | None, *, refresh: bool = False
    ) -> AsyncGenerator[PullProgress]:
        if server == "srv0":
            raise EngineError([EngineFault(code, image, "no space left on device")])
        async for step in pull(server, image, login, refresh=refresh):
            yield step

    rack.engine.pull_image = pulling  # type: ignore[method-assign]
    if code == "not_found":  # nor has another server it
        digest = f"sha256:{'b' * 64}"
        rack.engine.absent |= {"image:1", f"image@{digest}"}
        rack.engine.registry["image:1"] = digest
    await submit(rack, "red", 1, pull="missing")
    red = await until(rack, "red", state=state)
    if state == "running":
        assert red.endpoints[0] not in ("gpu0", "gpu1")
    else:
        assert "no space left" in red.reason


async def test_flows_that_cannot_be_installed_end_no_job(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    converge, left = FabricIntent.converge, 5

    async def failing(intent: FabricIntent, *given: Any) -> None:
        nonlocal left
        if left and given:  # those of a start
            left -= 1
            raise ServiceError("unavailable", "as0 refuses flows")
        await converge(intent, *given)

    monkeypatch.setattr(FabricIntent, "converge", failing)
    await submit(rack, "red", 1)
    await until(rack, "red", state="running")
    assert not left
    assert {e.state for e in await rack.desks.fabric.endpoints()} == {"idle", "busy"}


@pytest.mark.parametrize("cancelled", [True, False])
async def test_no_second_run_begins_before_the_first_is_known_to_be_gone(
    rack: Rack, cancelled: bool
) -> None:
    """The agent answers, but its engine is down: it confirms no stop."""
    refusing = Refusing(rack, lambda spec: "unavailable")
    stop, down = rack.engine.stop, True

    async def stopping(
        job: str, grace_s: float, servers: Collection[str] | None = None, *, until: int
    ) -> list[RankStatus]:
        if down:
            raise EngineError([EngineFault("unavailable", f"ll-{job}-0-1", "no engine")])
        return await stop(job, grace_s, servers, until=until)

    rack.engine.stop = stopping  # type: ignore[method-assign]
    await submit(rack, "red", 1)
    await rack.until(refusing.tries.total)
    await asyncio.sleep(60)
    red = rack.desks.jobs.job("red")
    assert (red.state, refusing.tries.total()) == ("starting", 1)
    assert "no engine" in red.reason
    if cancelled:
        await rack.desks.jobs.cancel("red")
        assert rack.desks.jobs.job("red").state == "cancelled"
        return
    down, refusing.code = False, lambda spec: ""
    await until(rack, "red", state="running")
