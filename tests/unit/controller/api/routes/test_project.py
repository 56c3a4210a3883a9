"""A user who belongs to one project need not name it when they submit a job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from controller.people.authz import ALL_PROJECTS, Role
from tests.parts.api.people import Site, people_site

PEOPLE: dict[str, Sequence[str]] = {
    "two": ("beta", "alpha"),
    "default and another": ("default", "alpha"),
    "all": (ALL_PROJECTS,),
}


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path) as site:
        for who, projects in PEOPLE.items():
            name = who.replace(" ", "-")
            _, site.secrets[who] = await site.accounts.create(name, Role.USER, list(projects))
        yield site


@pytest.mark.parametrize(
    ("who", "project"),
    [
        ("user-alpha", "alpha"),
        ("user-beta", "beta"),
        ("default and another", "default"),
        ("all", "default"),
        ("operator", "default"),
    ],
)
async def test_the_project_of_a_job_that_names_none(site: Site, who: str, project: str) -> None:
    async with site.client(who) as client:
        reply = await client.post("/jobs", json={"count": 1})
    assert reply.status_code == 201, reply.text
    assert reply.json()["project"] == project
    assert [site.rack.see.jobs[name].request.project for name in site.jobs] == [project]


async def test_the_error_lists_the_projects_to_choose_from(site: Site) -> None:
    async with site.client("two") as client:
        reply = await client.post("/jobs", json={"count": 1})
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert reply.json()["hint"] == "name one of yours: alpha, beta"
    assert not site.jobs


async def test_a_project_that_is_named_is_the_one_that_is_meant(site: Site) -> None:
    async with site.client("user-alpha") as client:
        reply = await client.post("/jobs", json={"count": 1, "project": "default"})
    assert reply.status_code == 404
