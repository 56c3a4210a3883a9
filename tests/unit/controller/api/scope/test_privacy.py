"""What one user sees of another project, over HTTP and with the real controller: nothing.

The queue names jobs in its reasons, preemption in its events, plans and transactions in their
texts. Nothing that ann of project alpha can read holds a name of beta's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentlink.values import Scope
from controller.api.scope.redact import ANOTHER, Redactor
from controller.api.scope.sight import Sight
from controller.devices.engine import OfferedVolume, VolumeData
from controller.people.authz import Owned, Principal, Role
from controller.schema.fabric import AggregatorPortView, AggregatorView, NodeView
from controller.schema.jobs import JobView, PlanHintView, WaitView
from controller.state.offers import Offers, offer_of
from sitefile.volumes import Volume
from tests.unit.controller.api.scope.projects import people, submitted

MERGER = "merger-with-acme"
ADDRESS = "127.0.0.1:3082"


async def test_nothing_that_a_user_can_read_names_another_projects_job(tmp_path: Path) -> None:
    async with people(tmp_path) as site:
        rack = site.rack
        ann = Principal("ann", Role.USER, frozenset({"alpha"}))
        desks = rack.desks
        reader = desks.feed.read(None, Sight(ann, desks.jobs.owners).cut())
        # Alpha holds more than its share, so that beta's urgent job comes before its next one.
        red = {"project": "alpha", "count": 3, "policy": "live", "preemptible": True}
        await submitted(site, "ann", name="alpha-red", endpoints=["gpu0", "gpu2", "gpu4"], **red)
        await rack.state("alpha-red", "running")
        one = {"project": "beta", "count": 2, "policy": "live", "endpoints": ["gpu1", "gpu3"]}
        await submitted(site, "bob", name=f"beta-{MERGER}-1", **one)
        await rack.state(f"beta-{MERGER}-1", "running")

        # One transaction moves both: the endpoints change places.
        async with site.client("operator") as client:
            file = (await client.get("/allocation")).json()
            homes = {"gpu0": "as1", "gpu1": "as1", "gpu2": "as0", "gpu3": "as0"}
            asked = {"site": file["site"], "homes": homes}
            moved = await client.put("/allocation", json=asked, params={"wait_s": 60})
            assert moved.json()["transaction"]["state"] == "committed", moved.text

        # Ann's next job waits for an endpoint of beta's.
        late = {"project": "alpha", "count": 1, "endpoints": ["gpu1"]}
        await submitted(site, "ann", name="alpha-late", **late)

        async def waits() -> bool:
            late = rack.desks.jobs.job("alpha-late")
            return late.wait is not None and MERGER in late.wait.reason

        await rack.until(waits)
        # Beta's urgent job pushes ann's out.
        urgent = {"project": "beta", "count": 4, "priority": 50}
        await submitted(site, "operator", name=f"beta-{MERGER}-2", **urgent)

        def preempted() -> bool:
            kept = rack.parts.state.events.since(0, 10_000)
            return any(e.object == "job/alpha-red" and MERGER in e.message for e in kept)

        await rack.until(preempted)
        rack.parts.publisher.publish_changes()
        rack.parts.publisher.publish_sample(rack.parts.telemetry)

        text = await site.seen_by("ann")
        assert "alpha-late" in text
        assert ANOTHER in text
        assert MERGER not in text
        assert "JobPreempted" in text
        stream = b"".join(item.wire for item in await reader.batch()).decode()
        assert "alpha-red" in stream
        assert MERGER not in stream
        assert "JobPreempted" in stream
        assert MERGER in await site.seen_by("bob")


async def test_a_user_without_a_name_in_mind_is_told_that_the_queue_is_full(tmp_path: Path) -> None:
    async with people(tmp_path) as site:
        state = site.rack.parts.state
        scheduling = replace(state.site.scheduling, max_waiting=1)
        state.site = replace(state.site, scheduling=scheduling)
        for _ in range(2):
            await submitted(site, "ann", project="alpha", count=6)
            await site.rack.state("alpha-1", "running")
        async with site.client("ann") as client:
            late = await client.post("/jobs", json={"project": "alpha", "count": 6})
            assert (late.status_code, late.json()["object"]) == (409, "project/alpha")
        await submitted(site, "bob", project="beta", count=6)


async def test_jobs_submitted_together_get_the_names_that_are_free_in_their_project(
    tmp_path: Path,
) -> None:
    async with people(tmp_path) as site:
        await submitted(site, "ann", name="alpha-2", project="alpha", count=6)
        # Containers of an unknown job occupy a name that the list of jobs does not show.
        site.rack.parts.state.light.strangers["gpu9"] = "alpha-3"
        one: dict[str, Any] = {"project": "alpha", "count": 6}
        async with site.client("ann") as client:
            asked = [one, {**one, "name": "alpha-1"}, one]
            reply = await client.post("/submissions", json={"jobs": asked})
            assert reply.status_code == 201, reply.text
            assert reply.json()["names"] == ["alpha-4", "alpha-1", "alpha-5"]
            for other, code in (
                ({**one, "name": "beta-1"}, 422),
                ({**one, "project": "beta"}, 404),
                ({**one, "name": "alpha-5"}, 409),
                ({**one, "priority": 100}, 403),
            ):
                asked = [{**one, "name": "alpha-new"}, other]
                assert (await client.post("/submissions", json={"jobs": asked})).status_code == code
            assert (await client.get("/jobs/alpha-new")).status_code == 404


async def test_a_viewer_of_all_projects_sees_no_address_of_a_device(tmp_path: Path) -> None:
    async with people(tmp_path) as site:
        await submitted(site, "bob", name="beta-red", project="beta", count=1)
        await site.rack.state("beta-red", "running")
        site.rack.switch_changed("ocs0", False)
        state = site.rack.parts.state
        await state.journal.flush()  # a write under way would clear the error
        state.journal.error = f"cannot reach {ADDRESS}"
        state.events.add("warning", "job/beta-red", "Odd", f"calient+tl1://x@{ADDRESS} is silent")
        text = await site.seen_by("graphs")
        assert "beta-red" in text
        assert "127.0.0.1" not in text
        assert "calient+tl1" not in text
        assert ADDRESS in await site.seen_by("operator")
        async with site.client("graphs") as client:
            metrics = (await client.get("/../../metrics")).text
        assert 'lightloom_jobs{state="running"} 1.0' in metrics
        assert "lightloom_store_failing 1.0" in metrics


OWNED = [
    Owned("alpha-red", "alpha", ("gpu0",), holding=True),
    Owned("beta-blue", "beta", ("gpu1",), holding=True),
    Owned("green", "default", (), holding=False),
]
ALPHA = Redactor(frozenset({"alpha"}), {owned.job: owned for owned in OWNED})


def test_every_text_of_a_waiting_job_is_cut() -> None:
    hint = PlanHintView(
        moves=1, running_moves=1, jobs_paused=["alpha-red", "beta-blue"], paused_gpus=2, command="x"
    )
    wait = WaitView(
        position=2,
        queued=2,
        code="reserved",
        reason="it would delay job beta-blue",
        remedy="job green starts",
        plan=hint,
    )
    job = JobView.model_construct(
        reason="job/beta-blue", project="alpha", conditions=[], ranks=[], wait=wait
    )
    assert ALPHA.view(job.model_copy(update={"project": "beta"})) is None
    shown = ALPHA.view(job)
    assert shown is not None
    assert shown.wait is not None
    assert shown.wait.plan is not None
    assert shown.reason == ANOTHER
    assert shown.wait.reason == f"it would delay {ANOTHER}"
    assert shown.wait.remedy == f"{ANOTHER} starts"
    assert shown.wait.plan.jobs_paused == ["alpha-red"]


def test_a_text_that_a_user_shapes_tells_nothing() -> None:
    """The text of an error does not reveal whether another project has a job of a name."""
    for name in ("beta-blue", "beta-nothing"):
        assert ALPHA.text(f"there is no image job/{name}") == f"there is no image {ANOTHER}"
        assert ALPHA.text(f"held by ll-{name}-0-4") == "held by another container"
        assert ALPHA.text(f"no such file: {name}") == f"no such file: {name}"
    assert ALPHA.text("job alpha-red, in ll-alpha-red-0-4") == "job alpha-red, in ll-alpha-red-0-4"
    assert ALPHA.text("its job is ending; the job needs 4") == "its job is ending; the job needs 4"
    assert ALPHA.text("10.0.0.7:3082 is silent") == "an address is silent"


async def test_volumes_show_a_user_only_what_their_projects_may_use_and_left(
    tmp_path: Path,
) -> None:
    async with people(tmp_path) as site:
        state = site.rack.parts.state
        volumes = {
            "shared": Volume("shared", read_only=False, per="job"),
            "merger": Volume("merger", projects=frozenset({"beta"})),
            "both": Volume("both", projects=frozenset({"alpha", "beta"})),
        }
        site.rack.parts.state.site = replace(state.site, volumes=volumes)
        state.offers = Offers(state.site)
        left = tuple(
            VolumeData(Scope.JOB, f"{project}.{project}-red", bytes=1, used_at=1.0)
            for project in ("alpha", "beta")
        )
        shared = OfferedVolume("shared", read_only=False, problem=f"{ADDRESS} is silent", data=left)
        state.take_offers({"srv0": offer_of([shared], 1.0)})
        async with site.client("ann") as client:
            page = (await client.get("/volumes")).json()
            assert {item["name"] for item in page["items"]} == {"shared", "both"}
            assert "beta" not in json.dumps(page)
            assert ADDRESS not in json.dumps(page)
            (mine,) = [item for item in page["items"] if item["data"]]
            assert [entry["job"] for entry in mine["data"]] == ["alpha-red"]
            reply = await client.delete("/volumes/shared/data/beta.beta-red")
            assert reply.status_code == 404, reply.text
            assert not site.rack.engine.calls
            reply = await client.delete("/volumes/shared/data/alpha.alpha-red")
            assert (reply.status_code, reply.json()["owner"]) == (200, "alpha.alpha-red")
        async with site.client("graphs") as client:
            reply = await client.delete("/volumes/shared/data/beta.beta-red")
            assert reply.status_code == 403
            assert len((await client.get("/volumes")).json()["items"]) == 3 * 4
        async with site.client("operator") as client:
            page = (await client.get("/volumes")).json()
            assert ADDRESS in json.dumps(page)
            reply = await client.delete("/volumes/shared/data/beta.beta-red")
            assert (reply.status_code, reply.json()["owner"]) == (200, "beta.beta-red")
            assert (await client.delete("/volumes/shared/data/..")).status_code in (404, 405, 422)
            assert (await client.delete("/volumes/shared/data/a.b.c")).status_code == 422


def test_what_other_jobs_do_to_a_server_or_a_port_is_not_shown() -> None:
    busy = {"load": 9.0}
    server = NodeView(
        name="s0",
        agent=ADDRESS,
        reachable=True,
        endpoints=["gpu1"],
        jobs=[f"beta-{MERGER}"],
        containers=3,
        readings=busy,
    )
    port = AggregatorPortView(
        port=1, kind="fiber", far="ocs0/1.1.1", endpoint="gpu1", readings=busy
    )
    aggregator = AggregatorView(
        name="as0",
        dpid="1",
        connected=True,
        size=1,
        used=1,
        free=0,
        endpoints=["gpu1"],
        jobs=[f"beta-{MERGER}"],
        ports=[port],
    )
    assert ALPHA.node(server, 0).readings is None
    shown = ALPHA.view(aggregator)
    assert shown is not None
    assert shown.ports[0].readings is None
