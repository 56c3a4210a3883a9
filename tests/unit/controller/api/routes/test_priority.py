"""Users may not give their jobs any priority they like; operators and admins may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from controller.people.authz import ALL_PROJECTS, Role
from tests.parts.api.people import Site, people_site


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path) as site:
        everywhere = [ALL_PROJECTS]
        _, site.secrets["user-*"] = await site.accounts.create("all", Role.USER, everywhere)
        yield site


@pytest.mark.parametrize(
    ("who", "project", "priority", "status"),
    [
        ("user-alpha", "alpha", 5, 201),
        ("user-alpha", "alpha", 6, 403),
        ("user-*", "alpha", 5, 201),
        ("user-*", "alpha", 6, 403),
        ("user-alpha", "beta", 6, 404),
        ("operator", "alpha", 100, 201),
        ("admin", "alpha", 100, 201),
    ],
)
async def test_the_priority_of_users_is_limited(
    site: Site, who: str, project: str, priority: int, status: int
) -> None:
    body = {"name": f"{project}-new", "count": 1, "project": project, "priority": priority}
    before = len(site.jobs)
    async with site.client(who) as client:
        reply = await client.post("/jobs", json=body)
    assert reply.status_code == status, reply.text
    assert len(site.jobs) == before + (status == 201)
    if status == 403:
        assert "at most priority 5, not 6" in reply.text
        assert "max_priority" in reply.text
