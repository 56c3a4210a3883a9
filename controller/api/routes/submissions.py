"""The route for jobs that are submitted together."""

from __future__ import annotations

from fastapi import APIRouter, status

from controller.api.common import CHANGE_S, CallerOf, DesksOf, SightOf
from controller.api.deadlines import change
from controller.api.operation import MIB, operation
from controller.api.problems import responses
from controller.api.routes.jobs import check_priority, with_project
from controller.api.scope.naming import Naming
from controller.base.slices import in_slices
from controller.schema.jobs import JobBody, JobsRequest, JobsSubmittedView
from controller.schema.submit.request import JobRequest

router = APIRouter(prefix="/submissions", tags=["jobs"], responses=responses("unavailable"))


@router.post("", status_code=status.HTTP_201_CREATED, responses=responses("forbidden", "conflict"))
@operation("jobs:submit", body=4 * MIB)
async def submit_jobs(
    desks: DesksOf, sight: SightOf, caller: CallerOf, request: JobsRequest
) -> JobsSubmittedView:
    """Queue up to 1,000 jobs together: all of them, in one durable write, or none.

    The refusal names the first job that cannot be queued.
    """

    def checked(body: JobBody) -> JobRequest:
        job = with_project(caller.principal, body)
        check_priority(desks, caller.principal, job)
        return job

    jobs = await in_slices(request.jobs, checked)
    name = caller.principal.name
    naming = Naming(sight, desks.jobs)
    work = naming.submit(jobs, lambda named: desks.jobs.submit_all(named, name))
    names = await change(CHANGE_S, f"jobs/{len(jobs)}", work)
    return JobsSubmittedView(names=names, epoch=desks.epoch)
