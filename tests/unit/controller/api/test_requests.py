"""What people may ask for over HTTP, with the real controller behind it: texts, sizes, numbers.

What a request may not hold is refused when it is sent, and what an older version kept is shown.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pydantic import TypeAdapter, ValidationError

from container_mgr.ranks import policy
from controller.base.errors import ServiceError
from controller.jobs.admission import MAX_JOB_BYTES, Admission, spec_of
from controller.ranks.specs import rank_specs
from controller.schema.submit.file import JobFileModel
from controller.schema.submit.request import JobRequest
from controller.state.records import JobRecord, JobSpec
from controller.state.writes import PutJob
from sitefile import CabledSite, load_site
from sitefile.scheduling import MAX_WAITING
from tests.parts.api.apps import app_of
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

SURROGATE = "\ud800"
ABSURD = 10**400


@pytest_asyncio.fixture
async def client(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        yield client


async def sent(client: httpx.AsyncClient, method: str, path: str, body: Any) -> httpx.Response:
    """Send a body as ASCII, so that what is not valid Unicode gets there too."""
    headers = {"content-type": "application/json"}
    return await client.request(method, path, content=json.dumps(body), headers=headers)


async def test_no_request_waits_while_the_routes_are_built(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI builds them at the first match, a tenth of a second on the loop."""
    made, make = [], TypeAdapter.__init__

    def counted(self: TypeAdapter[Any], *args: Any, **named: Any) -> None:
        made.append(args)
        make(self, *args, **named)

    monkeypatch.setattr(TypeAdapter, "__init__", counted)
    assert (await client.get("/health")).status_code == 200
    assert not made


BAD_TEXTS: list[dict[str, Any]] = [
    {"command": [SURROGATE]},
    {"command": ["a\0b"]},
    {"env": {"APP_A": SURROGATE}},
    {"env": {"APP_A": "a\0b"}},
    {"env": {SURROGATE: "1"}},
    {"env": {"LD_PRELOAD": "x.so"}},
    {"image": SURROGATE},
    {"image": "--privileged"},
    {"image": "i" * 256},
    {"model": SURROGATE},
    {"model": "m" * 10_000},
    {"endpoints": [SURROGATE]},
    {"endpoints": ["gpu0"] * 1000},
    {"endpoints": ["g" * 10_000]},
    {"command": ["x"] * 257},
    {"command": ["x" * 70_000]},
    {"env": {"APP_A": "x" * 40_000}},
    {"env": {f"APP_{n}": "x" for n in range(200)}},
    {"name": "-red"},
    {"name": "red-"},
    {"name": "r" * 42},
    {SURROGATE: 1},
]


@pytest.mark.parametrize("bad", BAD_TEXTS, ids=lambda bad: ascii(bad)[:40])
async def test_a_text_that_no_agent_takes_is_refused(
    client: httpx.AsyncClient, bad: dict[str, Any]
) -> None:
    reply = await sent(client, "POST", "/jobs", {"count": 1} | bad)
    # What is larger than any request may be is refused before it is read.
    assert reply.status_code in (413, 422) and reply.json()["code"] == "invalid", reply.text
    assert len(reply.content) < 4096
    assert (await client.get("/jobs")).json()["items"] == []


WRONG = {
    "command": '"command":[' + "[]," * 30_000 + "[]]",
    "endpoints": '"endpoints":[' + "{}," * 30_000 + "{}]",
    "env": '"env":{' + ",".join(f'"A{n}":1' for n in range(11_000)) + "}",
    "fields": ",".join(f'"A{n}":1' for n in range(11_000)),
    "deep": '"command":' + "[" * 500 + "]" * 500,
}


@pytest.mark.parametrize("part", WRONG.values(), ids=WRONG)
async def test_a_body_that_is_wrong_all_over_costs_one_look(
    client: httpx.AsyncClient, part: str
) -> None:
    """Each part that is looked at takes microseconds, and a body holds a million."""
    headers = {"content-type": "application/json"}
    reply = await client.post("/jobs", content='{"count":1,' + part + "}", headers=headers)
    assert reply.status_code == 422
    assert len(reply.json()["errors"]) == 1


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/plans", {"job": SURROGATE}),
        ("POST", "/session", {"token": SURROGATE}),
        ("PUT", "/allocation", {"site": "paper", "homes": {SURROGATE: None}}),
        ("POST", "/endpoints/gpu0/attachment", {"aggregator": SURROGATE}),
        ("POST", "/tokens", {"name": SURROGATE, "role": "viewer"}),
        ("PUT", "/projects/red", {"name": SURROGATE}),
    ],
)
async def test_every_body_is_checked(
    client: httpx.AsyncClient, method: str, path: str, body: dict[str, Any]
) -> None:
    reply = await sent(client, method, path, body)
    assert reply.status_code in (403, 422), reply.text


