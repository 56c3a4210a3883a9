"""Measures the API under load: p50 and p99 of reads and submits while 200 readers follow.

``python -m benchmarks.api`` prints one JSON document. The controller is the real one, with
tokens, audit trail and a durable store, over simulated devices; it runs in its own process. The
stream readers share a second process and only count; submits and reads run in this process, so
that the time to decode stream frames does not count as the controller's. All processes use the
same cores.

The streams belong to users: the controller filters their view of the state, which costs more than
an operator's full view. Twenty tokens of four projects follow; a viewer reads
``GET /jobs?limit=50``, an operator ``GET /health``, as in older figures.

There are two storms: one with ``--submits-per-s`` (60), each submit on time independent of earlier
responses; one as fast as eight submitters get their responses, on one connection each. A fresh
controller gets the second storm again, without streams; the rival is FastAPI with a route that
checks the same body and does nothing. Another controller gets ``--bulk`` (1,000) jobs in one
request, several times; the viewer reads on beside both. The goal: p99 of the viewer's read at most
20 ms during the first storm. The rival is the same read alone.
``benchmarks.api_holds`` measures the longest time that one request blocks the event loop,
``benchmarks.api_soak`` memory over time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing as mp
import os
import platform
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
from fastapi import FastAPI

from base.addresses import split_address
from controller.api.app import create_app
from controller.api.gate.access import Access
from controller.daemon.garbage import Garbage, OwnMemory
from controller.people.accounts import Accounts
from controller.people.audit import AuditLog
from controller.people.authz import Role
from controller.schema.jobs import JobBody
from tests.parts.controller.rack import Rack

Found = TypeVar("Found")

GOAL_S = 0.02
FOLLOWERS = 20
"""Number of tokens that follow the stream."""
PROJECTS = 4
READ = "/jobs?limit=50"
BULKS = 5


def serve(directory: str, tell: Connection) -> None:
    """Run a controller until killed; send its address and an admin's token to ``tell``."""
    import structlog  # noqa: PLC0415 - only here: the load process keeps its own configuration

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.run(_serve(Path(directory), tell))


async def _serve(directory: Path, tell: Connection) -> None:
    await serve_rack(Rack(directory), directory, tell)


def serve_bare(_: str, tell: Connection) -> None:
    """Serve a route that checks a job as ours does, and does nothing with it."""
    app = FastAPI()

    @app.post("/api/v1/jobs", status_code=201)
    async def submit_job(request: JobBody) -> JobBody:
        return request

    asyncio.run(_serve_app(app, tell, ""))


async def _serve_app(app: FastAPI, tell: Connection, secret: str) -> None:
    # As the controller does after its start.
    keeping = asyncio.create_task(Garbage(gc, OwnMemory(), lambda: False).keep())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    tell.send((f"http://127.0.0.1:{port}", secret))
    await task
    keeping.cancel()


async def serve_rack(rack: Rack, directory: Path, tell: Connection) -> None:
    """Serve the API over ``rack`` without end; send its address and an admin's token."""
    scheduling = replace(rack.site.scheduling, max_waiting=10_000)
    rack.site = replace(rack.site, scheduling=scheduling)
    service = await rack.up()
    accounts, audit = Accounts(directory / "accounts.sqlite", time.time), AuditLog(directory)
    await accounts.open()
    await audit.open()
    _, secret = await accounts.create("bench", Role.ADMIN)
    app = create_app(service.desks, Access(accounts, audit))
    await _serve_app(app, tell, secret)


@contextlib.contextmanager
def served(serve: Callable[[str, Connection], None]) -> Iterator[tuple[str, str, Connection]]:
    """Run ``serve`` in its own process and folder.

    Yields its address, an admin's token and a connection to it.
    """
    context = mp.get_context("spawn")
    here, there = mp.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        server = context.Process(target=serve, args=(folder, there))
        server.start()
        try:
            url, token = here.recv()
            yield url, token, here
        finally:
            server.kill()
            server.join()


