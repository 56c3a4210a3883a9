"""Queues submitted jobs: all those of one request, or none of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from controller.base.errors import ServiceError
from controller.base.slices import Turns
from controller.jobs.admission import (
    Admission,
    check_not_reserved,
    check_project,
    check_queue,
    spec_of,
    with_site_defaults,
)
from controller.jobs.checkpoints import check_checkpoints
from controller.jobs.volumes import check_offered, volumes_of
from controller.schema.submit.request import JobRequest
from controller.state.intend import keys
from controller.state.intend.intentions import Intention, constant
from controller.state.kept.checkpoints import CheckpointRecord
from controller.state.kept.kinds import row_of
from controller.state.offers import directories
from controller.state.records import JobRecord
from controller.state.scheduling import scheduler_request
from controller.state.state import State


@dataclass(slots=True, frozen=True)
class Submission:
    """A job that a user asks for."""

    request: JobRequest
    image_digest: str = ""
    """What its image's name means now; empty leaves that to its start."""
    probe: bool = False
    """It is a job of a measurement."""


class Submissions:
    """Checks what is submitted, and keeps it."""

    def __init__(
        self,
        state: State,
        default_image: str,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._state = state
        self._default_image = default_image
        self._random_bytes = random_bytes
        self._admission = Admission(state.site)

    async def submit(self, asked: Sequence[Submission], user: str) -> list[JobRecord]:
        """Queue jobs of ``user`` in this order; returns when they are durable.

        ServiceError for the first that cannot be queued (``invalid`` when it can never run,
        ``conflict`` on its name or with the site's limits), and when the store refuses: then none
        of them is queued.
        """
        state = self._state
        state.require_command()
        if self._admission.site is not state.site:
            self._admission = Admission(state.site)
        put: list[JobRecord] = []
        told: list[str] = []
        try:
            async with state.intention() as intention:
                with Turns() as turns:
                    for one in asked:
                        put.append(await self._put(one, user, intention))
                        await turns.breathe()
                    for job in put:
                        count = job.request.count
                        text = f"wants {count} endpoint{'' if count == 1 else 's'}"
                        state.events.add("info", f"job/{job.name}", "JobSubmitted", text)
                        told.append(job.name)
                        await turns.breathe()
                await intention.commit(point="save-job")
        except BaseException as error:
            why = error.message if isinstance(error, ServiceError) else "the request was given up"
            for name in told:  # readers of the live stream have seen it submitted
                text = f"it is not in the queue: {why}"
                state.events.add("warning", f"job/{name}", "JobNotSubmitted", text)
            raise
        finally:
            state.jobs.wake.set()
        return put

    async def _put(self, one: Submission, user: str, intention: Intention) -> JobRecord:
        """Check one job and put it into memory, where nothing happens to it before it is durable.

        ServiceError; then nothing has changed.
        """
        state = self._state
        request = self._named(one.request)
        self._admission.check(request)
        if not one.probe:
            check_not_reserved(request)
        check_project(state.site, state.projects(), request)
        project = request.project
        waiting, held = state.jobs.waiting(project), state.jobs.waiting_bytes(project)
        check_queue(state.site, waiting, held, request)
        volumes = volumes_of(state.site, request)
        check_offered(state.site, state.offers, state.connections.servers(), request)
        check_checkpoints(state.site, request)
        checkpoints = self._checkpoints(request)
        name = request.name or ""
        job = JobRecord(
            name=name,
            request=spec_of(with_site_defaults(state.site, request), volumes, probe=one.probe),
            image=request.image or self._default_image,
            submitted_at=state.clock(),
            reason="in the queue",
            image_digest=one.image_digest,
            user=user,
            folder=checkpoints[0].folder if checkpoints else "",
        )
        self._admission.check_place(scheduler_request(job))
        _check_removals(state, job)
        made = {keys.job(name): job, **{row_of(record): record for record in checkpoints}}
        await intention.acquire(*made)  # at once: what has ended, or is not there, is not changed
        for key, record in made.items():
            intention.now(key, constant(record))
        return job

    def _named(self, request: JobRequest) -> JobRequest:
        """Return the request with a name that is free. ServiceError ``conflict``."""
        state = self._state
        name = request.name or self._free_name()
        existing = state.jobs.get(name)
        if existing is not None and not existing.ended:
            raise ServiceError(
                "conflict",
                f"job {name} exists and is {existing.state}",
                object=f"job/{name}",
                hint="choose another name, or cancel it first",
            )
        if name in state.light.strangers.values():
            raise ServiceError(
                "conflict",
                f"containers of an unknown job {name} are running",
                object=f"job/{name}",
                hint="choose another name; `lightloom get events` shows where they are",
            )
        return replace(request, name=name)

    def _free_name(self) -> str:
        number = len(self._state.jobs) + 1
        while f"job-{number}" in self._state.jobs:
            number += 1
        return f"job-{number}"

    def _checkpoints(self, request: JobRequest) -> tuple[CheckpointRecord, ...]:
        """Return the record of a new job's checkpoints; none without any."""
        if request.checkpoint is None:
            return ()
        name = request.name or ""
        folder = f"{name}.{self._random_bytes(4).hex()}"
        while folder in self._state.checkpoints:
            folder = f"{name}.{self._random_bytes(4).hex()}"
        return (CheckpointRecord(folder=folder, job=name, key=self._random_bytes(32)),)


def _check_removals(state: State, job: JobRecord) -> None:
    """Refuse (ServiceError ``conflict``) a job whose data is being removed at this moment."""
    for directory in directories(state.site, job) & state.offers.removing:
        raise ServiceError(
            "conflict",
            f"the data of {directory.owner} in volume {directory.volume} is being removed",
            object=f"volume/{directory.volume}",
            hint="submit the job again in a moment",
        )
