"""The FastAPI application: routers, error documents, OpenAPI."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

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
from controller.api.operations import Commands, Queries
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
from controller.api.routes.hardware import drains, optics, repairs
from controller.api.routes.insight import advice, comms, measurements
from controller.api.routes.metrics import site as metrics
from controller.api.routes.streams import events, execs
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
    engine,
    measurements,
    live,
    advice,
    events,
    people,
)


def create_app(
    queries: Queries,
    commands: Commands,
    access: Access | None = None,
    *,
    rate_limit: RateLimit | None = None,
    counters: Counters | None = None,
    answers: AnswerStore | None = None,
    origins: Origins | None = None,
) -> FastAPI:
    """Return the REST API; it must run on the loop of ``queries`` and ``commands``.

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
    app.state.queries = queries
    app.state.commands = commands
    app.state.access = access or Access()
    app.state.followers = Followers(app.state.access.clock)
    app.state.sessions = Sessions()
    app.state.counters = counters or Counters()
    routes: list[tuple[str, APIRoute]] = []
    for part in (*PARTS, metrics):
        prefix = "" if part is metrics else PREFIX
        app.include_router(part.router, prefix=prefix)
        routes += [(prefix, route) for route in part.router.routes if isinstance(route, APIRoute)]
    published = published_schema(app, PREFIX)
    app.router.routes.append(published)
    routes.append(("", published))
    _build(app)
    install(app)
    table = RouteTable(routes)
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


def _build(app: FastAPI) -> None:
    """Build all routes now: FastAPI would do it within the first request, and hold the loop."""
    for route in app.router.routes:
        route.matches({"type": "http", "method": "GET", "path": "/", "headers": []})


def _operation_id(route: APIRoute) -> str:
    return route.name
