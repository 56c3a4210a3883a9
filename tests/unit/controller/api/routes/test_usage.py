"""Usage over HTTP: windows, CSV, refusals, and the counters of Prometheus."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from tests.parts.api.people import people_site

SUMS = ["held_s", "frozen_s", "dark_s", "weighted_s", "jobs"]


@pytest.mark.parametrize("role", ["admin", "operator", "user-alpha", "viewer-beta"])
async def test_every_role_may_read_usage(tmp_path: Path, role: str) -> None:
    async with people_site(tmp_path) as site, site.client(role) as client:
        reply = await client.get("/usage", params={"since": 5.0, "until": 7.0, "by": "user"})
        assert reply.status_code == 200
        view = reply.json()
        assert (view["since"], view["until"], view["by"]) == (5.0, 7.0, "user")
        assert view["lines"][0]["project"] is None
        assert [view["total"][name] for name in SUMS] == [7200.0, 600.0, 0.5, 9000.0, 1]


async def test_without_a_token_there_is_none(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site, site.client() as client:
        assert (await client.get("/usage")).status_code == 401


async def test_csv_has_a_line_each_and_no_formulas(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site, site.client("operator") as client:
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
        text = (await client.get("http://127.0.0.1:8470/metrics")).text
    assert 'lightloom_endpoint_seconds_total{kind="held",project="vision"} 7200.0' in text
    assert 'lightloom_endpoint_seconds_total{kind="frozen",project="vision"} 600.0' in text
