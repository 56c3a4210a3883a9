"""Hostile requests for plans are refused and leave no trace."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from controller.schema.plans import PlanRequest
from tests.parts.api.apps import app_of
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack

LONE = "\ud800"
"""Half a surrogate pair: a Python string that cannot be encoded in a document."""


@pytest_asyncio.fixture
async def client(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    """The API over the rack's service, in process."""
    await scattered(rack)
    base = "http://127.0.0.1:8470/api/v1"
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url=base) as client:
        yield client


def sent(document: object) -> dict[str, Any]:
    return {"content": json.dumps(document), "headers": {"Content-Type": "application/json"}}


@pytest.mark.parametrize(
    "request_",
    [
        {"job": LONE},
        {"job": "x" * 10_000},
        {"max_moves": 10**400},
        {"max_jobs_paused": 10**400},
        {"time_limit_s": 1e308},
        {"time_limit_s": float("nan")},
        {"objective": LONE},
    ],
)
async def test_the_fields_of_a_plan_request_are_bounded(
    client: httpx.AsyncClient, request_: dict[str, Any]
) -> None:
    reply = await client.post("/plans", **sent(request_))
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert len(reply.content) < 2000


BAD: list[dict[str, Any]] = [
    {"id": LONE},
    {"id": "x" * 100_000},
    {"site": LONE},
    {"moves": [{"endpoint": LONE, "from": "as0", "to": "as1"}]},
    {"moves": [{"endpoint": "gpu0", "from": "as0", "to": LONE}]},
    {"homes_after": {LONE: "as0"}},
    {"homes_after": {"gpu0": LONE}},
    {"makes_room_for": LONE},
    {"circuits": {"make": [{"switch": "ocs0", "a": LONE, "b": "b", "endpoint": "gpu0"}]}},
    {
        "basis": [
            {
                **{"job": LONE, "submitted_at": 0, "state": "running", "policy": "pause"},
                **{"endpoints": [], "pauses": 0},
            }
        ]
    },
]


@pytest.mark.parametrize("edit", BAD, ids=[next(iter(b)) + str(i) for i, b in enumerate(BAD)])
async def test_a_plan_that_cannot_be_encoded_is_refused(
    rack: Rack, client: httpx.AsyncClient, edit: dict[str, Any]
) -> None:
    """Stored, such an id would break every stream, the list of transactions and the store."""
    made = await rack.desks.plans.make_plan(PlanRequest())
    plan = json.loads(made.model_dump_json(by_alias=True))
    reply = await client.post("/transactions", **sent({"plan": {**plan, **edit}}))
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid")
    assert (await client.get("/transactions")).status_code == 200
    assert (await client.get("/health")).json()["status"] == "ok"
    assert len(rack.switch.applied) == 1, "the first homes only"


async def test_an_aggregator_that_cannot_be_encoded_is_refused(
    client: httpx.AsyncClient,
) -> None:
    reply = await client.post("/endpoints/gpu0/attachment", **sent({"aggregator": LONE}))
    assert reply.status_code == 422
