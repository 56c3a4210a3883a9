"""Measures the longest time that one request blocks the loop, at 2,000 jobs and 4,096 endpoints.

``python -m benchmarks.api_holds`` prints one JSON document: per route and reader the longest
iteration of the event loop during one request, in CPU time of its thread (independent of the
machine's load), the shortest of three tries. The controller's state is as full as on a busy site;
devices are simulated. The goal is 50 ms, because the loop also controls the fabric.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import structlog

from benchmarks.reconfig_sim import jobs_of, make_site
from controller.api.app import create_app
from controller.api.gate.access import Access
from controller.api.gate.pace import Limit, RateLimit
from controller.devices.aggregators import AttachPoint
from controller.devices.engine import RankState, RankStatus
from controller.devices.openflow.flows import FlowKeeper
from controller.devices.optical import SwitchBank
from controller.jobs.admission import spec_of
from controller.people.accounts import Accounts, StoredProject
from controller.people.authz import Role
from controller.schema.submit.request import JobRequest
from controller.service.service import Service
from controller.state.jobs import KEPT_JOBS
from controller.state.records import JobRecord
from controller.store.store import Store
from controller.transaction.circuits import Cabling
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.switch import FakeOcs

ENDPOINTS = 4096
GOAL_S = 0.05
TRIES = 3
PROJECT = "alpha"
WAITING = 200
BULK = 1000
"""Jobs in one submission: as many as are allowed."""
PLENTY = Limit(rate=1e6, burst=1e6)
PATHS = (
    *("/jobs?limit=50", "/jobs", "/jobs/alpha-running-1", "/projects", "/endpoints", "/site"),
    *("/aggregators", "/switches", "/circuits", "/containers", "/nodes", "/quarantine", "/events"),
    *("/events?limit=1000", "/top", "/transactions", "/power", "/health"),
    *("/series", "/series?since_s=900", "/series?since_s=86400", "/series?since_s=2678400"),
    *("/series?since_s=2678400&job=alpha-running-1", "/whoami"),
)
KEEPERS = ("/allocation", "/events/export", "/events/export?format=csv", "/tokens")


class Fabric(FakeAggregators):
    """Aggregators whose carriers are always up, because there is no light to check."""

    def carrier(self, as_name: str) -> dict[int, bool]:
        """Return that all carriers are up."""
        return dict.fromkeys(self._site.aggregator(as_name).fibers, True)


def service_of(folder: Path) -> Service:
    """Return a controller with the largest possible state; it is not started."""
    site = make_site(ENDPOINTS)
    site = replace(site, scheduling=replace(site.scheduling, max_waiting=100_000))
    service = Service(
        site,
        Store(folder / "controller.sqlite"),
        switches=lambda on_change: SwitchBank(
            {s.name: FakeOcs() for s in site.switches}, on_change
        ),
        aggregators=lambda post: FlowKeeper(site, Fabric(site, {}, post)),
        engine=FakeEngine(site),
        default_image="image:1",
    )
    state, now = service.features.core.state, time.time()
    cabling, taken = Cabling(site), set[AttachPoint]()
    for name, home in site.homes.items():
        point = cabling.first_free(name, home, taken).point
        state.light.attachments[name] = point
        taken.add(point)
    names = [cable.name for cable in site.endpoints]
    for number in range(KEPT_JOBS):
        count = (1, 2, 4, 8, 16)[number % 5]
        held = tuple(names[(number + i) % ENDPOINTS] for i in range(count))
        record = JobRecord(
            name=f"{_project(number)}-ended-{number}",
            request=spec_of(_request(number, count)),
            image="image:1",
            submitted_at=now - 7200,
            state="completed",
            endpoints=held,
            epoch=number,
            started_at=now - 7000,
            finished_at=now - 3600,
            exit_codes=(0,) * count,
            final_homes=tuple(site.homes[e] for e in held),
        )
        state.jobs.put(record)
    for number, members in enumerate(jobs_of(site).values()):
        name = f"{_project(number)}-running-{number}"
        record = JobRecord(
            name=name,
            request=spec_of(_request(number, len(members))),
            image="image:1",
            submitted_at=now - 3600,
            state="running",
            endpoints=tuple(members),
            epoch=5000 + number,
            started_at=now - 3500,
            exit_codes=(None,) * len(members),
        )
        state.jobs.put(record)
        state.jobs.statuses += [
            RankStatus(name, rank, 5000 + number, e, state.cables[e].server, RankState.RUNNING)
            for rank, e in enumerate(members)
        ]
        state.events.add("info", f"job/{name}", "JobStarted", f"{len(members)} endpoints")
    for number in range(WAITING):
        name = f"{_project(number)}-waiting-{number}"
        state.jobs.put(JobRecord(name, spec_of(_request(number, 64)), "image:1", now))
    for number in range(10_000):
        name = f"{_project(number)}-ended-{number % KEPT_JOBS}"
        state.events.add("info", f"job/{name}", "JobCompleted", "all ranks ended with 0")
    state.ready = True
    row = np.random.default_rng(1).random((ENDPOINTS, 3), dtype=np.float32)
    for second in range(3600):
        service.features.figures.telemetry.history.append(now - 3600 + second, row)
    return service


def _project(number: int) -> str:
    return PROJECT if number % 2 else "beta"


def _request(number: int, count: int) -> JobRequest:
    return JobRequest(
        count=count,
        project=_project(number),
        command=["python3", "train.py", f"--seed={number}"],
        env={"APP_SEED": str(number), "APP_DATA": "/data/train"},
    )


async def longest_hold(client: httpx.AsyncClient, path: str, body: Any = None) -> tuple[float, int]:
    """Make one request; return the longest loop iteration meanwhile, and the response size."""
    held, last = 0.0, time.thread_time()

    async def beat() -> None:
        nonlocal held, last
        while True:
            last = time.thread_time()
            await asyncio.sleep(0)
            held = max(held, time.thread_time() - last)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    held = 0.0
    if body is None:
        reply = await client.get(path)
    else:
        reply = await client.post(path, json=body)
    await asyncio.sleep(0)
    beating.cancel()
    if reply.status_code not in (200, 201, 403, 409, 422):
        raise RuntimeError(f"{path}: {reply.status_code} {reply.text[:200]}")
    return held, len(reply.content)


def bulk(who: str, number: int) -> Any:
    """Return the body of a submission of BULK jobs."""
    jobs = [_request(n, 8).model_dump(mode="json", exclude_unset=True) for n in range(BULK)]
    for n, job in enumerate(jobs):
        job |= {"name": f"{PROJECT}-bulk-{who}-{number}-{n}", "project": PROJECT}
    return {"jobs": jobs}


def asked(who: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the requests of a reader: a path, and the body of each try (None for a read)."""
    read = [None] * TRIES
    yield from ((path, read) for path in PATHS)
    if who in ("graphs", "operator"):
        yield "/../../metrics", read
    if who == "operator":
        yield from ((path, read) for path in KEEPERS)
    if who != "graphs":
        yield "/submissions", [bulk(who, number) for number in range(TRIES)]


