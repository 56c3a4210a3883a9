"""A controller with two projects, and what each caller sees of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from controller.api.app import PARTS
from controller.api.gate.access import Access
from controller.people.accounts import Accounts, StoredProject
from controller.people.authz import Role
from scheduler.queue.model import Preemption
from scheduler.queue.model import Project as Share
from sitefile import load_site
from tests.parts.api.apps import app_of
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

NAMES = {"name": "alpha-red", "ident": "t2", "port": "1.1.1"}
OBJECTS = {"trace_endpoint": "gpu0", "get_optics": "ocs0", "get_power_series": "ocs0"}
STREAMS = ("stream_events",)


@dataclass
class People:
    """A controller and who asks it."""

    rack: Rack
    secrets: dict[str, str]

    @asynccontextmanager
    async def client(self, who: str) -> AsyncIterator[httpx.AsyncClient]:
        transport = httpx.ASGITransport(app=self.app)
        headers = {"Authorization": f"Bearer {self.secrets[who]}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1/api/v1", headers=headers
        ) as client:
            yield client

    app: Any = None

    async def seen_by(self, who: str) -> str:
        """All answers that a caller can read, in one text."""
        found = []
        async with self.client(who) as client:
            for part in PARTS:
                for route in part.router.routes:
                    name = route.name  # type: ignore[attr-defined]
                    if "GET" not in route.methods or name in STREAMS:  # type: ignore[attr-defined]
                        continue
                    given = NAMES | {"name": OBJECTS.get(name, NAMES["name"])}
                    path = route.path.format(**given)  # type: ignore[attr-defined]
                    found.append((await client.get(path)).text)
            found.append((await client.get("/series?since_s=100000")).text)
        return "\n".join(found)


@asynccontextmanager
async def people(folder: Path) -> AsyncIterator[People]:
    """Yield a controller with projects alpha and beta, where priority may push jobs out."""
    site = load_site(PAPER)
    queue = replace(site.scheduling.queue, preemption=Preemption.PRIORITY)
    rack = Rack(folder, replace(site, scheduling=replace(site.scheduling, queue=queue)))
    await rack.up(projects=lambda: [Share("default"), Share("alpha"), Share("beta")])
    accounts = Accounts(folder / "accounts.sqlite", rack.parts.state.clock)
    await accounts.open()
    for project in ("alpha", "beta"):
        await accounts.put_project(StoredProject(project))
    made = People(rack, {})
    for who, role, projects in (
        ("ann", Role.USER, ["alpha"]),
        ("bob", Role.USER, ["beta"]),
        ("graphs", Role.VIEWER, ["*"]),
        ("operator", Role.OPERATOR, []),
    ):
        _, made.secrets[who] = await accounts.create(who, role, projects)
    made.app = app_of(rack.service, Access(accounts))
    try:
        yield made
    finally:
        await accounts.close()
        await rack.down()


async def submitted(site: People, who: str, **body: Any) -> None:
    async with site.client(who) as client:
        reply = await client.post("/jobs", json=body)
        assert reply.status_code == 201, reply.text
