"""The API with real accounts and a real audit trail over the fake service, in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI

from controller.api.gate.access import Access
from controller.api.gate.pace import Limit, RateLimit
from controller.people.accounts import Accounts, Project
from controller.people.audit import AuditLog
from controller.people.authz import Role
from tests.parts.api.apps import app_of
from tests.parts.api.fake_service import FakeService

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
    service: FakeService
    accounts: Accounts
    audit: AuditLog
    clock: Clock
    secrets: dict[str, str]
    """By role and project: ``admin``, ``user-alpha``, ``viewer-beta`` …"""

    def client(self, who: str | None = None) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.secrets[who]}"} if who else {}
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=self.app),
            base_url="http://127.0.0.1:8470/api/v1",
            headers=headers,
        )


@asynccontextmanager
async def people_site(directory: Path, rate_limit: RateLimit | None = None) -> AsyncIterator[Site]:
    """Yield a site with a token for every role and project."""
    clock = Clock()
    accounts = Accounts(directory / "accounts.sqlite", clock)
    await accounts.open()
    audit = AuditLog(directory)
    await audit.open()
    for project in ("alpha", "beta"):
        await accounts.put_project(Project(project))
    secrets = {}
    for role in Role:
        if role in (Role.ADMIN, Role.OPERATOR, Role.ENGINE):
            _, secrets[role.value] = await accounts.create(role.value, role)
            continue
        for project in ("alpha", "beta"):
            name = f"{role.value}-{project}"
            _, secrets[name] = await accounts.create(name, role, [project])
    service = FakeService()
    service.own("alpha-red", "alpha", ["gpu0", "gpu2"])
    service.own("beta-blue", "beta", ["gpu4"])
    rate_limit = rate_limit or RateLimit(changes=PLENTY, reads=PLENTY, failures=PLENTY)
    app = app_of(service, Access(accounts, audit, clock=clock), rate_limit=rate_limit)
    try:
        yield Site(app, service, accounts, audit, clock, secrets)
    finally:
        await audit.close()
        await accounts.close()
