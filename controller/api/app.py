"""The FastAPI application: routers, error documents, OpenAPI."""

from __future__ import annotations

import functools

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from controller.api.common import require_sight
from controller.api.executing import Sessions
from controller.api.following import Followers
from controller.api.gate.access import Access
from controller.api.gate.gate import RequestGate
from controller.api.gate.guard import RequestLimits
from controller.api.gate.idempotency import AnswersInMemory, AnswerStore, KeyedAnswers
from controller.api.gate.origins import Origins
from controller.api.gate.pace import RateLimit
from controller.api.gate.rules import RouteTable
from controller.api.openapi import published_schema
from controller.api.operation import operation_of
from controller.api.problems import install
from controller.api.routes import (
    checkpoints,
    console,
    engine,
    fabric,
    files,
    images,
    jobs,
    live,
    people,
    plans,
    session,
    submissions,
)
from controller.api.routes.hardware import drains, optics, profiles, repairs
from controller.api.routes.insight import advice, comms, measurements
from controller.api.routes.metrics import site as metrics
from controller.api.routes.streams import events, execs
from controller.service.desks import Desks
from controller.stream.counters import Counters

PREFIX = "/api/v1"
PARTS = (
    session,
    files,
    fabric,
    optics,
    jobs,
    submissions,
    comms,
    checkpoints,
    execs,
    images,
    plans,
    repairs,
    drains,
    profiles,
    engine,
    measurements,
    live,
    advice,
    events,
    people,
)


def create_app(
    desks: Desks,
    access: Access | None = None,
    *,
    rate_limit: RateLimit | None = None,
    counters: Counters | None = None,
    answers: AnswerStore | None = None,
    origins: Origins | None = None,
) -> FastAPI:
    """Return the REST API; it must run on the loop of ``desks``.

    ``answers`` keeps the answers to changes with an ``Idempotency-Key``; in memory without one.
    Without ``access`` every caller is an admin (``--insecure-no-auth``). ``origins`` are those of
    the controller's own pages, in addition to loopback.
    """
    app = FastAPI(
        title="lightloom",
        version="1",
        description="Control plane of a GPU cluster on optical circuit switches.",
        openapi_url=None,  # see openapi.py
        # The stock documentation pages load scripts from a CDN, which a site may not reach.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
    )
    app.state.desks = desks
    app.state.access = access or Access()
    app.state.followers = Followers(app.state.access.clock)
    app.state.sessions = Sessions()
    app.state.counters = counters or Counters()
    declared = {route.name: operation_of(route) for _, route in _declared()}
    published = published_schema(app, PREFIX, declared)
    app.router.routes += [*_included(), published]
    install(app)
    table = RouteTable([*_declared(), ("", published)])
    app.add_middleware(
        RequestGate,
        owner=app,
        table=table,
        prefix=PREFIX,
        rate_limit=rate_limit or RateLimit(),
        answers=KeyedAnswers(answers or AnswersInMemory()),
        origins=origins or Origins(),
    )
    app.add_middleware(RequestLimits, table=table)
    console.install(app)
    return app


@functools.cache
def _included() -> tuple[BaseRoute, ...]:
    """Return the routes of all parts, built once a process: models of bodies and answers are slow.

    They are built now: FastAPI would do it within the first request, and hold the loop.
    """
    holder = FastAPI(openapi_url=None, generate_unique_id_function=_operation_id)
    for prefix, router in _routers():
        holder.include_router(router, prefix=prefix)
    for _, declared in _declared():
        require_sight(declared)
    for route in holder.router.routes:
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})
    return tuple(holder.router.routes)


def _declared() -> list[tuple[str, APIRoute]]:
    """Return the prefix and the route of every operation."""
    return [
        (prefix, route)
        for prefix, router in _routers()
        for route in router.routes
        if isinstance(route, APIRoute)
    ]


def _routers() -> list[tuple[str, APIRouter]]:
    return [*((PREFIX, part.router) for part in PARTS), ("", metrics.router)]


def _operation_id(route: APIRoute) -> str:
    return route.name
