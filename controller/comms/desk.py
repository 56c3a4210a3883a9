"""What the API asks of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from controller.base.errors import ServiceError
from controller.comms.keeper import CommsKeeper
from controller.comms.kept import kept_view
from controller.comms.ledger import Bucket, BucketSums
from controller.comms.measured import Measured
from controller.comms.views import view_of
from controller.schema.insight.comms import CommsView
from controller.state.state import State


class CommsDesk:
    """Makes the documents of jobs' communication."""

    def __init__(self, state: State, keeper: CommsKeeper, measured: Measured) -> None:
        self._state = state
        self._keeper = keeper
        self._measured = measured

    def collectives(self) -> Mapping[str, Mapping[Bucket, BucketSums]]:
        """Return the sums of the jobs that have not ended, by operation and size."""
        return self._keeper.collectives()

    async def view(self, name: str, rank: int | None, since_s: float | None) -> CommsView:
        """Return a job's communication, with ``rank`` that of one rank.

        ServiceError ``not_found`` for a job or a rank.
        """
        job = self._state.jobs.require(name)
        if rank is not None and not 0 <= rank < max(job.request.count, len(job.endpoints)):
            raise ServiceError(
                "not_found",
                f"job {job.name} has no rank {rank}",
                object=f"job/{job.name}",
                hint=f"its ranks are 0 to {max(job.request.count, len(job.endpoints)) - 1}",
            )
        known, now = self._keeper.known(job), self._state.clock()
        record = None if known is not None else self._keeper.record(job)
        view = None
        if record is not None:
            told = since_s is not None
            view = await asyncio.to_thread(kept_view, record, rank, since=told)
        if view is None:
            since = None if since_s is None else now - since_s
            view = await asyncio.to_thread(view_of, job, known, rank, since, now)
        return await self._measured.compared(job, view)
