"""Usage over HTTP: windows, CSV, refusals, and the counters of Prometheus."""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path

import pytest

from controller.schema.insight.usage import UsageLineView, UsageSumsView, UsageView
from tests.parts.api.desks import answer
from tests.parts.api.people import people_site

SUMS = ["held_s", "frozen_s", "dark_s", "weighted_s", "jobs"]


@pytest.mark.parametrize(
    ("role", "seen"),
    [
        ("admin", [6.0, 0.0, 0.0, 10.0, 2]),
        ("operator", [6.0, 0.0, 0.0, 10.0, 2]),
        ("user-alpha", [4.0, 0.0, 0.0, 8.0, 1]),
        ("viewer-beta", [2.0, 0.0, 0.0, 2.0, 1]),
    ],
)
async def test_every_role_may_read_usage(tmp_path: Path, role: str, seen: list[float]) -> None:
    async with people_site(tmp_path) as site, site.client(role) as client:
        began = site.rack.see.now()
        await asyncio.sleep(5)
        query = {"since": began, "until": began + 2, "by": "user"}
        reply = await client.get("/usage", params=query)
        assert reply.status_code == 200
        view = reply.json()
        assert {name: view[name] for name in query} == query
        assert view["lines"][0]["project"] is None
        assert [view["total"][name] for name in SUMS] == seen


async def test_without_a_token_there_is_none(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site, site.client() as client:
        assert (await client.get("/usage")).status_code == 401


async def test_csv_has_a_line_each_and_no_formulas(tmp_path: Path) -> None:
    sums = {"held_s": 7200.0, "jobs": 1}
    line = UsageLineView(job="red", submitted_at=1.0, project="vision", user="=cmd()", **sums)
    whole = UsageSumsView.model_validate(sums)
    view = UsageView(
        since=0.0, until=9.0, by="job", lines=[line], others=UsageSumsView(), total=whole
    )
    async with people_site(tmp_path) as site, site.client("operator") as client:
        answer(site.desks.usage, over=view)
        reply = await client.get("/usage", params={"by": "job", "format": "csv"})
        assert reply.headers["content-type"].startswith("text/csv")
        rows = list(csv.DictReader(io.StringIO(reply.text)))
        assert list(rows[0]) == ["line", "job", "submitted_at", "project", "user", *SUMS]
        assert [row["line"] for row in rows] == ["job", "others", "total"]
        assert (rows[0]["user"], rows[0]["held_s"]) == ("'=cmd()", "7200.0")
        assert rows[2]["held_s"] == "7200.0"


@pytest.mark.parametrize(
    "query", [{"by": "endpoint"}, {"since": "yesterday"}, {"since": -1}, {"format": "xml"}]
)
async def test_what_is_not_a_question_is_refused(tmp_path: Path, query: dict[str, str]) -> None:
    async with people_site(tmp_path) as site, site.client("operator") as client:
        assert (await client.get("/usage", params=query)).status_code == 422


async def test_metrics_count_endpoint_seconds(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site, site.client("operator") as client:
        assert (await client.post("/jobs/alpha-red/pause")).status_code == 200
        await asyncio.sleep(3)
        text = (await client.get("http://127.0.0.1:8470/metrics")).text
        held = site.desks.usage.totals()["alpha"]
    assert 6.0 <= held.frozen_s <= held.held_s
    for kind, seconds in (("held", held.held_s), ("frozen", held.frozen_s)):
        line = f'lightloom_endpoint_seconds_total{{kind="{kind}",project="alpha"}} {seconds}'
        assert line in text
