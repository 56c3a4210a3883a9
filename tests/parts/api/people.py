"""The API with real accounts and a real audit trail over a rack in memory, in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI

from controller.api.gate.access import Access
from controller.api.gate.pace import Limit, RateLimit
from controller.people.accounts import Accounts, StoredProject
from controller.people.audit import AuditLog
from controller.people.authz import Role
from controller.people.projects import SharedProjects
from controller.service.desks import Desks
from sitefile import load_site
from tests.parts.api.apps import app_of
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

PLENTY = Limit(rate=1e6, burst=1e6)
NOW = 1_800_000_000.0


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@dataclass
class Site:
    """One controller with people; ``alpha`` owns the job alpha-red, ``beta`` owns beta-blue."""

    app: FastAPI
    rack: Rack
    accounts: Accounts
    audit: AuditLog
    clock: Clock
    secrets: dict[str, str]
    """By role and project: ``admin``, ``user-alpha``, ``viewer-beta`` …"""

    @property
    def desks(self) -> Desks:
        """Whom the API asks."""
        return self.rack.desks

    @property
    def jobs(self) -> list[str]:
        """The jobs that were submitted since the site is there."""
        return [name for name in self.rack.see.jobs if name not in ("alpha-red", "beta-blue")]

    def client(self, who: str | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://127.0.0.1:8470/api/v1",
            headers=headers,
        )


@asynccontextmanager
async def people_site(
    directory: Path, rate_limit: RateLimit | None = None, *, checkpoint: object = None
) -> AsyncIterator[Site]:
    """Yield a site with a token for every role and project; `with ``checkpoint`` for alpha-red."""
    clock = Clock()
    accounts = Accounts(directory / "accounts.sqlite", clock)
    await accounts.open()
    audit = AuditLog(directory)
    await audit.open()
    for project in ("alpha", "beta"):
        await accounts.put_project(StoredProject(project))
    secrets = {}
    for role in Role:
        if role in (Role.ADMIN, Role.OPERATOR, Role.ENGINE):
            _, secrets[role.value] = await accounts.create(role.value, role)
            continue
        for project in ("alpha", "beta"):
            name = f"{role.value}-{project}"
            _, secrets[name] = await accounts.create(name, role, [project])
    site = load_site(PAPER)
    projects = SharedProjects(site)
    await projects.open(accounts)
    rack = Rack(directory, site)
    await rack.up(projects=projects)
    red = {"project": "alpha", "endpoints": ["gpu0", "gpu2"], "checkpoint": checkpoint}
    await submit(rack, "alpha-red", 2, **red)
    await submit(rack, "beta-blue", 1, project="beta", endpoints=["gpu4"])
    await rack.state("alpha-red", "running")
    await rack.state("beta-blue", "running")
    rate_limit = rate_limit or RateLimit(changes=PLENTY, reads=PLENTY, failures=PLENTY)
    app = app_of(rack.service, Access(accounts, audit, clock=clock), rate_limit=rate_limit)
    try:
        yield Site(app, rack, accounts, audit, clock, secrets)
    finally:
        await rack.down()
        await audit.close()
        await accounts.close()
