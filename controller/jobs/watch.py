"""Watching containers: exit codes, containers that vanish, containers nobody knows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from controller.base.errors import ServiceError
from controller.devices.engine import ExecutionEngine, RankState, RankStatus
from controller.jobs.restarts import JobRestarter
from controller.ranks.calls import observe_containers
from controller.ranks.ends import JobEnder
from controller.ranks.strangers import still_spared, strangers
from controller.state.records import JobRecord, Quarantine
from controller.state.state import State
from controller.state.writes import PutQuarantine

MISSED_LOOKS = 3
"""A container that is gone in so many looks in a row, while its server answers, is gone."""

SICK_LOOKS = 10
"""A GPU that is unfit in so many looks in a row is out of use until an operator says otherwise,
and its job is ended or starts again. Until then it only gets no new job: a driver may hang for
seconds under load."""

_LIVE = (RankState.CREATED, RankState.RUNNING, RankState.PAUSED)


class JobWatch:
    """Looks at all containers and draws the conclusions."""

    def __init__(
        self, state: State, engine: ExecutionEngine, ender: JobEnder, restarter: JobRestarter
    ) -> None:
        self._state = state
        self._engine = engine
        self._ender = ender
        self._restarter = restarter
        self._missed: dict[tuple[str, int, int], int] = {}
        self._unfit: dict[str, int] = {}
        self._sick: dict[tuple[str, int, int], int] = {}

    async def observe(self) -> None:
        """Look once, and end the jobs whose containers ended."""
        if not await observe_containers(self._state, self._engine):
            return
        await self._note_unfit()
        by_job: dict[str, list[RankStatus]] = {}
        for status in self._state.statuses:
            by_job.setdefault(status.job, []).append(status)
        self.note_strangers()
        missed: dict[tuple[str, int, int], int] = {}
        for job in list(self._state.jobs.values()):
            if job.state in ("running", "paused") and not self._ender.is_ending(job.name):
                missed.update(self._judge(job, by_job.get(job.name, [])))
        self._missed = missed
        epochs = {(job.name, job.epoch) for job in self._state.jobs.values() if job.holding}
        self._sick = {key: n for key, n in self._sick.items() if key[:2] in epochs}

    async def _note_unfit(self) -> None:
        """Give no job to endpoints whose GPU is lost or whose agent lies; no neighbour suffers."""
        state = self._state
        unfit = {e: why for e, why in self._engine.unfit().items() if e in state.cables}
        if unfit.keys() != state.unfit.keys():
            state.wake.set()
        state.unfit = unfit
        self._unfit = {endpoint: self._unfit.get(endpoint, 0) + 1 for endpoint in unfit}
        fresh = tuple(
            Quarantine(endpoint, reason, state.clock())
            for endpoint, reason in sorted(unfit.items())
            if self._unfit[endpoint] >= SICK_LOOKS and endpoint not in state.quarantine
        )
        if not fresh:
            return
        for entry in fresh:
            state.quarantine[entry.object] = entry
            state.events.add("error", f"endpoint/{entry.object}", "Quarantined", entry.reason)
        with contextlib.suppress(ServiceError):  # it stays owed
            await state.record(PutQuarantine(fresh))

    def note_strangers(self) -> None:
        """A container of no job of ours may belong to a lost store: never stopped, never shared."""
        state = self._state
        strange = strangers(state.statuses, self._known)
        for endpoint in sorted(strange.keys() - state.squatted):
            text = f"a container of {strange[endpoint]}, which is no running job, holds it"
            state.events.add("warning", f"endpoint/{endpoint}", "UnknownContainer", text)
        answering = self._engine.reachable()
        state.spared = still_spared(state.spared, strange, state.cables, answering)
        state.strangers = strange
        if strange.keys() != state.squatted:
            state.squatted = frozenset(strange)
            state.wake.set()

    def _known(self, name: str) -> bool:
        job = self._state.jobs.get(name)
        return (job is not None and not job.ended) or self._ender.is_ending(name)

    def _judge(
        self, job: JobRecord, statuses: Sequence[RankStatus]
    ) -> dict[tuple[str, int, int], int]:
        """End the job if it is over; return for how long which rank is missing."""
        if self._state.transaction_of(job.name) is not None or job.name in self._state.owed_jobs:
            return {}  # a regroup stops and starts containers; it judges for itself
        ranks = {s.rank: s for s in statuses if s.epoch == job.epoch}
        codes = tuple(
            ranks[r].exit_code if r in ranks and ranks[r].state is RankState.EXITED else None
            for r in range(len(job.endpoints))
        )
        if codes != job.exit_codes:
            job = self._state.change(job.name, exit_codes=codes)
        died = [r for r, code in enumerate(codes) if code not in (None, 0)]
        if died:
            first = ranks[died[0]]
            how = "ran out of memory" if first.oom else f"exited with code {first.exit_code}"
            why = f": {first.reason}" if first.reason and not first.oom else ""
            self._restarter.rank_died(job, f"rank {first.rank} {how}{why}")
            return {}
        sick = self._sick_for_long(job, ranks)
        if sick is not None:
            self._restarter.rank_died(job, f"rank {sick.rank}: {sick.reason}")
            return {}
        if all(code == 0 for code in codes):
            self._ender.later(job.name, "completed", "")
            return {}
        return self._missing(job, ranks)

    def _sick_for_long(self, job: JobRecord, ranks: Mapping[int, RankStatus]) -> RankStatus | None:
        """Return a rank that lives and cannot work: its GPU is lost, or may not be opened."""
        worst = None
        for rank, status in sorted(ranks.items()):
            key = (job.name, job.epoch, rank)
            if status.state not in _LIVE or not status.reason:
                self._sick.pop(key, None)
                continue
            self._sick[key] = self._sick.get(key, 0) + 1
            if self._sick[key] >= SICK_LOOKS:
                worst = worst or status
        return worst

    def _missing(
        self, job: JobRecord, ranks: Mapping[int, RankStatus]
    ) -> dict[tuple[str, int, int], int]:
        if self._state.suspect:
            return dict(self._missed)
        answering = self._engine.reachable()
        missed: dict[tuple[str, int, int], int] = {}
        for rank, endpoint in enumerate(job.endpoints):
            cable = self._state.cables.get(endpoint)  # None: it left the site file
            if rank in ranks or cable is None or not answering.get(cable.server, False):
                continue
            key = (job.name, job.epoch, rank)
            missed[key] = self._missed.get(key, 0) + 1
            if missed[key] >= MISSED_LOOKS:
                self._restarter.rank_died(job, f"the container of rank {rank} is gone")
                return {}
        return missed
