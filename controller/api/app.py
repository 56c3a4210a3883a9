"""The FastAPI application: routers, error documents, OpenAPI."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from controller.api import (
    allocation,
    fabric,
    jobs,
    live,
    metrics,
    optics,
    people,
    plans,
    repairs,
    session,
    stream,
    web,
)
from controller.api.access import Access
from controller.api.following import Followers
from controller.api.gate import Gate
from controller.api.guard import Guard
from controller.api.idempotency import Book, KeyedAnswers, Volatile
from controller.api.openapi import describe_common
from controller.api.operations import Operations
from controller.api.pace import Pace
from controller.api.problems import MEDIA_TYPE, install
from controller.api.rules import RouteTable
from controller.tally import Tally

PREFIX = "/api/v1"
PARTS = (session, allocation, fabric, optics, jobs, plans, repairs, live, stream, people)


def create_app(
    service: Operations,
    access: Access | None = None,
    *,
    pace: Pace | None = None,
    tally: Tally | None = None,
    book: Book | None = None,
) -> FastAPI:
    """Return the REST API over ``service``; it must run on the loop that owns the service.

    ``book`` keeps the answers to changes with an ``Idempotency-Key``; in memory without one.
    Without ``access`` everybody is an admin: what ``--insecure-no-auth`` asks for.
    """
    app = FastAPI(
        title="lightloom",
        version="1",
        description="Control plane of a GPU cluster on optical circuit switches.",
        openapi_url=f"{PREFIX}/openapi.json",
        # The stock documentation pages load scripts from a CDN; sites may have no way out.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    app.state.access = access or Access()
    app.state.followers = Followers(app.state.access.clock)
    app.state.tally = tally or Tally()
    routes: list[tuple[str, APIRoute]] = []
    for part in (*PARTS, metrics):
        prefix = "" if part is metrics else PREFIX
        app.include_router(part.router, prefix=prefix)
        routes += [(prefix, route) for route in part.router.routes if isinstance(route, APIRoute)]
    install(app)
    app.add_middleware(
        Gate,
        owner=app,
        table=RouteTable(routes),
        prefix=PREFIX,
        pace=pace or Pace(),
        answers=KeyedAnswers(book or Volatile()),
    )
    app.add_middleware(Guard)
    web.install(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the schema with error responses under the media type they are sent with."""
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            openapi_version=app.openapi_version,
            routes=app.routes,
        )
        for path in schema["paths"].values():
            for operation in path.values():
                for status, response in operation["responses"].items():
                    content = response.get("content", {})
                    if int(status) >= 400 and "application/json" in content:
                        content[MEDIA_TYPE] = content.pop("application/json")
        describe_common(schema)
        app.openapi_schema = schema
    return app.openapi_schema
