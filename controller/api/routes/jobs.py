"""Routes for jobs: submit, show, cancel, pause, resume, logs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Response, status
from fastapi.responses import StreamingResponse

from controller.api.common import CHANGE_S, READ_S, CallerOf, DesksOf, Entrance, Name, SightOf
from controller.api.deadlines import change, within
from controller.api.following import Following
from controller.api.operation import KIB, operation
from controller.api.paging import Cursor, Limit, cut, light
from controller.api.problems import from_service, responses
from controller.api.scope.naming import Naming
from controller.base.errors import ServiceError
from controller.people.authz import Authorisation, Principal, authorise
from controller.schema.base import Page
from controller.schema.jobs import JobBody, JobView
from controller.schema.live import LogLineView
from controller.schema.submit.request import JobRequest
from controller.service.desks import Desks

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=responses("unavailable"))
LINES = "application/x-ndjson"


@router.get("", responses=responses("conflict"))
@operation("jobs:read")
async def list_jobs(
    desks: DesksOf, sight: SightOf, limit: Limit = None, cursor: Cursor = None
) -> Page[JobView]:
    """List all jobs."""
    names = list(sight.owners())
    part, epoch = cut(names, limit, cursor), desks.epoch
    found = sight.show_found(desks.jobs.jobs(names[part.items]))
    items = await within(READ_S, "jobs", found)
    shown, following = light(part, items, lambda job: job.name, _weight)
    return Page(items=shown, epoch=epoch, next=following)


def _weight(job: JobView) -> int:
    return sum(map(len, job.command)) + sum(len(n) + len(v) for n, v in job.env.items())


@router.post("", status_code=status.HTTP_201_CREATED, responses=responses("forbidden", "conflict"))
@operation("jobs:submit", body=256 * KIB)
async def submit_job(
    desks: DesksOf,
    sight: SightOf,
    caller: CallerOf,
    body: JobBody,
    response: Response,
) -> JobView:
    """Queue a job: 403 if its priority is above the site's limit for users.

    The job of a user who belongs to one project only need not name it.
    """
    request = with_project(caller.principal, body)
    check_priority(desks, caller.principal, request)
    name = caller.principal.name
    naming = Naming(sight, desks.jobs)
    work = naming.submit([request], lambda named: desks.jobs.submit(named[0], name))
    view = sight.show(await change(CHANGE_S, f"job/{request.name or ''}", work))
    response.headers["Location"] = f"/api/v1/jobs/{view.name}"
    return view


def with_project(principal: Principal, body: JobBody) -> JobRequest:
    """Return the job; one that names no project is in the only one of a caller without default."""
    request: JobRequest = body.value()
    if "project" in body.model_fields_set or principal.sees(request.project):
        return request
    own = sorted(principal.projects)
    if len(own) == 1:
        return replace(request, project=own[0])
    raise ServiceError(
        "invalid",
        "the job names no project",
        object=f"job/{request.name or ''}",
        hint=f"name one of yours: {', '.join(own)}",
    )


def check_priority(desks: Desks, principal: Principal, request: JobRequest) -> None:
    """Refuse (ServiceError ``forbidden``) a priority that the principal may not give."""
    if authorise(principal, "jobs:outrank") is Authorisation.ALLOWED:
        return
    highest = desks.jobs.highest_priority(request.project)
    if request.priority > highest and principal.sees(request.project):
        raise ServiceError(
            "forbidden",
            f"users may give jobs of project {request.project} at most priority {highest},"
            f" not {request.priority}",
            object=f"job/{request.name or ''}",
            hint="ask an operator to submit it; max_priority in the site file is the limit",
        )


@router.get("/{name}", responses=responses("not_found"))
@operation("jobs:read")
async def get_job(desks: DesksOf, sight: SightOf, name: Name) -> JobView:
    """Show one job."""
    sight.require_job(name)
    return sight.require(desks.jobs.job(name), "job", name)


@router.post("/{name}/cancel", responses=responses("forbidden", "not_found", "conflict"))
@operation("jobs:change")
async def cancel_job(desks: DesksOf, sight: SightOf, name: Name) -> JobView:
    """Stop a job, or take it out of the queue."""
    work = sight.of_job(name, desks.jobs.cancel)
    return sight.require(await change(CHANGE_S, f"job/{name}", work), "job", name)


@router.post("/{name}/pause", responses=responses("forbidden", "not_found", "conflict"))
@operation("jobs:change")
async def pause_job(desks: DesksOf, sight: SightOf, name: Name) -> JobView:
    """Freeze all containers of a job."""
    work = sight.of_job(name, desks.jobs.pause)
    return sight.require(await change(CHANGE_S, f"job/{name}", work), "job", name)


@router.post("/{name}/resume", responses=responses("forbidden", "not_found", "conflict"))
@operation("jobs:change")
async def resume_job(desks: DesksOf, sight: SightOf, name: Name) -> JobView:
    """Thaw a paused job."""
    work = sight.of_job(name, desks.jobs.resume)
    return sight.require(await change(CHANGE_S, f"job/{name}", work), "job", name)


@router.get(
    "/{name}/logs",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One JSON document per line: log lines, at the end perhaps a problem.",
            "content": {LINES: {"schema": {"type": "string"}}},
        },
        **responses("not_found"),
    },
)
@operation("logs:read")
async def stream_job_logs(
    desks: DesksOf,
    sight: SightOf,
    enter: Entrance,
    name: Name,
    *,
    rank: Annotated[int | None, Query(ge=0, lt=2**31, description="one rank; default all")] = None,
    tail: Annotated[int | None, Query(ge=0, le=100_000, description="last lines per rank")] = None,
    follow: Annotated[bool, Query(description="follow until the job ends")] = False,
    since: Annotated[
        float | None,
        Query(ge=0, le=2**33, description="only lines at or after this time, seconds since 1970"),
    ] = None,
    search: Annotated[
        str, Query(max_length=1000, description="only lines that contain this text")
    ] = "",
) -> Following:
    """Stream a job's output as JSON lines.

    Output that cannot be read, because a server does not answer or keeps it no more, is a line of
    the stream ``missing`` that says so.
    """
    sight.require_job(name)
    job = desks.jobs.job(name)
    if rank is not None and rank >= job.count:
        raise ServiceError(
            "not_found",
            f"job {name} has ranks 0 to {job.count - 1}",
            object=f"job/{name}/rank/{rank}",
            hint="omit the rank to read all ranks",
        )
    lines = desks.jobs.logs(name, rank=rank, tail=tail, follow=follow, since=since, search=search)
    return Following(_json_lines(lines), media_type=LINES, place=enter())


async def _json_lines(lines: AsyncIterator[LogLineView]) -> AsyncGenerator[bytes]:
    """Encode log lines; an error after the first byte can only go into the stream itself."""
    try:
        async for line in lines:
            yield line.model_dump_json().encode() + b"\n"
    except ServiceError as error:
        yield bytes(from_service(error).body) + b"\n"