async def test_a_plan_with_such_a_text_is_refused(client: httpx.AsyncClient) -> None:
    plan = (await client.post("/plans", json={})).json()
    reply = await sent(client, "POST", "/transactions", {"plan": plan | {"id": SURROGATE}})
    assert reply.status_code == 422
    assert (await client.get("/transactions")).status_code == 200


async def test_what_an_older_version_kept_is_shown_escaped(rack: Rack) -> None:
    """The store has a job that would be refused today; the lists that hold it answer."""
    await rack.desks.jobs.submit(JobRequest(name="red", count=1, endpoints=["gpu0"]))
    await rack.state("red", "running")
    await rack.desks.jobs.cancel("red")
    old = JobRecord(
        name="odd",
        request=JobSpec(name="odd", count=1, command=(SURROGATE,), env={"A": SURROGATE}),
        image=f"x{SURROGATE}",
        submitted_at=1.0,
        state="failed",
        reason=f"no {SURROGATE}",
        finished_at=2.0,
    )
    await rack.parts.state.store.commit(PutJob(old))
    await rack.down()
    await rack.up()
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        for path in ("/jobs", "/jobs?limit=1", "/jobs/odd", "/top", "/../../metrics"):
            assert (await client.get(path)).status_code == 200, path
        shown = (await client.get("/jobs/odd")).json()
        assert shown["command"] == [r"\ud800"]
        assert shown["env"] == {"A": r"\ud800"}
        names = {job["name"] for job in (await client.get("/jobs")).json()["items"]}
        assert names == {"red", "odd"}


def _numbers(part: dict[str, Any]) -> list[str]:
    """Return the names of the numeric fields of an object's schema."""
    found = []
    for name, field in part.get("properties", {}).items():
        kinds = [field, *field.get("anyOf", [])]
        if any(kind.get("type") in ("integer", "number") for kind in kinds):
            found.append(name)
    return found


OBJECTS = {
    "name": "gpu0",
    "ident": "t1",
    "port": "1.1.1",
    "owner": "vision.red",
    "step": "7",
    "number": "4711",
}


async def test_an_absurd_number_is_refused_wherever_one_is_taken(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    asked = 0
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            where = path.removeprefix("/api/v1").format(**OBJECTS)
            if not path.startswith("/api/v1") or operation["operationId"] == "stream_events":
                continue
            for parameter in operation.get("parameters", []):
                kinds = [parameter["schema"], *parameter["schema"].get("anyOf", [])]
                if any(kind.get("type") in ("integer", "number") for kind in kinds):
                    query = {parameter["name"]: str(ABSURD)}
                    if parameter["in"] == "path":
                        at = path.removeprefix("/api/v1").format(**OBJECTS | query)
                        reply = await client.request(method, at)
                    else:
                        reply = await client.request(method, where, params=query)
                    assert reply.status_code == 422, (path, query)
                    asked += 1
            content = operation.get("requestBody", {}).get("content", {})
            reference = content.get("application/json", {}).get("schema", {}).get("$ref", "")
            part = schema["components"]["schemas"].get(reference.rpartition("/")[2], {})
            for name in _numbers(part):
                for value in (ABSURD, -ABSURD):
                    reply = await sent(client, method, where, {"count": 1, name: value})
                    assert reply.status_code in (403, 422), (path, name, reply.text)
                    asked += 1
    assert asked > 20


async def test_too_little_memory_is_said_for_what_can_be_had(client: httpx.AsyncClient) -> None:
    reply = await sent(client, "POST", "/jobs", {"count": 1, "min_memory_bytes": ABSURD})
    assert reply.status_code == 422
    reply = await sent(client, "POST", "/jobs", {"count": 1, "min_memory_bytes": 2**50})
    assert "site paper has 0" in reply.json()["detail"]


async def test_a_project_may_let_so_many_jobs_wait(tmp_path: Path) -> None:
    site = load_site(PAPER)
    rack = Rack(tmp_path, replace(site, scheduling=replace(site.scheduling, max_waiting=3)))
    await rack.up()
    try:
        transport = httpx.ASGITransport(app=app_of(rack.service))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1/api/v1"
        ) as client:
            await client.post("/jobs", json={"count": 6, "name": "all"})
            await rack.state("all", "running")
            for number in range(3):
                reply = await client.post("/jobs", json={"count": 6, "name": f"w{number}"})
                assert reply.status_code == 201
            late = await client.post("/jobs", json={"count": 6, "name": "late"})
            assert (late.status_code, late.json()["code"]) == (409, "conflict")
            assert "queue.max_waiting" in late.json()["hint"]
            other = {"count": 6, "name": "other", "project": "other"}
            assert (await client.post("/jobs", json=other)).status_code == 201
            await client.post("/jobs/w0/cancel")
            assert (await client.post("/jobs", json={"count": 6})).status_code == 201
    finally:
        await rack.down()


