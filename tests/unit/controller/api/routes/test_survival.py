"""Checkpoints, recoveries and drains over REST: whose they are, what is refused, what is said."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from controller.api.routes import checkpoints
from controller.base.errors import ServiceError
from controller.people.authz import Principal, Role, authorise
from tests.parts.api.desks import answer, never
from tests.parts.api.people import Site, people_site
from tests.parts.api.survival import KEPT, damage, lost, written
from tests.parts.controller.jobs import submit


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path, checkpoint=KEPT) as site:
        await written(site.rack, "alpha-red")
        yield site


async def ask(site: Site, who: str, method: str, path: str, **sent: object) -> httpx.Response:
    async with site.client(who) as client:
        return await client.request(method, path, **sent)  # type: ignore[arg-type]


def changes(site: Site) -> list[str]:
    """What the servers were asked to verify or to drop."""
    calls = [name for name, _, _ in site.rack.engine.kept.calls]
    return [name for name in calls if name in ("verify_steps", "drop_steps")]


async def test_a_user_reads_the_checkpoints_of_own_jobs_without_others_names(site: Site) -> None:
    view = await site.desks.checkpoints.checkpoints("alpha-red")
    view.steps[0] = view.steps[0].model_copy(update={"why": "gpu4 waits for job beta-blue"})
    answer(site.desks.checkpoints, checkpoints=view)
    mine = await ask(site, "user-alpha", "GET", "/jobs/alpha-red/checkpoints")
    steps = mine.json()["steps"]
    assert [(step["step"], step["state"]) for step in steps] == [
        (400, "written"),
        (300, "protected"),
        (200, "persistent"),
    ]
    assert steps[1]["parts"][0]["held_by"] == ["gpu0", "gpu2"]
    assert "beta-blue" not in mine.text
    assert "another project's job" in steps[0]["why"]
    assert "beta-blue" in (await ask(site, "operator", "GET", "/jobs/alpha-red/checkpoints")).text


@pytest.mark.parametrize(
    ("method", "tail"),
    [
        ("GET", "checkpoints"),
        ("GET", "checkpoints/advice"),
        ("POST", "checkpoints/verify"),
        ("DELETE", "checkpoints/300"),
        ("GET", "recoveries"),
    ],
)
async def test_another_projects_job_is_not_found(site: Site, method: str, tail: str) -> None:
    theirs = await ask(site, "user-beta", method, f"/jobs/alpha-red/{tail}")
    nobodys = await ask(site, "user-beta", method, f"/jobs/alpha-not/{tail}")
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace("alpha-red", "X") == nobodys.text.replace("alpha-not", "X")
    assert not changes(site)


async def test_a_viewer_changes_nothing(site: Site) -> None:
    for method, tail in (("POST", "verify"), ("DELETE", "200")):
        reply = await ask(site, "viewer-alpha", method, f"/jobs/alpha-red/checkpoints/{tail}")
        assert reply.status_code == 403
    assert not changes(site)


async def test_one_step_or_all_are_verified_and_it_is_recorded(site: Site) -> None:
    damage(site.rack, 300)
    path = "/jobs/alpha-red/checkpoints/verify"
    whole = await ask(site, "user-alpha", "POST", path)
    assert whole.json()["damaged"][0]["damages"] == ["model.pt: crc32c"]
    one = await ask(site, "user-alpha", "POST", path, params={"step": 200})
    assert one.json()["damaged"] == []
    kept = await site.audit.records(None, 10)
    assert [record.action for record in kept] == ["verify_checkpoints"] * 2


async def test_a_verification_may_take_minutes(site: Site) -> None:
    assert checkpoints.VERIFY_S == 600
    answer(site.desks.checkpoints, verify_checkpoints=never)
    late = await ask(site, "operator", "POST", "/jobs/alpha-red/checkpoints/verify")
    assert late.status_code == 504
    assert "continues" in late.json()["hint"]


async def test_the_newest_complete_step_is_dropped_by_force_only(site: Site) -> None:
    path = "/jobs/alpha-red/checkpoints"
    refused = await ask(site, "user-alpha", "DELETE", f"{path}/300")
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    left = await ask(site, "user-alpha", "DELETE", f"{path}/300", params={"force": True})
    assert [(step["step"], step["state"]) for step in left.json()["steps"]] == [
        (400, "written"),
        (300, "dropped"),
        (200, "persistent"),
    ]
    await asyncio.sleep(1)  # the servers say that it is gone
    steps = (await ask(site, "user-alpha", "GET", path)).json()["steps"]
    assert [step["step"] for step in steps] == [400, 200]
    unknown = await ask(site, "user-alpha", "DELETE", f"{path}/301", params={"force": True})
    assert unknown.status_code == 404


async def test_a_drop_that_is_repeated_with_its_key_happens_once(site: Site) -> None:
    path, key = "/jobs/alpha-red/checkpoints/200", {"Idempotency-Key": "drop-1"}
    first = await ask(site, "user-alpha", "DELETE", path, headers=key)
    second = await ask(site, "user-alpha", "DELETE", path, headers=key)
    assert first.status_code == second.status_code == 200
    assert first.json() == second.json()


@pytest.mark.parametrize(
    ("step", "status"), [(str(2**63), 422), ("-1", 404), ("newest", 404), ("advice", 405)]
)
async def test_a_step_is_a_number(site: Site, step: str, status: int) -> None:
    reply = await ask(site, "operator", "DELETE", f"/jobs/alpha-red/checkpoints/{step}")
    assert reply.status_code == status
    assert reply.headers.get("allow") == ("GET" if status == 405 else None)


async def test_recoveries_of_a_job_have_phases(site: Site) -> None:
    lost(site.rack, "alpha-red", why="the spare of job beta-blue")
    reply = await ask(site, "viewer-alpha", "GET", "/jobs/alpha-red/recoveries")
    found = reply.json()["recoveries"][0]
    assert (found["swaps"], found["light_s"], found["own_s"]) == ({"gpu3": "gpu5"}, 0.8, 2.5)
    assert "beta-blue" not in reply.text


async def test_what_failures_cost_the_site_is_for_those_who_see_all_of_it(site: Site) -> None:
    assert (await ask(site, "user-alpha", "GET", "/recoveries")).status_code == 403
    for number in (1, 2):
        lost(site.rack, "alpha-red", cause="program", number=number)
    since = site.rack.see.jobs["alpha-red"].submitted_at
    whole = await ask(site, "operator", "GET", "/recoveries", params={"since": since})
    assert (whole.json()["since"], whole.json()["failures"]["program"]) == (since, 2)
    everywhere = Principal("eve", Role.VIEWER, frozenset({"*"}))
    assert authorise(everywhere, "recoveries:read") == "allowed"


@pytest.mark.parametrize(
    ("path", "about"),
    [
        ("/nodes/srv0", "node/srv0"),
        ("/aggregators/as0", "aggregator/as0"),
        ("/switches/ocs0", "switch/ocs0"),
    ],
)
async def test_operators_drain_and_everyone_sees_it(site: Site, path: str, about: str) -> None:
    refused = await ask(site, "user-alpha", "POST", f"{path}/drain", json={"now": True})
    assert refused.status_code == 403
    begun = await ask(site, "operator", "POST", f"{path}/drain", json={})
    assert (begun.json()["object"], begun.json()["state"]) == (about, "draining")
    seen = await ask(site, "user-alpha", "GET", "/drains")
    assert list(seen.json()["items"][0]["jobs"]) == ["alpha-red"]
    ended = await ask(site, "operator", "DELETE", f"{path}/drain")
    assert ended.json()["object"] == about
    assert (await ask(site, "operator", "GET", "/drains")).json()["items"] == []
    again = await ask(site, "operator", "DELETE", f"{path}/drain")
    assert again.status_code == 404


async def test_a_drain_is_refused_for_what_is_not_there_or_at_another_epoch(site: Site) -> None:
    assert (await ask(site, "operator", "POST", "/nodes/srv9/drain", json={})).status_code == 404
    old = {"If-Match": '"1"'}
    reply = await ask(site, "operator", "POST", "/nodes/srv0/drain", json={}, headers=old)
    assert reply.status_code == 412
    assert not site.desks.drains.views()


async def test_a_job_without_checkpoints_is_a_conflict_with_a_hint(site: Site) -> None:
    reply = await ask(site, "user-beta", "GET", "/jobs/beta-blue/checkpoints")
    assert (reply.status_code, reply.json()["hint"][:14]) == (409, "submit it with")


async def test_metrics_have_bytes_phases_and_hours_lost(site: Site) -> None:
    metrics = "http://127.0.0.1:8470/metrics"
    text = (await ask(site, "operator", "GET", metrics)).text
    assert 'lightloom_recovery_seconds_count{phase="stop"} 0.0' in text  # from the start on
    asked: dict[str, Any] = {"checkpoint": KEPT, "spares": 4, "spares_needed": False}
    await submit(site.rack, "spared", 2, **asked)
    await submit(site.rack, "old", 1, **asked)
    await site.rack.state("spared", "running")
    await site.desks.jobs.cancel("old")
    await asyncio.sleep(1)
    lost(site.rack, "alpha-red", cause="program", gpus=2)
    failed_at = site.rack.see.now() - 7
    lost(site.rack, "alpha-red", stage="started", failed_at=failed_at, finished_at=None)
    text = (await ask(site, "operator", "GET", metrics)).text
    assert 'lightloom_checkpoint_bytes{job="alpha-red",state="protected"} 2000.0' in text
    assert 'lightloom_checkpoint_written_seconds{job="alpha-red"} 0.5' in text
    assert 'lightloom_checkpoint_unprotected_seconds{job="alpha-red"}' in text
    assert 'lightloom_job_spares_missing{job="spared"} 3.0' in text
    assert 'job="old"' not in text
    assert 'lightloom_recovery_seconds_count{phase="light"} 1.0' in text
    assert 'lightloom_recovery_open_seconds{job="alpha-red"} 7.' in text
    assert 'lightloom_lost_gpu_seconds_total{cause="program"} 36.0' in text


async def test_metrics_do_without_what_cannot_be_read(site: Site) -> None:
    answer(site.desks.checkpoints, sums=ServiceError("unavailable", "not now"))
    reply = await ask(site, "operator", "GET", "http://127.0.0.1:8470/metrics")
    assert reply.status_code == 200
    assert "lightloom_jobs{" in reply.text
