"""Watches containers: exit codes, missing containers, unfit GPUs and unknown containers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

from controller.base.errors import ServiceError
from controller.base.slices import Turns
from controller.devices.engine import ExecutionEngine, RankState, RankStatus
from controller.jobs.late_lines import LateLines
from controller.jobs.restarts import JobRestarter
from controller.ranks.calls import observe_containers
from controller.ranks.ends import JobEnder
from controller.ranks.first_cause import blamed, first_cause
from controller.ranks.strangers import LIVE
from controller.state.kept.kinds import row_of
from controller.state.records import JobRecord, Quarantine
from controller.state.state import State
from controller.swaps.losses import surely_lost
from controller.swaps.other_runs import OtherRuns

MISSING_ROUNDS = 3
"""A container counts as gone after it was missing in this many rounds in a row while its server
answered."""

UNFIT_ROUNDS = 10
"""A GPU that is unfit in this many rounds in a row goes into quarantine, until an operator releases
it, and its job ends or starts again. Before that it only gets no new job: a driver may hang for
seconds under load."""

SURE_ROUNDS = 2
"""The same where the agent is sure: the GPU is gone, and no driver that hangs."""

BACK_ROUNDS = 2 * MISSING_ROUNDS
"""A server that answers again is believed to have restarted if all ranks of a job there are found
dead or missing within this many rounds."""


class JobWatch:
    """Observes all containers; ends or restarts jobs, and marks endpoints unfit."""

    def __init__(
        self,
        state: State,
        engine: ExecutionEngine,
        ender: JobEnder,
        restarter: JobRestarter,
        *,
        late: LateLines,
        others: OtherRuns,
    ) -> None:
        self._state = state
        self._engine = engine
        self._ender = ender
        self._restarter = restarter
        self._late = late
        self._others = others
        self._missing_for: dict[tuple[str, int, int], int] = {}
        """By job, epoch and rank: rounds in a row without the container."""
        self._back_for: dict[str, int] = {}
        """By server that was silent: rounds in a row in which it answers; 0 while it is silent."""
        self._unfit_for: dict[str, int] = {}
        """By endpoint: rounds in a row with an unfit GPU."""
        self._sick_for: dict[tuple[str, int, int], int] = {}
        """By job, epoch and rank: rounds in a row in which the rank lived and could not work."""

    async def observe(self) -> None:
        """Observe once, and end or restart the jobs whose containers ended."""
        if not await observe_containers(self._state, self._engine):
            return
        await self._note_unfit()
        self._note_silent()
        by_job: dict[str, list[RankStatus]] = {}
        for status in self._state.jobs.statuses:
            by_job.setdefault(status.job, []).append(status)
        await self._others.check()
        missed: dict[tuple[str, int, int], int] = {}
        with Turns() as turns:
            for seen in list(self._state.jobs.values()):
                job = self._state.jobs.get(seen.name)
                if job is None or job.epoch != seen.epoch:
                    continue  # another run began meanwhile, which nobody has observed yet
                watched = job.state in ("running", "paused") and job.owner.judges
                watched = watched and job.name not in self._others.later
                if watched and not self._ender.is_ending(job.name):
                    missed.update(self._check(job, by_job.get(job.name, [])))
                await turns.breathe()
        self._missing_for = missed
        self._late.read_next()
        epochs = {(job.name, job.epoch) for job in self._state.jobs.values() if job.holding}
        self._sick_for = {key: n for key, n in self._sick_for.items() if key[:2] in epochs}

    def _note_silent(self) -> None:
        """Count for how long servers that were silent have answered again."""
        for server, answers in self._engine.reachable().items():
            if not answers:
                self._back_for[server] = 0
            elif server in self._back_for:
                self._back_for[server] += 1
        self._back_for = {s: n for s, n in self._back_for.items() if n <= BACK_ROUNDS}

    def _restarted(self, job: JobRecord, first: str, gone: Collection[str]) -> str:
        """Return the server of the rank that died first, if it restarted with all of its ranks.

        ``first`` is that rank's endpoint, ``gone`` are all whose ranks are dead or missing. Ranks
        elsewhere may have ended since: they lost their connections.
        """
        cables = self._state.cables
        server = cables[first].server if first in cables else ""
        theirs = {e for e in job.endpoints if e in cables and cables[e].server == server}
        back = self._back_for.get(server, 0) > 0
        return server if back and theirs <= set(gone) else ""

    async def _note_unfit(self) -> None:
        """Give no new job to unfit endpoints; put those that stay unfit into quarantine.

        One that is only not ready is ready again by itself.
        """
        state = self._state
        unfit = {e: why for e, why in self._engine.unfit().items() if e in state.cables}
        unready = {e: why for e, why in self._engine.unready().items() if e in state.cables}
        seen = unfit.keys() | unready.keys()
        if seen != state.light.unfit.keys() | state.light.unready.keys():
            state.jobs.wake.set()
        state.light.unfit, state.light.unready = unfit, unready
        self._unfit_for = {endpoint: self._unfit_for.get(endpoint, 0) + 1 for endpoint in unfit}
        fresh = tuple(
            Quarantine(endpoint, reason, state.clock())
            for endpoint, reason in sorted(unfit.items())
            if self._unfit_for[endpoint] >= UNFIT_ROUNDS and endpoint not in state.light.quarantine
        )
        if not fresh:
            return
        for entry in fresh:
            state.light.quarantine.put(entry)
            state.events.add("error", f"endpoint/{entry.object}", "Quarantined", entry.reason)
        with contextlib.suppress(ServiceError):  # the journal retries
            await state.record(*map(row_of, fresh))

    def _check(
        self, job: JobRecord, statuses: Sequence[RankStatus]
    ) -> dict[tuple[str, int, int], int]:
        """End or restart the job if a rank requires it; return the counts of missing rounds."""
        if self._state.in_transaction(job.name):
            return {}  # the transaction itself stops and starts containers, and checks them
        ranks = {s.rank: s for s in statuses if s.epoch == job.epoch}
        codes = tuple(
            ranks[r].exit_code if r in ranks and ranks[r].state is RankState.EXITED else None
            for r in range(len(job.endpoints))
        )
        if codes != job.exit_codes:
            job = self._state.jobs.change(job.name, exit_codes=codes)
        died = [r for r, code in enumerate(codes) if code not in (None, 0)]
        # A rank whose GPU is unfit counts at once when another rank has ended.
        sick = self._sick_for_long(job, ranks)
        failed = list(ranks.values()) if died else [sick] if sick else []
        if failed and (failure := first_cause(failed)) is not None:
            gone = [job.endpoints[r] for r in died]
            self._restarter.rank_died(job, failure, self._restarted(job, failure.endpoint, gone))
            return {}
        if all(code == 0 for code in codes):
            self._ender.later(job.name, "completed", "")
            return {}
        return self._missing(job, ranks)

    def _sick_for_long(self, job: JobRecord, ranks: Mapping[int, RankStatus]) -> RankStatus | None:
        """Return a rank that has long been unable to work: its GPU is lost or cannot be opened."""
        first = None
        for rank, status in sorted(ranks.items()):
            key = (job.name, job.epoch, rank)
            if status.state not in LIVE or not status.reason:
                self._sick_for.pop(key, None)
                continue
            self._sick_for[key] = self._sick_for.get(key, 0) + 1
            rounds = SURE_ROUNDS if surely_lost(status.fault) else UNFIT_ROUNDS
            if self._sick_for[key] >= min(rounds, UNFIT_ROUNDS):
                first = first or status
        return first

    def _missing(
        self, job: JobRecord, ranks: Mapping[int, RankStatus]
    ) -> dict[tuple[str, int, int], int]:
        if self._state.suspect:
            return dict(self._missing_for)
        answering = self._engine.reachable()
        missed: dict[tuple[str, int, int], int] = {}
        for rank, endpoint in enumerate(job.endpoints):
            cable = self._state.cables.get(endpoint)  # None: it left the site file
            if rank in ranks or cable is None or not answering.get(cable.server, False):
                continue
            key = (job.name, job.epoch, rank)
            missed[key] = self._missing_for.get(key, 0) + 1
            if missed[key] >= MISSING_ROUNDS:
                gone = RankStatus(
                    job.name, rank, job.epoch, endpoint, cable.server, RankState.ABSENT
                )
                away = [e for r, e in enumerate(job.endpoints) if r not in ranks]
                self._restarter.rank_died(job, blamed(gone), self._restarted(job, endpoint, away))
                return {}
        return missed
