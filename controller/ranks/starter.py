"""Starts the ranks of a placed job, and restarts them under a new epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from agentlink.ranks import RankCheckpoint
from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, ExecutionEngine
from controller.ranks import calls
from controller.ranks.ends import JobEnder
from controller.ranks.secrets import SecretFolder
from controller.ranks.specs import rank_specs
from controller.state.intend import keys
from controller.state.state import State
from scheduler import ring
from scheduler.model import RankOrder

START_TIMEOUT_S = 60.0


class ImagePreparer(Protocol):
    """Brings jobs' images to servers."""

    async def ready(self, name: str, endpoints: Collection[str] | None = None) -> None:
        """Bring a job's image to the servers of ``endpoints``, by default its own. ServiceError."""


class CheckpointPreparer(Protocol):
    """Brings jobs' checkpoints to their ranks."""

    async def ready(self, name: str) -> Mapping[int, RankCheckpoint]:
        """Bring what a job resumes from to its ranks, and make its run durable. ServiceError.

        Returns what each rank needs; nothing for a job without checkpoints.
        """


class RankStarter:
    """Starts containers; its callers decide what runs where."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        ender: JobEnder,
        *,
        images: ImagePreparer,
        checkpoints: CheckpointPreparer,
        secrets: SecretFolder,
    ) -> None:
        self._state = state
        self._images = images
        self._checkpoints = checkpoints
        self._engine = engine
        self._ender = ender
        self._secrets = secrets

    async def start(self, name: str) -> None:
        """Start every rank of a job that has its endpoints, once all that it needs is there.

        Raises what the engine raises, and ServiceError about the image and the checkpoints.
        """
        await self._images.ready(name)
        kept = await self._checkpoints.ready(name)
        job = self._state.jobs[name]
        values = await self._secrets.values(job.request.project, job.request.secrets)
        specs = rank_specs(self._state.site, self._state.cables, job, values, kept)
        async with failpoints.around("start"):
            statuses = await self._engine.start(specs, START_TIMEOUT_S)
        known = {(s.job, s.rank, s.epoch): s for s in (*self._state.jobs.statuses, *statuses)}
        self._state.jobs.statuses = list(known.values())
        started = [s.started_at for s in statuses if s.started_at is not None]
        self._state.jobs.change(
            name,
            state="running",
            reason="",
            started_at=job.started_at or min(started, default=self._state.clock()),
        )
        homes = self._state.light.homes()
        where = ", ".join(f"{e} under {homes[e]}" for e in job.endpoints)
        self._state.events.add("info", f"job/{name}", "JobStarted", where)
        await self._ender.keep(name)

    async def restart(self, job: str) -> None:
        """Start a stopped job again under a new epoch, with ranks ordered by its endpoints' homes.

        ServiceError when the job is ending, or its ranks do not start.
        """
        state = self._state
        await state.reports.wait()
        self._require_going_on(job)
        state.next_epoch()
        epoch = state.epoch
        # Durable first: containers of an epoch that the store does not know must never run.
        async with failpoints.around("save-intent"):
            await state.commit(keys.FACTS)
        self._require_going_on(job)
        record = state.jobs[job]
        endpoints = record.endpoints
        if record.request.rank_order is RankOrder.AGGREGATOR:
            endpoints = ring.order(endpoints, state.light.homes())
        state.jobs.change(
            job,
            state="starting",
            endpoints=endpoints,
            epoch=epoch,
            restarts=record.restarts + 1,
        )
        try:
            await self.start(job)
        except EngineError as error:
            raise calls.refusal(job, error) from error

    def _require_going_on(self, job: str) -> None:
        record = self._state.jobs.get(job)
        if record is None or record.ended or self._ender.is_ending(job):
            raise ServiceError("conflict", f"job {job} is ending", object=f"job/{job}")
