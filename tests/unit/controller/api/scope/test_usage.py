"""Usage by caller: users and viewers see their own projects, in every line and sum."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.controller.api.scope.projects import People, people, submitted


async def usage(site: People, who: str, by: str) -> Any:
    async with site.client(who) as client:
        return (await client.get("/usage", params={"by": by})).json()


async def test_each_caller_sees_the_usage_of_their_own_projects(tmp_path: Path) -> None:
    async with people(tmp_path) as site:
        await submitted(site, "ann", name="alpha-red", project="alpha", count=2)
        await submitted(site, "bob", name="beta-blue", project="beta", count=1)
        for name in ("alpha-red", "beta-blue"):
            await site.rack.state(name, "running")
        await asyncio.sleep(60)
        async with site.client("bob") as client:  # an end changes nothing of that
            assert (await client.post("/jobs/beta-blue/cancel")).status_code == 200

        everything = {"alpha": ("ann", "alpha-red"), "beta": ("bob", "beta-blue")}
        for who, projects in (
            ("ann", ["alpha"]),
            ("bob", ["beta"]),
            ("graphs", ["alpha", "beta"]),
            ("operator", ["alpha", "beta"]),
        ):
            by_project = await usage(site, who, "project")
            assert sorted(line["project"] for line in by_project["lines"]) == projects
            by_user = await usage(site, who, "user")
            assert {line["user"] for line in by_user["lines"]} == {
                everything[project][0] for project in projects
            }
            by_job = await usage(site, who, "job")
            shown = {(line["project"], line["user"], line["job"]) for line in by_job["lines"]}
            assert shown == {(p, *everything[p]) for p in projects}
            for view in (by_project, by_user, by_job):
                assert view["total"]["jobs"] == len(projects)
                held = sum(line["held_s"] for line in view["lines"])
                assert view["total"]["held_s"] == pytest.approx(held, abs=1e-2)
                assert view["others"]["held_s"] == 0

        async with site.client("ann") as client:
            text = (await client.get("/usage", params={"by": "job", "format": "csv"})).text
            assert "beta" not in text
            assert "bob" not in text
            assert (await client.get("/jobs/alpha-red")).json()["user"] == "ann"
