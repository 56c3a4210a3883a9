"""The published schema: made once, in a thread, because that takes some tenths of a second."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from controller.api.openapi import describe_common
from controller.api.problems import MEDIA_TYPE


def route(app: FastAPI, prefix: str) -> APIRoute:
    """Return the route of the schema of ``app``; ``app.openapi()`` returns the schema, too."""
    made: asyncio.Task[bytes] | None = None

    async def get_schema(request: Request) -> Response:
        """Return the OpenAPI schema of the whole API."""
        nonlocal made
        if made is None:
            made = asyncio.create_task(asyncio.to_thread(lambda: json.dumps(schema(app)).encode()))
        return Response(await asyncio.shield(made), media_type="application/json")

    app.openapi = lambda: schema(app)  # type: ignore[method-assign]
    path = f"{prefix}/openapi.json"
    return APIRoute(path, get_schema, name="get_openapi", include_in_schema=False)


def schema(app: FastAPI) -> dict[str, Any]:
    """Return the schema with error responses under the media type they are sent with."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            openapi_version=app.openapi_version,
            routes=app.routes,
        )
        for path in made["paths"].values():
            for operation in path.values():
                for status, response in operation["responses"].items():
                    content = response.get("content", {})
                    if int(status) >= 400 and "application/json" in content:
                        content[MEDIA_TYPE] = content.pop("application/json")
        describe_common(made)
        app.openapi_schema = made
    return app.openapi_schema