async def measured(folder: Path) -> dict[str, Any]:
    """Return the longest hold per reader and route."""
    service = service_of(folder)
    await service.features.core.state.store.load()
    accounts = Accounts(folder / "accounts.sqlite", time.time)
    await accounts.open()
    for project in (PROJECT, "beta"):
        await accounts.put_project(StoredProject(project))
    secrets = {
        who: (await accounts.create(who, role, projects))[1]
        for who, role, projects in (
            ("user", Role.USER, [PROJECT]),
            ("graphs", Role.VIEWER, ["*"]),
            ("operator", Role.ADMIN, []),
        )
    }
    app = create_app(
        service.desks,
        Access(accounts),
        rate_limit=RateLimit(changes=PLENTY, reads=PLENTY),
    )
    found: dict[str, Any] = {}
    for who, secret in secrets.items():
        transport = httpx.ASGITransport(app=app)
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1/api/v1", headers=headers, timeout=120
        ) as client:
            for path, bodies in asked(who):
                tries = [await longest_hold(client, path, body) for body in bodies]
                held, size = min(held for held, _ in tries), tries[0][1]
                verb = "GET" if bodies[0] is None else "POST"
                found[f"{who} {verb} {path}"] = {"held_s": round(held, 4), "bytes": size}
    await accounts.close()
    return found


def holds() -> dict[str, Any]:
    """Return the document of this benchmark."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measured(Path(folder)))
    worst = max(found, key=lambda what: float(found[what]["held_s"]))
    return {
        "benchmark": "api_holds",
        "endpoints": ENDPOINTS,
        "kept_jobs": KEPT_JOBS,
        "holds": found,
        "worst": worst,
        "worst_s": found[worst]["held_s"],
        "goal_s": GOAL_S,
        "met": found[worst]["held_s"] <= GOAL_S,
    }


def main() -> None:
    """Print one JSON document."""
    print(json.dumps(holds(), indent=2))


if __name__ == "__main__":
    main()
