"""A site file that lost an endpoint, a server or an aggregator: stored objects are still shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import yaml

from controller.schema.submit.request import JobRequest
from controller.state.records import Quarantine
from sitefile import CabledSite, load_site
from tests.parts.api.apps import app_of
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

LISTS = (
    *("/jobs", "/jobs/red", "/projects", "/endpoints", "/aggregators", "/switches", "/circuits"),
    *("/containers", "/nodes", "/quarantine", "/events", "/transactions", "/top", "/site"),
    *("/series?since_s=86400", "/power", "/health", "/allocation", "/events/export"),
)


def without(
    folder: Path, *, endpoint: str, server: str, aggregator: str | None = None
) -> CabledSite:
    """Return the paper's site without these objects."""
    document = yaml.safe_load(PAPER.read_text())
    document["endpoints"] = [e for e in document["endpoints"] if e["name"] != endpoint]
    document["servers"] = [s for s in document["servers"] if s["name"] != server]
    document["aggregators"] = [a for a in document["aggregators"] if a["name"] != aggregator]
    gone = (endpoint, f"{aggregator}/")
    document["fibers"] = [f for f in document["fibers"] if not f[0].startswith(gone)]
    document["uplinks"] = [] if aggregator else document["uplinks"]
    document["homes"] = {
        e: at for e, at in document["homes"].items() if e != endpoint and at != aggregator
    }
    path = folder / "smaller.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_site(path)


@asynccontextmanager
async def served(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as client:
        yield client


async def every_list(client: httpx.AsyncClient) -> None:
    for path in (*(f"/api/v1{path}" for path in LISTS), "/metrics"):
        reply = await client.get(path)
        assert reply.status_code == 200, (path, reply.text)


async def test_a_job_that_ended_on_an_endpoint_that_is_gone(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    service = await rack.up()
    await service.desks.jobs.submit(JobRequest(name="red", count=2, endpoints=["gpu4", "gpu5"]))
    await rack.state("red", "running")
    await service.desks.jobs.cancel("red")
    rack.parts.state.light.quarantine.put(Quarantine("as1/4", "no light", 1.0))
    rack.parts.state.light.quarantine.put(Quarantine("gpu5", "no light", 1.0))
    await rack.down()
    rack.site = without(tmp_path, endpoint="gpu5", server="srv3")
    await rack.up()
    try:
        async with served(rack) as client:
            await every_list(client)
            job = (await client.get("/api/v1/jobs/red")).json()
            assert [(r["endpoint"], r["server"]) for r in job["ranks"]] == [
                ("gpu4", "srv2"),
                ("gpu5", ""),
            ]
            assert job["homes"] == ["as0", "as1"]
    finally:
        await rack.down()


async def test_a_job_that_runs_on_an_endpoint_that_is_gone(tmp_path: Path) -> None:
    """It keeps running, is shown, and can be cancelled."""
    rack = Rack(tmp_path)
    await (await rack.up()).desks.jobs.submit(
        JobRequest(name="red", count=2, endpoints=["gpu4", "gpu5"])
    )
    await rack.state("red", "running")
    await rack.down()
    rack.site = without(tmp_path, endpoint="gpu5", server="srv3")
    rack.engine.site = rack.site
    await rack.up()
    try:
        async with served(rack) as client:
            await every_list(client)
            await rack.parts.watch.observe()
            rack.parts.publisher.publish_changes()
            rack.parts.publisher.publish_sample(rack.parts.telemetry)
            reply = await client.post("/api/v1/jobs/red/cancel", headers={"X-Lightloom": "1"})
            assert reply.json()["state"] == "cancelled"
            await every_list(client)
    finally:
        await rack.down()


async def test_an_aggregator_that_is_gone(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    await (await rack.up()).desks.jobs.submit(
        JobRequest(name="red", count=2, endpoints=["gpu4", "gpu5"])
    )
    await rack.state("red", "running")
    await rack.desks.jobs.cancel("red")
    await rack.down()
    rack.site = without(tmp_path, endpoint="gpu5", server="srv3", aggregator="as1")
    rack.engine = FakeEngine(rack.site)
    await rack.up()
    try:
        async with served(rack) as client:
            await every_list(client)
            assert (await client.get("/api/v1/jobs/red")).json()["homes"] == ["as0", "as1"]
    finally:
        await rack.down()