async def test_a_projects_waiting_jobs_share_the_memory_for_their_texts(tmp_path: Path) -> None:
    """One wide character makes Python take four bytes for each character of a text."""
    site = load_site(PAPER)
    rack = Rack(tmp_path, replace(site, scheduling=replace(site.scheduling, max_waiting=3)))
    await rack.up()
    try:
        transport = httpx.ASGITransport(app=app_of(rack.service))
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1/api/v1"
        ) as client:
            await client.post("/jobs", json={"count": 6, "name": "all"})
            await rack.state("all", "running")
            texts = [letter * 31_000 for letter in "abcd"]
            for name, mark, status in (
                ("plain", "", 201),
                ("wide", "\U0001f600", 201),
                ("late", "", 409),
            ):
                env = {f"USER_{number}": mark + text for number, text in enumerate(texts)}
                body = {"count": 6, "name": name, "env": env}
                reply = await client.post("/jobs", json=body)
                assert reply.status_code == status, name
            refusal = reply.json()
            assert refusal["code"] == "conflict"
            assert "the 2 waiting jobs of project default" in refusal["detail"]
            assert "cancel some of them" in refusal["hint"]
            await client.post("/jobs/wide/cancel")
            assert (await client.post("/jobs", json=body)).status_code == 201
    finally:
        await rack.down()


def test_what_waits_is_bounded_by_default() -> None:
    assert load_site(PAPER).scheduling.max_waiting == MAX_WAITING == 200


def test_a_jobs_own_texts_fit_what_agents_take() -> None:
    """What is accepted at most is below what the agents' rules allow."""
    assert MAX_JOB_BYTES <= policy.MAX_COMMAND_BYTES + policy.MAX_ENV_BYTES
    own = {f"APP_{n}": "x" * 30_000 for n in range(3)}
    Admission(load_site(PAPER)).check(JobRequest(name="red", count=1, env=own))
    with pytest.raises(ServiceError, match="its command and variables take"):
        Admission(load_site(PAPER)).check(
            JobRequest(name="red", count=1, env=own, command=["x" * 60_000])
        )


@pytest.mark.parametrize("name", ["a", "r-1", "0", "x" * 41, "-a", "a-", "x" * 42, "a_b", "A", ""])
def test_a_job_file_and_the_agents_agree_on_names(name: str) -> None:
    try:
        JobFileModel.model_validate({"name": name})
        taken = True
    except ValidationError:
        taken = False
    assert taken == bool(policy.JOB.fullmatch(name))


def large(endpoints: int, per_server: int = 8) -> CabledSite:
    """Return a site of so many endpoints, with the longest addresses there are."""
    site = load_site(PAPER)
    model = site.endpoints[0]
    made = tuple(
        replace(
            model,
            name=f"gpu{n}",
            server=f"srv{n // per_server}",
            ip=f"110.{100 + n // 62500}.{100 + n // 250 % 150}.{100 + n % 150}",
        )
        for n in range(endpoints)
    )
    return replace(site, endpoints=made)


@pytest.mark.parametrize("count", [1400, 4096, 5000])
def test_a_job_of_thousands_of_ranks_passes_the_agents_rules(count: int) -> None:
    site = large(count)
    request = JobRequest(name="x" * 41, count=count)
    Admission(site).check(request)
    cables = {e.name: e for e in site.endpoints}
    job = JobRecord(
        "x" * 41, spec_of(request), "image:1", 1.0, endpoints=tuple(e.name for e in site.endpoints)
    )
    for spec in rank_specs(site, cables, job)[:: count // 3]:
        policy.check_env(spec.job, spec.env)


def test_a_job_whose_ranks_can_not_be_told_of_each_other_is_refused_at_once() -> None:
    with pytest.raises(ServiceError, match="TF_CONFIG has") as refused:
        Admission(large(7000)).check(JobRequest(name="red", count=7000))
    assert refused.value.code == "invalid"
    with pytest.raises(ServiceError, match="on one server"):
        Admission(large(4096, per_server=512)).check(JobRequest(name="red", count=4096))
