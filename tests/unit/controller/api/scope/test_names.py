"""Names of jobs belong to one project, and what was prepared in a job to that job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.parts.api.desks import answer
from tests.parts.api.people import people_site
from tests.unit.controller.api.scope.projects import People, people, submitted


async def ended(site: People, name: str) -> None:
    async with site.client("operator") as client:
        assert (await client.post(f"/jobs/{name}/cancel")).status_code == 200
    await site.rack.state(name, "cancelled")


async def asked(site: People, who: str, name: str) -> tuple[int, dict[str, Any]]:
    """Submit a job of alpha in both ways; return the one answer."""
    job = {"project": "alpha", "count": 1, "name": name}
    async with site.client(who) as client:
        one = await client.post("/jobs", json=job)
        many = await client.post("/submissions", json={"jobs": [job]})
    assert (one.status_code, one.json()) == (many.status_code, many.json())
    return one.status_code, one.json()


async def test_a_name_belongs_to_the_longest_project_that_it_starts_with(tmp_path: Path) -> None:
    async with people(tmp_path) as site:
        await submitted(site, "operator", project="alpha-prod", count=1, name="alpha-prod-x")
        await site.rack.state("alpha-prod-x", "running")
        taken = await asked(site, "ann", "alpha-prod-x")
        free = await asked(site, "ann", "alpha-prod-y")
        assert taken[0] == free[0] == 422
        assert str(taken).replace("prod-x", "prod-y") == str(free)
        assert free[1]["detail"].endswith("belong to project alpha-prod")

        await ended(site, "alpha-prod-x")
        assert (await asked(site, "ann", "alpha-prod-x"))[0] == 422
        job = site.rack.desks.jobs.job("alpha-prod-x")
        assert (job.project, job.state) == ("alpha-prod", "cancelled")
        await submitted(site, "ann", project="alpha", count=1, name="alpha-prod")
        await submitted(site, "ann", project="alpha", count=1, name="alpha-product-x")


async def test_a_project_without_jobs_owns_its_names_too(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site, site.client("user-alpha") as client:
        answer(site.desks.jobs, projects={"alpha", "beta", "alpha-prod"})
        job = {"project": "alpha", "count": 1, "name": "alpha-prod-x"}
        assert (await client.post("/jobs", json=job)).status_code == 422
        assert not site.jobs


async def test_the_projects_of_the_site_are_known(tmp_path: Path) -> None:
    async with people(tmp_path) as site:
        assert set(site.rack.desks.jobs.projects()) == {"default", "alpha", "beta"}


async def test_no_job_replaces_one_of_another_project(tmp_path: Path) -> None:
    async with people(tmp_path) as site:
        await submitted(site, "operator", project="beta", count=1, name="alpha-x")
        await site.rack.state("alpha-x", "running")
        assert (await asked(site, "ann", "alpha-x"))[0] == 409
        await ended(site, "alpha-x")
        status, problem = await asked(site, "ann", "alpha-x")
        assert (status, problem["code"], problem["hint"]) == (
            409,
            "conflict",
            "choose another name",
        )
        assert site.rack.desks.jobs.job("alpha-x").project == "beta"


async def test_a_prepared_command_does_not_run_in_another_job_of_that_name(tmp_path: Path) -> None:
    async with people(tmp_path) as site, site.client("ann") as ann:
        await submitted(site, "ann", project="alpha", count=1, name="alpha-red")
        await site.rack.state("alpha-red", "running")
        made = await ann.post("/jobs/alpha-red/exec", json={"command": ["cat", "/secret"]})
        assert made.status_code == 201, made.text
        await ended(site, "alpha-red")
        await submitted(site, "operator", project="beta", count=1, name="alpha-red")
        await site.rack.state("alpha-red", "running")
        shown = await ann.get(f"/jobs/alpha-red/exec/{made.json()['id']}")
        assert "the run that it was prepared for has ended" in shown.text
        assert site.rack.engine.execs == []
