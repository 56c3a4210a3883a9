"""Names of the jobs that members of some projects submit.

A job's name starts with its project's, and with no longer one's: a conflict must not reveal the
name of another project's job, nor a new job replace one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

from controller.api.scope.sight import Sight
from controller.base.errors import ServiceError
from controller.people.authz import Owned
from controller.schema.submit.request import JobRequest
from controller.service.jobs import JobDesk

Result = TypeVar("Result")


class Naming:
    """Checks and gives the names of one caller's jobs."""

    def __init__(self, sight: Sight, jobs: JobDesk) -> None:
        self._sight = sight
        self._jobs = jobs

    async def submit(
        self,
        requests: Sequence[JobRequest],
        submit: Callable[[list[JobRequest]], Awaitable[Result]],
    ) -> Result:
        """Submit jobs; those without a name get the first free ones of their project.

        ServiceError ``not_found``, ``invalid`` or ``conflict`` for one that the caller may not
        submit by that name. The names of operators' and admins' jobs are free.
        """
        if self._sight.whole:
            return await submit(list(requests))
        owners = self._jobs.owners()
        projects = {*self._jobs.projects(), *(one.project for one in owners.values())}
        for request in requests:
            self._check_submission(request, projects, owners)
        refused: set[str] = set()
        while True:
            chosen, named = self._with_names(requests, refused)
            try:
                return await submit(named)
            except ServiceError as error:
                # A concurrent request, or containers of an unknown job, may have the name.
                name = error.object.removeprefix("job/")
                if error.code != "conflict" or name not in chosen:
                    raise
                refused.add(name)

    def _check_submission(
        self, request: JobRequest, projects: Collection[str], owners: Mapping[str, Owned]
    ) -> None:
        project, name = request.project, request.name
        if not self._sight.sees(project):
            raise ServiceError(
                "not_found",
                f"project {project} does not exist",
                object=f"project/{project}",
                hint=f"yours: {', '.join(sorted(self._sight.projects() or ()))}",
            )
        if name is None:
            return
        if not name.startswith(f"{project}-"):
            raise ServiceError(
                "invalid",
                f"names of the jobs of project {project} start with {project}-",
                object=f"job/{name}",
                hint=f"call it {project}-{name}"[:200],
            )
        owner = next((head for head in _heads(name) if head in projects), project)
        if len(owner) > len(project):
            raise ServiceError(
                "invalid",
                f"names that start with {owner}- belong to project {owner}",
                object=f"job/{name}",
                hint="choose another name",
            )
        if name in owners and owners[name].project != project:
            raise ServiceError(
                "conflict",
                f"{name} is the name of a job of another project",
                object=f"job/{name}",
                hint="choose another name",
            )

    def _with_names(
        self, requests: Sequence[JobRequest], refused: Collection[str]
    ) -> tuple[set[str], list[JobRequest]]:
        """Return the names given to jobs without one, and all jobs."""
        if all(request.name is not None for request in requests):
            return set(), list(requests)
        asked = {request.name for request in requests if request.name is not None}
        taken = self._jobs.owners().keys() | asked | set(refused)
        numbers: defaultdict[str, Iterator[int]] = defaultdict(lambda: count(1))
        chosen, named = set(), []
        for request in requests:
            if request.name is not None:
                named.append(request)
                continue
            tried = (f"{request.project}-{n}" for n in numbers[request.project])
            name = next(one for one in tried if one not in taken)
            chosen.add(name)
            named.append(replace(request, name=name))
        return chosen, named


def _heads(name: str) -> Iterator[str]:
    """Yield what stands before each dash of a name, the longest first."""
    while name := name.rpartition("-")[0]:
        yield name
