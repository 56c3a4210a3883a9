"""What the API asks about jobs and of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping, Sequence
from contextlib import aclosing

from agentlink.values import Typed, WindowSize
from controller.base.errors import ServiceError
from controller.devices.engine import (
    EngineError,
    ExecEnd,
    ExecOutput,
    ExecutionEngine,
    LogLine,
)
from controller.images.keeper import ImageKeeper
from controller.images.pins import pin_key
from controller.jobs.keeper import JobKeeper
from controller.jobs.submission import Submission
from controller.people.authz import Owned
from controller.ranks import execs
from controller.ranks.calls import placed
from controller.ranks.secrets import SecretFolder
from controller.schema.execs import ExecRequest
from controller.schema.jobs import ContainerView, JobView, SecretView
from controller.schema.live import LogLineView, TopView
from controller.schema.submit.request import JobRequest
from controller.state.records import JobRecord
from controller.state.state import State
from controller.views.jobs import JobViews


class JobDesk:
    """Shows jobs, and carries out what is asked of them. Raises ServiceError."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        keeper: JobKeeper,
        views: JobViews,
        *,
        images: ImageKeeper,
        secrets: SecretFolder,
    ) -> None:
        self._state = state
        self._engine = engine
        self._keeper = keeper
        self._views = views
        self._images = images
        self._secrets = secrets
        self._owned: dict[str, tuple[JobRecord, Owned]] = {}
        self._owners: Mapping[str, Owned] = {}

    # --- reads ----------------------------------------------------------------------------

    def projects(self) -> frozenset[str]:
        """Return the projects of the site file and of its accounts, by name."""
        return frozenset(project.name for project in self._state.projects())

    def highest_priority(self, project: str) -> int:
        """Return the highest priority that users may give jobs of ``project``."""
        return self._state.site.scheduling.highest_priority(project)

    def owners(self) -> Mapping[str, Owned]:
        """Return the owner of every job, by name; the same object until one of them changes."""
        jobs, kept = self._state.jobs, self._owned
        if len(kept) == len(jobs) and all(
            job is known[0] for job, known in zip(jobs.values(), kept.values(), strict=True)
        ):
            return self._owners
        found: dict[str, tuple[JobRecord, Owned]] = {}
        for name, job in jobs.items():
            known = kept.get(name)
            if known is None or known[0] is not job:
                owned = Owned(
                    name, job.request.project, job.endpoints, holding=job.holding, ended=job.ended
                )
                known = job, owned
            found[name] = known
        self._owned = found
        self._owners = {name: owned for name, (_, owned) in found.items()}
        return self._owners

    async def jobs(self, names: Sequence[str] | None = None) -> list[JobView]:
        """Return every job, in the order of submission; with ``names`` those of these."""
        jobs = self._state.jobs
        if names is None:
            return await self._views.jobs(jobs.values())
        return await self._views.jobs(jobs[name] for name in names if name in jobs)

    def job(self, name: str) -> JobView:
        """Return one job. ServiceError ``not_found``."""
        return self._views.job(self._state.jobs.require(name))

    async def containers(self) -> list[ContainerView]:
        """Return the containers the agents saw last."""
        return await self._views.containers()

    async def top(self) -> TopView:
        """Return the live figures of the last second."""
        return await self._views.top()

    async def secrets(self) -> list[SecretView]:
        """Return the secrets that jobs may use, by project and name, without their values."""
        found = await self._secrets.names()
        return [SecretView(project=project, name=name) for project, name in found]

    def logs(
        self,
        name: str,
        *,
        rank: int | None,
        tail: int | None,
        follow: bool,
        since: float | None = None,
        search: str = "",
    ) -> AsyncIterator[LogLineView]:
        """Stream a job's output, of all ranks if ``rank`` is None.

        Only lines at or after ``since`` that contain ``search``. They are those of the job that
        has the name now. Its record names the server of every rank, also after its end and after a
        restart of the controller, and the run: an earlier job of this name may have been another's.
        """
        job = self._state.jobs.require(name)
        lines = self._engine.logs(
            name,
            rank,
            tail,
            follow,
            placed(self._state, job),
            since=since,
            search=search,
            epoch=job.epoch,
        )
        return self._lines(name, lines)

    @staticmethod
    async def _lines(name: str, lines: AsyncIterator[LogLine]) -> AsyncIterator[LogLineView]:
        try:
            async for line in lines:
                yield LogLineView(
                    rank=line.rank,
                    time=line.time,
                    stream=line.stream,
                    text=line.text,
                )
        except EngineError as error:
            raise ServiceError(
                "unavailable", str(error), object=f"job/{name}", hint=error.hint
            ) from error

    # --- changes --------------------------------------------------------------------------

    async def submit(self, request: JobRequest, user: str = "") -> JobView:
        """Queue a job of ``user``, the caller's name."""
        (job,) = await self._submit([request], user)
        return self._views.job(job)

    async def submit_all(self, requests: Sequence[JobRequest], user: str = "") -> list[str]:
        """Queue jobs of ``user``, all or none; return their names."""
        return [job.name for job in await self._submit(requests, user)]

    async def _submit(self, requests: Sequence[JobRequest], user: str) -> list[JobRecord]:
        digests: dict[Hashable, str] = {}
        asked = []
        for request in requests:
            key = pin_key(request)
            if key not in digests:
                digests[key] = await self._images.pin_request(request)
            await self._secrets.check(request.project, request.secrets.values())
            asked.append(Submission(request, digests[key]))
        return await self._keeper.submit(asked, user)

    async def cancel(self, name: str) -> JobView:
        """Stop a job, or take it out of the queue."""
        return self._views.job(await self._keeper.cancel(name))

    async def pause(self, name: str) -> JobView:
        """Freeze all containers of a job."""
        return self._views.job(await self._keeper.pause(name))

    async def resume(self, name: str) -> JobView:
        """Thaw a paused job."""
        return self._views.job(await self._keeper.resume(name))

    async def exec(
        self, name: str, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Prepare a command in a rank of a job; it begins with the first item that is read.

        It belongs to the job's present run, also when another job gets the name.
        """
        job = self._state.jobs.require(name)
        execs.start_of(self._state, job, request)
        return self._exec(job, request, given)

    async def _exec(
        self, prepared: JobRecord, request: ExecRequest, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        # The job may have been frozen, or have ended, since the command was prepared.
        job = self._state.jobs.require(prepared.name)
        execs.check_run(prepared, job)
        start = execs.start_of(self._state, job, request)
        async with aclosing(execs.run(self._engine, start, given)) as pieces:
            async for piece in pieces:
                yield piece
