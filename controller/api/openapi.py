"""Adds to the schema what all operations share: tokens, headers, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from controller.api.gate.idempotency import KEY_PATTERN, MAX_KEY
from controller.api.operation import Operation, operation
from controller.api.problems import MEDIA_TYPE

_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_ALWAYS = {
    "401": "No valid token",
    "403": "This person may not do this",
    "429": "Too many requests: see `Retry-After`",
}
_CHANGES = {
    "409": "The state of the object does not allow it",
    "412": "The fabric is not at the epoch of `If-Match`",
    "400": "The body cannot be read",
    "408": "The body did not arrive in time",
    "413": "The body is too large",
}
_HEADERS: list[dict[str, Any]] = [
    {
        "name": "If-Match",
        "in": "header",
        "required": False,
        "description": 'Only if the fabric is at this epoch: `"42"`.',
        "schema": {"type": "string", "pattern": '^"?[0-9]{1,18}"?$'},
    },
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "A repeated request with the same key is carried out once.",
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_KEY,
            "pattern": f"^{KEY_PATTERN}$",
        },
    },
]


def describe_common(schema: dict[str, Any], declared: Mapping[str, Operation]) -> None:
    """Add to every operation what the gate requires and answers."""
    components = schema.setdefault("components", {})
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": "lightloom_session"},
    }
    for item in schema["paths"].values():
        for method, described in item.items():
            verb = declared[described["operationId"]].verb
            answers = dict(_CHANGES) if method != "get" else {}
            if verb is not None:
                answers |= _ALWAYS
                described["security"] = [{"token": []}, {"session": []}]
                described["x-verb"] = verb
            else:
                answers["429"] = _ALWAYS["429"]
                if method == "post":
                    answers["403"] = _ALWAYS["403"]
            for status, text in answers.items():
                answer = {"description": text, "content": _PROBLEM}
                described["responses"].setdefault(status, answer)
            if method != "get" and verb is not None:
                described.setdefault("parameters", []).extend(_HEADERS)


def close_maps(node: object) -> None:
    """Exclude other keys from maps whose keys have a pattern: pydantic does not."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node.setdefault("additionalProperties", False)
        for child in node.values():
            close_maps(child)
    elif isinstance(node, list):
        for child in node:
            close_maps(child)


def published_schema(app: FastAPI, prefix: str, declared: Mapping[str, Operation]) -> APIRoute:
    """Return the route of the schema of ``app``; ``app.openapi()`` also returns the schema."""
    made: asyncio.Task[bytes] | None = None

    def text() -> bytes:
        return json.dumps(schema(app, declared)).encode()

    @operation(None)
    async def get_schema(request: Request) -> Response:
        """Return the OpenAPI schema of the whole API."""
        nonlocal made
        if made is None:
            made = asyncio.create_task(
                asyncio.to_thread(lambda: json.dumps(schema(app, declared)).encode())
            )
        return Response(await asyncio.shield(made), media_type="application/json")

    app.openapi = lambda: schema(app, declared)  # type: ignore[method-assign]
    path = f"{prefix}/openapi.json"
    return APIRoute(path, get_schema, name="get_openapi", include_in_schema=False)


def schema(app: FastAPI, declared: Mapping[str, Operation]) -> dict[str, Any]:
    """Return the schema; error responses have the media type of problem documents."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            openapi_version=app.openapi_version,
            routes=app.routes,
        )
        for path in made["paths"].values():
            for described in path.values():
                for status, response in described["responses"].items():
                    content = response.get("content", {})
                    if int(status) >= 400 and "application/json" in content:
                        content[MEDIA_TYPE] = content.pop("application/json")
        describe_common(made, declared)
        close_maps(made["components"])
        app.openapi_schema = made
    return app.openapi_schema
