"""The published schema: complete enough to build clients from."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.parts.api.apps import app_of

ROUTES = {
    ("get", "/api/v1/health"),
    ("get", "/api/v1/site"),
    ("get", "/api/v1/jobs"),
    ("post", "/api/v1/jobs"),
    ("get", "/api/v1/jobs/{name}"),
    ("post", "/api/v1/jobs/{name}/cancel"),
    ("post", "/api/v1/jobs/{name}/pause"),
    ("post", "/api/v1/jobs/{name}/resume"),
    ("post", "/api/v1/submissions"),
    ("get", "/api/v1/jobs/{name}/comms"),
    ("get", "/api/v1/jobs/{name}/checkpoints"),
    ("post", "/api/v1/jobs/{name}/checkpoints/verify"),
    ("delete", "/api/v1/jobs/{name}/checkpoints/{step}"),
    ("get", "/api/v1/jobs/{name}/checkpoints/advice"),
    ("get", "/api/v1/jobs/{name}/recoveries"),
    ("get", "/api/v1/recoveries"),
    ("get", "/api/v1/drains"),
    ("get", "/api/v1/aggregators/{name}/profile"),
    ("post", "/api/v1/aggregators/{name}/probe"),
    ("get", "/api/v1/engine"),
    ("get", "/api/v1/engine/check"),
    ("post", "/api/v1/engine/allocations/{number}"),
    ("post", "/api/v1/nodes/{name}/drain"),
    ("delete", "/api/v1/nodes/{name}/drain"),
    ("post", "/api/v1/aggregators/{name}/drain"),
    ("delete", "/api/v1/aggregators/{name}/drain"),
    ("post", "/api/v1/switches/{name}/drain"),
    ("delete", "/api/v1/switches/{name}/drain"),
    ("get", "/api/v1/jobs/{name}/logs"),
    ("post", "/api/v1/jobs/{name}/exec"),
    ("get", "/api/v1/jobs/{name}/exec/{ident}"),
    ("post", "/api/v1/jobs/{name}/exec/{ident}/input"),
    ("get", "/api/v1/images"),
    ("post", "/api/v1/images/preparations"),
    ("get", "/api/v1/images/preparations/{ident}"),
    ("get", "/api/v1/endpoints"),
    ("get", "/api/v1/aggregators"),
    ("get", "/api/v1/switches"),
    ("get", "/api/v1/switches/{name}/ports"),
    ("get", "/api/v1/circuits"),
    ("get", "/api/v1/containers"),
    ("get", "/api/v1/events"),
    ("get", "/api/v1/nodes"),
    ("get", "/api/v1/volumes"),
    ("get", "/api/v1/predictions"),
    ("get", "/api/v1/advice"),
    ("post", "/api/v1/jobs/{name}/whatif"),
    ("get", "/api/v1/secrets"),
    ("delete", "/api/v1/volumes/{name}/data/{owner}"),
    ("get", "/api/v1/top"),
    ("get", "/api/v1/usage"),
    ("get", "/api/v1/measurements"),
    ("post", "/api/v1/measurements"),
    ("post", "/api/v1/imports"),
    ("get", "/api/v1/measurements/{ident}"),
    ("delete", "/api/v1/measurements/{ident}"),
    ("post", "/api/v1/measurements/{ident}/cancel"),
    ("get", "/api/v1/series"),
    ("post", "/api/v1/plans"),
    ("post", "/api/v1/transactions"),
    ("get", "/api/v1/transactions/{ident}"),
    ("post", "/api/v1/transactions/{ident}/abort"),
    ("get", "/api/v1/rollouts"),
    ("post", "/api/v1/rollouts"),
    ("get", "/api/v1/rollouts/{ident}"),
    ("post", "/api/v1/rollouts/{ident}/abort"),
    ("post", "/api/v1/endpoints/{name}/attachment"),
    ("get", "/api/v1/quarantine"),
    ("post", "/api/v1/quarantine/{name}/release"),
    ("post", "/api/v1/switches/{name}/repair"),
    ("post", "/api/v1/store/accept"),
    ("get", "/api/v1/power"),
    ("get", "/api/v1/switches/{name}/ports/{port}/power"),
    ("get", "/api/v1/endpoints/{name}/trace"),
    ("get", "/api/v1/transactions"),
    ("get", "/metrics"),
    ("get", "/api/v1/allocation"),
    ("put", "/api/v1/allocation"),
    ("get", "/api/v1/events/export"),
    ("get", "/api/v1/alive"),
    ("get", "/api/v1/whoami"),
    ("post", "/api/v1/session"),
    ("delete", "/api/v1/session"),
    ("get", "/api/v1/stream"),
    ("get", "/api/v1/projects"),
    ("put", "/api/v1/projects/{name}"),
    ("get", "/api/v1/tokens"),
    ("post", "/api/v1/tokens"),
    ("delete", "/api/v1/tokens/{ident}"),
    ("get", "/api/v1/audit"),
    ("get", "/api/v1/audit/verification"),
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return app_of().openapi()


def operations(schema: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (method, path): operation
        for path, item in schema["paths"].items()
        for method, operation in item.items()
    }


def test_it_is_openapi_3_1_with_all_routes(schema: dict[str, Any]) -> None:
    assert schema["openapi"].startswith("3.1")
    assert set(operations(schema)) == ROUTES


def test_every_operation_has_its_own_id_and_a_summary(schema: dict[str, Any]) -> None:
    found = operations(schema).values()
    ids = [operation["operationId"] for operation in found]
    assert len(set(ids)) == len(ROUTES)
    assert all(ident.isidentifier() for ident in ids)
    assert all(operation["description"] for operation in found)


def test_every_operation_documents_its_errors(schema: dict[str, Any]) -> None:
    for (method, path), operation in operations(schema).items():
        answers = operation["responses"]
        assert {"422", "500", "503", "504"} <= set(answers), path
        if "{" in path:
            assert "404" in answers, path
        if method == "post" and path != "/api/v1/plans":
            assert "409" in answers, path
        for status, answer in answers.items():
            if int(status) >= 400:
                assert answer["content"] == {
                    "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                }, (path, status)


def test_references_resolve_and_the_stock_error_is_gone(schema: dict[str, Any]) -> None:
    known = schema["components"]["schemas"]
    assert "HTTPValidationError" not in known
    pending: list[Any] = [schema["paths"], known]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            reference = node.get("$ref")
            if reference is not None:
                assert reference.rpartition("/")[2] in known
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def test_keys_that_do_not_match_are_not_allowed(schema: dict[str, Any]) -> None:
    homes = schema["components"]["schemas"]["PlanRequest"]["properties"]["homes"]["anyOf"][0]
    assert homes["patternProperties"]
    assert homes["additionalProperties"] is False


async def test_the_schema_is_served_and_no_page_needs_a_cdn(schema: dict[str, Any]) -> None:
    app = app_of()
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as client:
        assert (await client.get("/api/v1/openapi.json")).json() == schema
    assert app.docs_url is None
    assert app.redoc_url is None
    assert schema["info"]["title"] == "lightloom"