async def people(url: str, token: str) -> tuple[list[str], str]:
    """Create the following users and a viewer; return their tokens."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1", headers=headers, trust_env=False
    ) as client:

        async def made(number: int, role: str) -> str:
            project = f"p{number % PROJECTS}"
            (await client.put(f"/projects/{project}", json={"name": project})).raise_for_status()
            body = {"name": f"{role}{number}", "role": role, "projects": [project]}
            reply = await client.post("/tokens", json=body)
            reply.raise_for_status()
            secret: str = reply.json()["token"]
            return secret

        return [await made(n, "user") for n in range(FOLLOWERS)], await made(0, "viewer")


def followed(url: str, tokens: Sequence[str], watchers: int) -> Callable[[], int]:
    """Follow the stream in another process; the result ends it and returns the event count."""
    ours, theirs = mp.Pipe()
    mp.get_context("spawn").Process(
        target=read_along, args=(url, tokens, watchers, theirs), daemon=True
    ).start()
    ours.recv()

    def end() -> int:
        ours.send("stop")
        events: int = ours.recv()
        return events

    return end


def read_along(url: str, tokens: Sequence[str], watchers: int, tell: Connection) -> None:
    """Follow the stream with many readers until told to stop; send the number of events."""
    asyncio.run(_read_along(url, tokens, watchers, tell))


async def _read_along(url: str, tokens: Sequence[str], watchers: int, tell: Connection) -> None:
    host, port = split_address(url.removeprefix("http://"))
    seen = [0]
    head = f"GET /api/v1/stream HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer "

    async def follow(token: str) -> None:
        request = f"{head}{token}\r\n\r\n".encode()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        first = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in first.partition(b"\r\n")[0]:
            raise RuntimeError(first.decode("latin-1"))
        there.release()
        while data := await reader.read(2**16):
            seen[0] += data.count(b"event: ")

    there = asyncio.Semaphore(0)
    readers = [asyncio.create_task(follow(tokens[n % len(tokens)])) for n in range(watchers)]
    for _ in readers:
        await there.acquire()
    tell.send("following")
    await asyncio.get_running_loop().run_in_executor(None, tell.recv)
    tell.send(seen[0])
    for task in readers:
        task.cancel()
    await asyncio.gather(*readers, return_exceptions=True)


async def timed(
    client: httpx.AsyncClient,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> float:
    """Make one request and return its seconds."""
    began = time.perf_counter()
    reply = await client.request(method, path, json=body, headers=headers)
    reply.raise_for_status()
    return time.perf_counter() - began


class Line:
    """One kept connection that submits; httpx would take more of the shared cores than we do."""

    def __init__(self, url: str, token: str) -> None:
        host, port = split_address(url.removeprefix("http://"))
        self._host, self._port = host, port
        self._head = (
            f"POST /api/v1/jobs HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()

    async def submit(self, body: Any) -> float:
        """Submit one job and return the seconds until it is durable."""
        began = time.perf_counter()
        text = json.dumps(body)
        self._writer.write(f"{self._head}{len(text)}\r\n\r\n{text}".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        answer = await self._reader.readexactly(size)
        if " 201 " not in head.partition("\r\n")[0]:
            raise RuntimeError(answer.decode())
        return time.perf_counter() - began


async def greedy(url: str, token: str, seconds: float) -> list[float]:
    """Submit from eight clients as fast as they get answers; return the seconds of each."""
    end = time.perf_counter() + seconds
    took: list[float] = []

    async def client(who: int) -> None:
        line = Line(url, token)
        await line.open()
        turn = 0
        while time.perf_counter() < end:
            took.append(await line.submit(job(f"greedy-{who}-{turn}")))
            turn += 1
        line.close()

    await asyncio.gather(*map(client, range(8)))
    return took


async def load(
    url: str, token: str, viewer: str, seconds: float, per_s: float | None
) -> dict[str, Any]:
    """Submit and read for some seconds: with ``per_s`` submits per second, or at full speed."""
    theirs = {"Authorization": f"Bearer {viewer}"}
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    submits: list[float] = []
    reads: list[float] = []
    health: list[float] = []
    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1", headers=headers, trust_env=False, limits=limits, timeout=60
    ) as client:
        began = time.perf_counter()
        end = began + seconds

        async def submit(number: int) -> None:
            submits.append(await timed(client, "POST", "/jobs", job(f"paced-{number}")))

        async def paced(rate: float) -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(int(seconds * rate)):
                    await asyncio.sleep(began + number / rate - time.perf_counter())
                    group.create_task(submit(number))

        async def look() -> None:
            while time.perf_counter() < end:
                reads.append(await timed(client, "GET", READ, headers=theirs))
                health.append(await timed(client, "GET", "/health"))
                await asyncio.sleep(0.02)

        async def rushed() -> None:
            submits.extend(await greedy(url, token, seconds))

        await asyncio.gather(look(), rushed() if per_s is None else paced(per_s))
        took_s = time.perf_counter() - began
    return {
        "reads": figures(reads),
        "operator_health": figures(health),
        "submits": {**figures(submits), "per_s": round(len(submits) / took_s, 1)},
    }


def job(name: str) -> dict[str, Any]:
    """Return a submission."""
    return {"count": 6, "name": f"p0-{name}", "project": "p0"}


async def bulk(url: str, token: str, viewer: str, jobs: int) -> dict[str, Any]:
    """Submit ``jobs`` jobs in one request, some times, and read beside it."""
    theirs = {"Authorization": f"Bearer {viewer}"}
    headers = {"Authorization": f"Bearer {token}"}
    reads: list[float] = []
    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1", headers=headers, trust_env=False, timeout=60
    ) as client:
        over = asyncio.Event()

        async def look() -> None:
            while not over.is_set():
                reads.append(await timed(client, "GET", READ, headers=theirs))
                await asyncio.sleep(0.005)

        async def submit() -> list[float]:
            took = []
            for turn in range(BULKS):
                asked = [job(f"bulk-{turn}-{number}") for number in range(jobs)]
                took.append(await timed(client, "POST", "/submissions", {"jobs": asked}))
                await asyncio.sleep(0.5)
            over.set()
            return took

        _, took = await asyncio.gather(look(), submit())
    return {"jobs": jobs, "submits": figures(took), "reads": figures(reads), "all_s": took}


async def alone(url: str, token: str) -> dict[str, float]:
    """Read without other load."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1", headers=headers, trust_env=False
    ) as client:
        return figures([await timed(client, "GET", READ) for _ in range(200)])


