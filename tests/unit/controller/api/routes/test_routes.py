"""Every route over a rack in memory: what it answers and how it refuses."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, EngineFault, LogLine
from tests.parts.api.apps import app_of
from tests.parts.api.desks import answer, kept
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack

PROBLEM = "application/problem+json"


@pytest.fixture
async def client(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    await scattered(rack)
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        yield client


def assert_problem(reply: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == PROBLEM
    document = reply.json()
    assert isinstance(document, dict)
    assert document["status"] == status
    assert document["code"] == code
    assert document["type"] == f"urn:lightloom:problem:{code}"
    assert {"title", "detail", "object", "hint"} <= set(document)
    assert "Traceback" not in reply.text
    return document


@pytest.mark.parametrize(
    "kind",
    [
        "jobs",
        "endpoints",
        "aggregators",
        "switches",
        "circuits",
        "containers",
        "nodes",
        "events",
    ],
)
async def test_lists_carry_items_and_epoch(
    client: httpx.AsyncClient, rack: Rack, kind: str
) -> None:
    reply = await client.get(f"/{kind}")
    assert reply.status_code == 200
    assert reply.json()["epoch"] == rack.see.epoch
    assert reply.json()["items"]


@pytest.mark.parametrize("path", ["/health", "/site", "/top", "/series", "/jobs/red"])
async def test_single_documents(client: httpx.AsyncClient, path: str) -> None:
    reply = await client.get(path)
    assert reply.status_code == 200
    assert isinstance(reply.json(), dict)


async def test_events_are_paged_by_id(client: httpx.AsyncClient) -> None:
    reply = await client.get("/events", params={"since": 3, "limit": 2})
    assert [event["id"] for event in reply.json()["items"]] == [4, 5]


async def test_submit_creates_a_job(client: httpx.AsyncClient, rack: Rack) -> None:
    body = {"count": 2, "name": "late", "env": {"APP_SEED": "7"}, "endpoints": ["gpu4", "gpu5"]}
    reply = await client.post("/jobs", json=body)
    assert reply.status_code == 201
    assert reply.headers["location"] == "/api/v1/jobs/late"
    assert reply.json()["state"] == "pending"
    assert rack.see.jobs["late"].request.endpoints == ("gpu4", "gpu5")


@pytest.mark.parametrize(
    ("verbs", "state"),
    [(["cancel"], "cancelled"), (["pause"], "paused"), (["pause", "resume"], "running")],
)
async def test_job_verbs(
    client: httpx.AsyncClient, rack: Rack, verbs: list[str], state: str
) -> None:
    for verb in verbs:
        assert (await client.post(f"/jobs/red/{verb}")).status_code == 200
    await rack.state("red", state)


async def test_plan_and_apply(client: httpx.AsyncClient, rack: Rack) -> None:
    plan = (await client.post("/plans", json={"job": "red", "max_moves": 4})).json()
    assert [(m["endpoint"], m["from"], m["to"]) for m in plan["moves"]] == [
        ("gpu2", "as1", "as0"),
        ("gpu3", "as1", "as0"),
        ("gpu4", "as0", "as1"),
    ]
    reply = await client.post("/transactions", json={"plan": plan})
    assert reply.status_code == 202
    assert reply.headers["location"] == "/api/v1/transactions/t2"
    assert reply.json()["state"] == "running"
    assert (await client.get("/transactions/t2")).json()["id"] == "t2"


async def test_apply_can_wait_for_the_end(client: httpx.AsyncClient) -> None:
    plan = (await client.post("/plans", json={})).json()
    reply = await client.post("/transactions", json={"plan": plan}, params={"wait_s": 5})
    assert reply.json()["state"] == "committed"


async def test_stale_plan_is_a_conflict(client: httpx.AsyncClient) -> None:
    plan = (await client.post("/plans", json={})).json()
    await client.post("/jobs/red/cancel")
    problem = assert_problem(
        await client.post("/transactions", json={"plan": plan}), 409, "conflict"
    )
    assert "epoch 3, now 4" in problem["detail"]


async def test_logs_are_json_lines(client: httpx.AsyncClient, rack: Rack) -> None:
    asked = kept(rack.engine, "logs")
    reply = await client.get("/jobs/red/logs", params={"rank": 1, "tail": 2, "follow": True})
    assert reply.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert [(line["rank"], line["text"]) for line in lines] == [
        (1, "one"),
        (1, "two"),
    ]
    assert asked[0].args[:4] == ("red", 1, 2, True)


async def test_an_error_in_mid_stream_ends_it_with_a_problem(
    client: httpx.AsyncClient, rack: Rack
) -> None:
    async def broken(*_: object, **__: object) -> AsyncIterator[LogLine]:
        yield LogLine(0, 1.0, "stdout", "one")
        raise EngineError([EngineFault("unavailable", "server/srv0", "no answer")])

    answer(rack.engine, logs=broken)
    reply = await client.get("/jobs/red/logs")
    last = json.loads(reply.text.splitlines()[-1])
    assert (last["code"], last["status"], last["object"]) == ("unavailable", 503, "job/red")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("invalid", 422),
        ("forbidden", 403),
        ("not_found", 404),
        ("conflict", 409),
        ("unavailable", 503),
        ("failed", 500),
        ("timeout", 504),
    ],
)
async def test_service_errors_become_problems(
    client: httpx.AsyncClient, rack: Rack, code: Any, status: int
) -> None:
    refusal = ServiceError(code, "because", object="job/x", hint="do this")
    answer(rack.desks.jobs, jobs=refusal)
    problem = assert_problem(await client.get("/jobs"), status, code)
    assert (problem["detail"], problem["object"], problem["hint"]) == (
        "because",
        "job/x",
        "do this",
    )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/jobs/green"),
        ("GET", "/jobs/green/logs"),
        ("POST", "/jobs/green/cancel"),
        ("GET", "/transactions/t99"),
        ("GET", "/jobs/red/logs?rank=4"),
        ("GET", "/nothing/here"),
        ("GET", "/../../etc/passwd"),
    ],
)
async def test_what_is_not_there(client: httpx.AsyncClient, method: str, path: str) -> None:
    assert_problem(await client.request(method, path), 404, "not_found")


async def test_wrong_method(client: httpx.AsyncClient) -> None:
    problem = assert_problem(await client.delete("/jobs/red"), 405, "invalid")
    assert "DELETE" in problem["detail"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/jobs", {}, "count"),
        ("/jobs", {"count": 0}, "count"),
        ("/jobs", {"count": "many"}, "count"),
        ("/jobs", {"count": 1, "cuont": 1}, "cuont"),
        ("/jobs", {"count": 1, "name": "Red\u001b[2J"}, "name"),
        ("/jobs", {"count": 1, "policy": "kill"}, "policy"),
        ("/jobs", {"count": 1, "env": {"A": 1}}, "env.A"),
        ("/plans", {"max_moves": -1}, "max_moves"),
        ("/plans", {"objective": "luck"}, "objective"),
        ("/transactions", {}, "plan"),
        ("/transactions", {"plan": {"id": "p1"}}, "plan.epoch"),
    ],
)
async def test_bad_bodies_name_the_field(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    problem = assert_problem(await client.post(path, json=body), 422, "invalid")
    assert field in [error["field"] for error in problem["errors"]]
    assert "\u001b" not in problem["detail"]


@pytest.mark.parametrize(
    "query",
    [
        "/events?limit=0",
        "/events?limit=99999",
        "/events?since=-1",
        "/events?since=999999999999999999999999",
        "/series?since_s=0",
        "/series?since_s=nan",
        "/jobs/red/logs?tail=-1",
        "/jobs/RED",
        "/jobs/%00",
    ],
)
async def test_bad_queries(client: httpx.AsyncClient, query: str) -> None:
    assert_problem(await client.get(query), 422, "invalid")


async def test_a_body_that_is_not_json(client: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    reply = await client.post("/jobs", content=b"{", headers=headers)
    assert_problem(reply, 422, "invalid")


async def test_a_crash_tells_nothing_of_the_inside(client: httpx.AsyncClient, rack: Rack) -> None:
    answer(rack.desks.jobs, jobs=RuntimeError("a secret inside"))
    problem = assert_problem(await client.get("/jobs"), 500, "failed")
    assert "secret" not in json.dumps(problem)
