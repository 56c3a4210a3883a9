"""S2 and S3: every route x every role x own and other project, generated from the schema."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from fastapi.routing import APIRoute

from controller.api.app import PARTS, PREFIX
from controller.api.gate.rules import RouteTable
from controller.api.operation import operation
from controller.api.routes.metrics import site as metrics
from controller.api.scope.redact import Redactor
from controller.api.scope.sight import Sight
from controller.people.authz import VERBS, Authorisation, Owned, Principal, Role, authorise, may
from controller.schema.fabric import AggregatorPortView, AggregatorView
from controller.schema.images import PrepareRequest
from controller.schema.plans import PlanRequest, RolloutRequest
from controller.schema.stream import ChangedView, ResyncView
from controller.schema.volumes import DataRemovalView
from controller.state.records import Quarantine
from tests.parts.api.apps import app_of
from tests.parts.api.desks import answer
from tests.parts.api.engine import CHECKS, ENGINE
from tests.parts.api.people import Site, people_site
from tests.parts.api.studied import running
from tests.parts.api.survival import KEPT, written

TABLE = RouteTable(
    [
        ("", route)
        for part in (*PARTS, metrics)
        for route in part.router.routes
        if isinstance(route, APIRoute)
    ]
)
RULES = {name: declared.verb for name, declared in TABLE.operations.items() if declared.verb}
SCHEMA: dict[str, Any] = app_of().openapi()
OPERATIONS = [
    (method, path, operation["operationId"])
    for path, item in SCHEMA["paths"].items()
    for method, operation in item.items()
    if operation["operationId"] in RULES and operation["operationId"] != "stream_events"
]
CALLERS = [
    *("admin", "operator", "engine"),
    *("user-alpha", "user-beta", "viewer-alpha", "viewer-beta"),
]
BODIES: dict[str, Any] = {
    "submit_job": {"count": 1, "project": "alpha", "name": "alpha-new"},
    "submit_jobs": {"jobs": [{"count": 1, "project": "alpha", "name": "alpha-other"}]},
    "make_plan": {},
    "predict_job": {"homes": {"gpu0": "as1"}},
    "prepare_image": {"image": "image:2"},
    "attach_endpoint": {"aggregator": "as1"},
    "put_project": {"name": "gamma"},
    "put_allocation": {"site": "paper", "homes": {}},
    "prepare_exec": {"command": ["true"]},
    "send_exec_input": {"seq": 1, "stdin": ""},
    "start_measurement": {"type": "links", "project": "alpha"},
    "import_measurement": {"type": "links", "tool": "osu", "text": "1"},
    **{f"drain_{kind}": {} for kind in ("node", "aggregator", "switch")},
    "create_token": {"name": "eve", "role": "viewer", "projects": ["alpha"]},
}
IDENTS = {"transactions": "t2", "rollouts": "o1", "measurements": "m1"}
PLAN = PlanRequest()
NOTHING = DataRemovalView(volume="scratch", owner="alpha.alpha-red", dry_run=False, directories=[])
SUCCESS = {200, 201, 202, 204}


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with people_site(tmp_path) as site:
        yield site


@pytest_asyncio.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Site]:
    """A site with one of everything, where changes are answered and not made."""
    async with people_site(tmp_path, checkpoint=KEPT) as site:
        rack, desks = site.rack, site.desks
        await written(rack, "alpha-red")
        rack.parts.state.light.quarantine.put(Quarantine("as0/3", "no light", 1.0))
        await desks.profiles.probe("as0")
        drained = await desks.drains.drain("node", "srv3", now=True)
        rollout = await desks.rollouts.begin(
            RolloutRequest(plan=await desks.plans.make_plan(PLAN), max_dark=1)
        )
        await rack.until(lambda: desks.rollouts.rollout(rollout.id).state == "committed")
        plan = await desks.plans.make_plan(PLAN)
        moved = desks.plans.transaction("t2")
        measured = running(1).model_copy(update={"project": "alpha"})
        red = desks.jobs.job("alpha-red")
        answer(desks.jobs, cancel=red, pause=red, resume=red, submit=red, submit_all=[red.name])
        answer(desks.plans, make_plan=plan, apply=moved, attach=moved, abort=moved)
        answer(desks.rollouts, begin=rollout, abort=rollout)
        answer(desks.drains, drain=drained, undrain=drained)
        answer(
            desks.measurements,
            **{"start": measured, "import_result": measured, "view": measured},
            **{"cancel": measured, "remove": measured},
        )
        answer(desks.engine, status=ENGINE, check=CHECKS, allocated=ENGINE.allocations[0])
        answer(desks.data, remove=NOTHING)
        answer(desks.health, accept_store=desks.health.health())
        yield site


async def call(site: Site, who: str | None, method: str, path: str, name: str) -> httpx.Response:
    """Make one well-formed request about things of project alpha."""
    subjects = {
        "get_job": "alpha-red",
        "cancel_job": "alpha-red",
        "pause_job": "alpha-red",
        "resume_job": "alpha-red",
        "stream_job_logs": "alpha-red",
        "get_comms": "alpha-red",
        "list_checkpoints": "alpha-red",
        "get_checkpoint_advice": "alpha-red",
        "verify_checkpoints": "alpha-red",
        "drop_checkpoint": "alpha-red",
        "list_job_recoveries": "alpha-red",
        "drain_node": "srv0",
        "undrain_node": "srv0",
        "drain_aggregator": "as0",
        "undrain_aggregator": "as0",
        "drain_switch": "ocs0",
        "get_profile": "as0",
        "probe_aggregator": "as0",
        "undrain_switch": "ocs0",
        "prepare_exec": "alpha-red",
        "stream_exec": "alpha-red",
        "send_exec_input": "alpha-red",
        "predict_job": "alpha-red",
        "attach_endpoint": "gpu0",
        "trace_endpoint": "gpu0",
        "release_quarantine": "as0/3",
        "repair_switch": "ocs0",
        "get_optics": "ocs0",
        "get_power_series": "ocs0",
        "put_project": "gamma",
        "remove_data": "scratch",
    }
    ident = IDENTS.get(path.removeprefix(PREFIX).split("/")[1], "")
    if name == "get_preparation":
        ident = site.desks.images.prepare(PrepareRequest(image="image:1")).id
    if name == "revoke_token":
        token, _ = await site.accounts.create("spare", Role.VIEWER, ["alpha"])
        ident = token.id
    if "{ident}" in path and "exec" in path:
        ident = "0" * 32
        async with site.client(who) as client:
            made = await client.post("/jobs/alpha-red/exec", json=BODIES["prepare_exec"])
            ident = made.json().get("id", ident)
    body = BODIES.get(name)
    if name in {"apply_plan", "begin_rollout"}:
        body = {"plan": json.loads((await site.desks.plans.make_plan(PLAN)).model_dump_json())}
    path = _path(path).format(
        name=subjects.get(name, ""),
        ident=ident,
        port="1.1.1",
        owner="alpha.alpha-red",
        step=200,
        number=4711,
    )
    async with site.client(who) as client:
        return await client.request(method, path, json=body)


def _path(path: str) -> str:
    return path.removeprefix("/api/v1") if path.startswith("/api/v1") else f"/../..{path}"


def expected(who: str, name: str) -> set[int]:
    """What the table of rules says of ``who`` and of something of project alpha."""
    role, _, project = who.partition("-")
    verb = RULES[name]
    principal = Principal(who, Role(role), frozenset({project} if project else ()))
    if authorise(principal, verb) is Authorisation.FORBIDDEN:
        return {403}
    about_alpha = name in {
        "get_job",
        "cancel_job",
        "pause_job",
        "resume_job",
        "stream_job_logs",
        "get_comms",
        "prepare_exec",
        "stream_exec",
        "send_exec_input",
        "list_checkpoints",
        "get_checkpoint_advice",
        "verify_checkpoints",
        "drop_checkpoint",
        "list_job_recoveries",
        "predict_job",
        "submit_job",
        "submit_jobs",
        "get_transaction",
        "abort_transaction",
        "remove_data",
        "get_measurement",
    }
    if about_alpha and not principal.sees("alpha"):
        return {404}
    return SUCCESS


@pytest.mark.parametrize("who", CALLERS)
async def test_every_route_for_every_role(whole: Site, who: str) -> None:
    wrong = {}
    for method, path, name in OPERATIONS:
        reply = await call(whole, who, method, path, name)
        if reply.status_code not in expected(who, name):
            wrong[name] = (reply.status_code, reply.text)
    assert not wrong
    assert len(OPERATIONS) >= len(RULES) - 2  # the stream and the metrics have their own tests


async def test_no_route_without_a_token(whole: Site) -> None:
    for method, path, name in OPERATIONS:
        reply = await call(whole, None, method, path, name)
        assert (reply.status_code, reply.json()["code"]) == (401, "forbidden"), name
        assert reply.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("who", CALLERS)
async def test_a_refusal_changes_nothing(whole: Site, who: str) -> None:
    before = [job.model_dump() for job in await whole.desks.jobs.jobs()]
    for method, path, name in OPERATIONS:
        if method != "get" and expected(who, name) != SUCCESS:
            await call(whole, who, method, path, name)
    assert [job.model_dump() for job in await whole.desks.jobs.jobs()] == before


@pytest.mark.parametrize("tail", ["", "/cancel", "/pause", "/resume", "/logs"])
async def test_another_projects_job_is_as_unknown_as_none(site: Site, tail: str) -> None:
    method = "POST" if tail in ("/cancel", "/pause", "/resume") else "GET"
    async with site.client("user-beta") as client:
        theirs = await client.request(method, f"/jobs/alpha-red{tail}")
        nobodys = await client.request(method, f"/jobs/alpha-not{tail}")
    assert theirs.status_code == nobodys.status_code == 404
    assert theirs.text.replace("alpha-red", "X") == nobodys.text.replace("alpha-not", "X")
    assert sorted(theirs.headers) == sorted(nobodys.headers)


async def test_no_list_names_another_projects_job(site: Site) -> None:
    lists = [path for method, path, _ in OPERATIONS if method == "get" and "{" not in path]
    async with site.client("user-beta") as client:
        for path in lists:
            text = (await client.get(_path(path))).text
            assert "alpha" not in text, path
            assert "admin@" not in text, path
    async with site.client("user-alpha") as client:
        assert "alpha-red" in (await client.get("/jobs")).text


async def test_a_taken_name_tells_nothing(site: Site) -> None:
    async with site.client("user-beta") as client:
        taken = await client.post("/jobs", json={"count": 1, "project": "beta", "name": "red"})
        free = await client.post("/jobs", json={"count": 1, "project": "beta", "name": "not"})
        assert taken.status_code == free.status_code == 422
        assert taken.text.replace("red", "X") == free.text.replace("not", "X")
        for project in ("alpha", "nowhere"):
            reply = await client.post("/jobs", json={"count": 1, "project": project})
            assert reply.status_code == 404
        named = await client.post("/jobs", json={"count": 1, "project": "beta"})
        assert named.json()["name"] == "beta-1"


async def test_the_stream_shows_a_user_only_their_own(site: Site) -> None:
    feed = site.desks.feed
    beta = Principal("b", Role.USER, frozenset({"beta"}))
    frames = aiter(feed.read(None, Sight(beta, site.desks.jobs.owners).cut()))
    following = asyncio.ensure_future(anext(frames))
    assert feed.readers == 1
    feed.publish("changed", ChangedView(kind="job", name="alpha-red", epoch=1))
    feed.publish("changed", ChangedView(kind="job", name="beta-blue", epoch=2))
    seen = await following
    assert isinstance(seen.data, ChangedView)
    assert seen.data.name == "beta-blue"
    feed.publish("resync", ResyncView(reason="x"))
    assert (await anext(frames)).type == "resync"
    await frames.aclose()  # type: ignore[attr-defined]


async def test_the_stream_tells_a_user_that_an_own_job_is_gone(site: Site) -> None:
    beta = Principal("b", Role.USER, frozenset({"beta"}))
    cut = Sight(beta, site.desks.jobs.owners).cut()
    reader = site.desks.feed.read(None, cut)
    for name in ("beta-blue", "alpha-red"):
        site.rack.parts.state.jobs.remove(name)
    for name in ("alpha-red", "beta-blue", "", "unknown"):
        site.desks.feed.publish("changed", ChangedView(kind="job", name=name, epoch=1))
    names = [item.data.name for item in await reader.batch()]  # type: ignore[union-attr]
    assert names == ["beta-blue", ""]


def test_what_a_job_had_belongs_to_others_once_it_ended() -> None:
    """Its moves stay its owner's to see; the traffic of its endpoints does not."""
    owners = [
        Owned("beta-old", "beta", ("gpu0", "gpu1"), holding=False),
        Owned("beta-now", "beta", ("gpu2",), holding=True),
        Owned("alpha-red", "alpha", ("gpu0",), holding=True),
    ]
    redact = Redactor(frozenset({"beta"}), {owned.job: owned for owned in owners})
    assert redact.owns("beta-old")
    assert not redact.owns("alpha-red")
    seen = AggregatorView(
        name="as0",
        dpid="1",
        connected=True,
        size=4,
        used=2,
        free=2,
        endpoints=["gpu0", "gpu2"],
        jobs=["alpha-red", "beta-now"],
        ports=[
            AggregatorPortView(
                port=n, kind="fiber", far=f"ocs0/{n}", endpoint=f"gpu{n}", rx_bps=1e9
            )
            for n in (0, 2)
        ],
    )
    shown = redact.view(seen)
    assert shown.jobs == ["beta-now"]
    assert [port.rx_bps for port in shown.ports] == [None, 1e9]


