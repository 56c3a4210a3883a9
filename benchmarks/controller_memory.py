"""Measures what one user can add to the controller's memory, on a site of 8 servers with 64 GPUs.

``python -m benchmarks.controller_memory [--traced]`` prints one JSON document (two minutes). The
controller is the real one over simulated devices, in a process of its own; one user acts over HTTP
with one token, a project without quota and without a limit on the rate of requests, which in
operation slows all of this down. Each row is what the process has more than before the user came,
in MiB: ``highest`` during the step, ``end`` after it, when the C library has returned freed memory.
The steps add up:

* one job on all GPUs whose ranks fill their recorders, read three times;
* logs that are followed, commands and streams of events of which nothing is read;
* pages of every list;
* the full queue of the largest jobs, each request with an idempotency key, then all cancelled,
  three times. Their texts have one wide character each: Python then takes four bytes for each.

With ``--traced`` the rows also say what Python has allocated, and where; that takes much longer.
The goal is 64 MiB more. Measurements are not here: only operators may start them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import os
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from agentlink.values import Typed, WindowSize
from base import clock
from benchmarks.agent_memory import memory_mib
from benchmarks.api import served
from benchmarks.reconfig_sim import make_site
from controller.api.app import create_app
from controller.api.executing import MOST_PER_TOKEN as COMMANDS
from controller.api.following import MOST_PER_TOKEN as STREAMS
from controller.api.gate.access import Access
from controller.api.gate.pace import Limit, RateLimit
from controller.devices.agents.messages import recordings_of
from controller.devices.engine import (
    ExecEnd,
    ExecOutput,
    ExecStart,
    LogLine,
    Recording,
    RecordingLimits,
)
from controller.people.accounts import Accounts, StoredProject
from controller.people.audit import AuditLog
from controller.people.authz import Role
from protos import agent_pb2 as pb
from sitefile import CabledSite
from sitefile.model import Fiber, Port, SwitchCable
from sitefile.scheduling import MAX_WAITING
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.rack import Rack
from tests.parts.measure.hostile import full_recording

GPUS, ROUNDS = 64, 3
GOAL_MIB = 64.0
PROJECT, RUNNING = "alpha", "alpha-r"
PLENTY = Limit(rate=1e6, burst=1e6)
PIECE = "z" * 65_000
"""Of output; a command and a log write without end."""
FULL = full_recording("", 0, 0).SerializeToString()


def site() -> CabledSite:
    """Return the servers on one optical switch."""
    made = make_site(GPUS)
    return replace(
        made,
        switches=(SwitchCable("ocs0", "calient+tl1://sim:3082", None),),
        endpoints=tuple(
            replace(e, fibers=(Fiber(e.nic, e.mac, Port("ocs0", e.fiber.port)),))
            for e in made.endpoints
        ),
        aggregators=tuple(
            replace(a, fibers={n: Port("ocs0", port.port) for n, port in a.fibers.items()})
            for a in made.aggregators
        ),
    )


class FullEngine(FakeEngine):
    """Agents whose ranks fill their recorders' files and write without end."""

    async def recordings(
        self, timeout_s: float, job: str = "", limits: RecordingLimits | None = None
    ) -> list[Recording]:
        """Return what is recorded of all ranks that run, read as from the wire."""
        del timeout_s
        jobs, found = None if limits is None else limits.jobs, list[Recording]()
        for status in list(self.statuses.values()):
            if job in ("", status.job):
                one = pb.Recording.FromString(FULL)
                one.job, one.rank, one.epoch = status.job, status.rank, status.epoch
                server = self.site.endpoint(status.endpoint).server
                reply = pb.RecordingsReply(recordings=[one])
                found += await asyncio.to_thread(recordings_of, server, reply, clock.time(), jobs)
        return found

    async def logs(
        self,
        job: str,
        rank: int | None,
        tail: int | None,
        follow: bool,
        placed: Mapping[int, str] | None = None,
        **_: object,
    ) -> AsyncIterator[LogLine]:
        """Yield lines without end."""
        while True:
            yield LogLine(
                rank or 0, clock.time(), "stdout", str(bytearray(PIECE, "ascii"), "ascii")
            )
            await asyncio.sleep(0)

    async def exec(
        self, start: ExecStart, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Write without end."""
        while True:
            yield ExecOutput("stdout", PIECE.encode())
            await asyncio.sleep(0)


def serve(directory: str, tell: Connection, *, traced: bool) -> None:
    """Run a controller until killed; send its address and a user's token, then its size."""
    import structlog  # noqa: PLC0415 - only here: the load process keeps its own configuration

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.run(_serve(Path(directory), tell, traced=traced))


async def _serve(directory: Path, tell: Connection, *, traced: bool) -> None:
    rack = Rack(directory, site())
    rack.engine = FullEngine(rack.site)
    service = await rack.up()
    accounts, audit = Accounts(directory / "accounts.sqlite", time.time), AuditLog(directory)
    await accounts.open()
    await audit.open()
    await accounts.put_project(StoredProject(PROJECT))
    _, secret = await accounts.create("eve", Role.USER, frozenset({PROJECT}))
    limit = RateLimit(changes=PLENTY, reads=PLENTY)
    app = create_app(
        service.desks,
        Access(accounts, audit),
        rate_limit=limit,
        answers=rack.parts.state.journal,
    )
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    if traced:
        tracemalloc.start()
    tell.send((f"http://127.0.0.1:{port}", secret))
    loop = asyncio.get_running_loop()
    while not serving.done():
        if await loop.run_in_executor(None, tell.recv) == "read":
            await rack.parts.comms.read()
        # What the simulated devices record is not the controller's memory.
        rack.engine.calls.clear()
        rack.switch.applied.clear()
        rack.aggregators.history.clear()
        rack.aggregators.probes.clear()
        tell.send(_size())


def _size() -> dict[str, float]:
    """Return the process's memory in MiB; its highest size counts from now on."""
    size = {"highest": memory_mib("VmHWM")}
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    size["end"] = memory_mib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    if tracemalloc.is_tracing():
        size["traced"] = tracemalloc.get_traced_memory()[0] / 2**20
        for line in tracemalloc.take_snapshot().statistics("lineno")[:12]:
            print("  ", line, file=sys.stderr)
    return size


def largest(name: str) -> dict[str, Any]:
    """Return a request of the largest size, all of it its own."""
    words = [f"\U0001f600{name}-{number}-".ljust(480, "x") for number in range(128)]
    env = {f"TF_LARGE_{n}": f"\U0001f600{name}-{n}-".ljust(31_000, "y") for n in range(2)}
    return {
        "name": f"{PROJECT}-{name}",
        "project": PROJECT,
        "count": GPUS,
        "command": words,
        "env": env,
    }


class Load:
    """One user, and the rows of what it adds."""

    def __init__(self, client: httpx.AsyncClient, tell: Connection) -> None:
        self._client = client
        self._tell = tell
        self.base = self.asked("size")["end"]
        self.rows: dict[str, dict[str, float]] = {}
        self.answers: Counter[str] = Counter()

    def asked(self, what: str) -> dict[str, float]:
        """Have the controller read all recorders (``read``), and return its size."""
        self._tell.send(what)
        size: dict[str, float] = self._tell.recv()
        return size

    def row(self, name: str, what: str = "size") -> None:
        """Note the growth so far, and report it."""
        size = self.asked(what)
        grown = {k: v if k == "traced" else v - self.base for k, v in size.items()}
        self.rows[name] = {k: round(v, 1) for k, v in grown.items()}
        print(f"{time.process_time():.0f} s", name, self.rows[name], file=sys.stderr)

    async def send(self, what: str, path: str, body: Any = None, key: str = "") -> httpx.Response:
        """Send a change, count its answer and return it."""
        headers = {"Idempotency-Key": key} if key else {}
        reply = await self._client.post(path, json=body, headers=headers)
        self.answers[f"{what} {reply.status_code}"] += 1
        return reply


@contextlib.asynccontextmanager
async def unread(client: httpx.AsyncClient, path: str) -> AsyncIterator[int]:
    """Open an answer of which nothing is read; yield its status."""
    async with client.stream("GET", path) as reply:
        yield reply.status_code


async def small(client: httpx.AsyncClient) -> None:
    """Use everything once, so that what a first use loads is not counted."""
    name = f"{PROJECT}-first"
    (await client.post("/jobs", json={"name": name, "project": PROJECT, "count": 1})).json()
    await running(client, name)
    body = {"rank": 0, "command": ["true"]}
    made = (await client.post(f"/jobs/{name}/exec", json=body)).json()
    async with (
        unread(client, f"/jobs/{name}/logs?follow=true"),
        unread(client, f"/jobs/{name}/exec/{made['id']}"),
        unread(client, "/stream"),
    ):
        await pages(client)
    await client.post(f"/jobs/{name}/cancel")


async def running(client: httpx.AsyncClient, name: str) -> None:
    """Wait until a job runs."""
    while True:
        if (await client.get(f"/jobs/{name}")).json()["state"] == "running":
            return
        await asyncio.sleep(0.1)


async def pages(client: httpx.AsyncClient) -> None:
    """Read a page of every list."""
    for path in ("/jobs", "/events?limit=1000", "/top", "/containers", "/endpoints"):
        await client.get(path)


async def measured(url: str, token: str, tell: Connection) -> Load:
    """Act as one user."""
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx.Limits(max_connections=200)
    async with (
        httpx.AsyncClient(
            base_url=f"{url}/api/v1", headers=headers, trust_env=False, timeout=120, limits=limits
        ) as client,
        contextlib.AsyncExitStack() as streams,
    ):
        await small(client)
        load = Load(client, tell)
        own = {"name": RUNNING, "project": PROJECT, "count": GPUS, "record": "full"}
        await load.send("submit", "/jobs", own)
        await running(client, RUNNING)
        for _ in range(2):
            load.asked("read")
        load.row("full recorders", "read")
        paths = ["/stream", f"/jobs/{RUNNING}/logs?follow=true"] * ((STREAMS - COMMANDS) // 2)
        for _ in range(COMMANDS):
            body = {"rank": 0, "command": ["w" * 1000] * 60}
            made = await load.send("exec", f"/jobs/{RUNNING}/exec", body)
            paths.append(f"/jobs/{RUNNING}/exec/{made.json()['id']}")
        for path in paths:
            status = await streams.enter_async_context(unread(client, path))
            load.answers[f"unread {status}"] += 1
        await asyncio.sleep(5)
        load.row("and answers that are not read")
        await pages(client)
        load.row("and lists")
        for turn in range(ROUNDS):
            waiting = []
            for name in (f"w{turn}-{number}" for number in range(MAX_WAITING)):
                reply = await load.send("submit", "/jobs", largest(name), f"s-{name}")
                if reply.status_code != httpx.codes.CREATED:
                    break
                waiting.append(name)
            load.row(f"and the full queue, time {turn + 1}")
            for name in waiting:
                await load.send("cancel", f"/jobs/{PROJECT}-{name}/cancel", None, f"c-{name}")
            load.row(f"and cancelled, time {turn + 1}")
        return load


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traced", action="store_true", help="say where Python allocates")
    traced = parser.parse_args().traced
    with served(functools.partial(serve, traced=traced)) as (url, token, tell):
        load = asyncio.run(measured(url, token, tell))
    worst = max(row["highest"] for row in load.rows.values())
    document = {
        "benchmark": "controller_memory",
        "cpus": os.cpu_count(),
        "before_mib": round(load.base, 1),
        "grown_mib": load.rows,
        "answers": load.answers,
        "goal_mib": GOAL_MIB,
        "met": worst <= GOAL_MIB,
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