def figures(values: list[float]) -> dict[str, float]:
    """Return count, median and 99th percentile."""
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "p50_s": ordered[len(ordered) // 2],
        "p99_s": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }


def main() -> None:
    """Run both storms and print one JSON document."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--watchers", type=int, default=200)
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--submits-per-s", type=float, default=60.0)
    options.add_argument("--bulk", type=int, default=1000, metavar="JOBS")
    given = options.parse_args()
    with served(serve) as (url, token, _):
        followers, viewer = asyncio.run(people(url, token))
        rival = asyncio.run(alone(url, viewer))
        (controller,) = (child.pid for child in mp.active_children())
        end = followed(url, followers, given.watchers)
        paced = load(url, token, viewer, given.seconds, given.submits_per_s)
        calm, worked_s = costing(controller, paced)
        wild = asyncio.run(load(url, token, viewer, given.seconds, None))
        seen = end()
    with served(serve) as (url, token, _):
        _, viewer = asyncio.run(people(url, token))
        (controller,) = (child.pid for child in mp.active_children())
        plain, plain_s = costing(controller, load(url, token, viewer, given.seconds, None))
    with served(serve) as (url, token, _):
        _, viewer = asyncio.run(people(url, token))
        together = asyncio.run(bulk(url, token, viewer, given.bulk))
    with served(serve_bare) as (url, token, _):
        (controller,) = (child.pid for child in mp.active_children())
        bare, bare_s = costing(controller, greedy(url, token, given.seconds))
    p99_s = calm["reads"]["p99_s"]
    found = {
        "benchmark": "api",
        "machine": machine(),
        "watchers": given.watchers,
        "events_received": seen,
        "read_alone": rival,
        "storm_paced": calm,
        "storm_paced_controller_cpu_s": worked_s,
        "storm_greedy": wild,
        "storm_without_streams": plain,
        "storm_without_streams_controller_cpu_s": plain_s,
        "fastapi_alone": {**figures(bare), "per_s": round(len(bare) / given.seconds, 1)},
        "fastapi_alone_cpu_s": bare_s,
        "bulk": together,
        "read_p99_over_alone": round(p99_s / rival["p99_s"], 1),
        "read": f"viewer, GET {READ}",
        "goal_read_p99_s": GOAL_S,
        "met": p99_s <= GOAL_S,
    }
    print(json.dumps(found, indent=2))


def costing(pid: int | None, work: Coroutine[Any, Any, Found]) -> tuple[Found, float]:
    """Do the work; return what it found, and the CPU seconds that a process took meanwhile."""
    before = cpu_s(pid)
    found = asyncio.run(work)
    return found, round(cpu_s(pid) - before, 2)


def cpu_s(pid: int | None) -> float:
    """Return the CPU time of a process so far, which does not depend on the machine's load."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine() -> dict[str, Any]:
    """Return the description of the machine."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_1min_at_end": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