def test_a_route_that_declares_nothing_does_not_start() -> None:
    async def forgotten() -> None: ...

    with pytest.raises(RuntimeError, match="forgotten"):
        RouteTable([("", APIRoute("/forgotten", forgotten))])
    RouteTable([("", APIRoute("/forgotten", operation("jobs:read")(forgotten)))])


def test_every_verb_of_an_operation_is_known() -> None:
    assert set(RULES.values()) <= set(VERBS)
    public = TABLE.operations.keys() - RULES.keys()
    assert public == {"open_session", "close_session", "get_alive"}


@pytest.mark.parametrize("role", list(Role))
def test_an_unknown_verb_is_refused_to_every_role(role: Role) -> None:
    principal = Principal("x", role, frozenset({"*"}))
    assert authorise(principal, "reactor:open") is Authorisation.FORBIDDEN
    assert "reactor:open" not in may(principal)


def test_a_role_is_judged_before_the_project() -> None:
    viewer = Principal("v", Role.VIEWER, frozenset({"alpha"}))
    assert authorise(viewer, "jobs:change", "beta") is Authorisation.FORBIDDEN
    assert authorise(viewer, "jobs:read", "beta") is Authorisation.HIDDEN
    assert authorise(viewer, "jobs:read", "alpha") is Authorisation.ALLOWED
    assert authorise(viewer, "metrics:read") is Authorisation.FORBIDDEN
