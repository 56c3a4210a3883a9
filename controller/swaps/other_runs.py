"""Watches containers that are of no present run: of unknown jobs, of earlier and of later runs."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import structlog

from controller.base.slices import Turns
from controller.base.tasks import Tasks
from controller.devices.engine import EngineError, ExecutionEngine, RankState, RankStatus
from controller.ranks.ends import JobEnder
from controller.ranks.strangers import LIVE, is_whole, later_run, still_spared, strangers
from controller.state.intend import keys
from controller.state.kept.drains import LeftContainers
from controller.state.records import JobRecord
from controller.state.state import State
from controller.swaps.relight import Relighter
from scheduler.model import OnLoss

log = structlog.get_logger(__name__)

STOP_LIMIT_S = 40.0
SURE_ROUNDS = 2
"""Observations in a row: one may have begun before a stop or a start."""
Run = tuple[str, int]
"""A job and an epoch."""


class OtherRuns:
    """Holds the endpoints where such containers live, and decides what becomes of them.

    Those of unknown jobs stay: their records may be in a lost store. Those of an earlier run of a
    known job are stopped. Those of a later run exist where the store is an older copy: the job is
    neither judged nor started while they live, and goes on with them if they are whole.
    """

    def __init__(self, state: State, engine: ExecutionEngine, ender: JobEnder) -> None:
        self._state = state
        self._engine = engine
        self._ender = ender
        self._earlier_for: dict[tuple[str, int, str], int] = {}
        """By job, epoch and endpoint: rounds in a row with a live container of an earlier run."""
        self._later_for: dict[Run, int] = {}
        """Rounds in a row in which a later run was whole."""
        self._told: frozenset[Run] = frozenset()
        """Later runs of which an event was recorded."""
        self.later: Mapping[str, int] = MappingProxyType({})
        """The jobs of which a later run lives, and its epoch."""

    async def check(self) -> None:
        """Look once, after an observation of the containers."""
        fresh = self._note_strangers()
        with Turns() as turns:
            for endpoint, job in sorted(fresh.items()):
                text = f"a container of {job}, which is not a running job, occupies it"
                self._state.events.add("warning", f"endpoint/{endpoint}", "UnknownContainer", text)
                await turns.breathe()
            self._note_earlier()
            await turns.breathe()
            self._note_later()

    def _note_strangers(self) -> Mapping[str, str]:
        """Hold the endpoints of strangers; return the new ones, and whose containers live there."""
        state = self._state
        strange = strangers(state.jobs.statuses, self._known)
        fresh = {e: job for e, job in strange.items() if e not in state.light.squatted}
        answering = self._engine.reachable()
        state.light.spared = still_spared(state.light.spared, strange, state.cables, answering)
        state.light.strangers = strange
        if strange.keys() != state.light.squatted:
            state.light.squatted = frozenset(strange)
            state.jobs.wake.set()
        return fresh

    def _known(self, status: RankStatus) -> bool:
        name = status.job
        job = self._state.jobs.get(name)
        if self._ender.is_ending(name):
            return True
        if job is not None and not job.ended:
            return status.epoch <= job.epoch
        left = self._state.drains.left
        return any(entry.job == name and status.epoch <= entry.epoch for entry in left)

    def _settled(self, name: str) -> JobRecord | None:
        """Return a job on which nothing works that starts or stops containers."""
        job = self._state.jobs.get(name)
        if job is None or not job.owner.judges or job.state not in ("pending", "running", "paused"):
            return None
        return None if self._ender.doing(name) or self._state.in_transaction(name) else job

    def _note_earlier(self) -> None:
        """Have live containers of earlier runs stopped, and hold their endpoints meanwhile."""
        state, seen = self._state, dict[tuple[str, int, str], int]()
        left = {(entry.job, e): entry.epoch for entry in state.drains.left for e in entry.endpoints}
        for status in state.jobs.statuses:
            job = state.jobs.get(status.job) if status.state in LIVE else None
            if job is None or status.epoch > job.epoch:
                continue
            if (job.holding and status.epoch == job.epoch) or self._settled(job.name) is None:
                continue  # its present run, or one that another part is stopping
            if status.epoch <= left.get((job.name, status.endpoint), -1):
                continue
            key = (job.name, status.epoch, status.endpoint)
            seen[key] = self._earlier_for.get(key, 0) + 1
            if seen[key] == SURE_ROUNDS:
                state.drains.leave(job.name, status.epoch, [status.endpoint])
                state.journal.owe(keys.FACTS)
                text = f"a container of an earlier run of job {job.name} lives there: it is stopped"
                state.events.add("warning", f"endpoint/{status.endpoint}", "EarlierRun", text)
        self._earlier_for = seen

    def _note_later(self) -> None:
        state = self._state
        if not state.unknown:
            return
        found: dict[str, list[RankStatus]] = defaultdict(list)
        for status in state.jobs.statuses:
            job = state.jobs.get(status.job)
            if job is not None and not job.ended and job.owner.judges:
                found[job.name].append(status)
        later, whole = dict[str, int](), dict[Run, int]()
        holders = state.jobs.holders()
        for name, statuses in found.items():
            job = state.jobs[name]
            epoch, ranks = later_run(statuses, name, job.epoch)
            if epoch not in state.unknown:
                continue
            later[name] = epoch
            if self._may_go_on(job, statuses, ranks, holders):
                whole[name, epoch] = self._later_for.get((name, epoch), 0) + 1
                if whole[name, epoch] >= SURE_ROUNDS:
                    adopted = self._adopt(job, epoch, ranks)
                    holders.update(dict.fromkeys(adopted.endpoints, adopted))
                    del later[name]
        self._report_later(later)
        self.later, self._later_for = MappingProxyType(later), whole

    def _may_go_on(
        self,
        job: JobRecord,
        statuses: Sequence[RankStatus],
        ranks: Sequence[RankStatus],
        holders: Mapping[str, JobRecord],
    ) -> bool:
        """Whether a later run can become the job's: it is whole, and the known run is gone."""
        state = self._state
        known = job.holding and any(s.epoch == job.epoch and s.state in LIVE for s in statuses)
        least = job.request.at_least if job.request.on_loss is OnLoss.SHRINK else job.request.count

        def free(endpoint: str) -> bool:
            holder = holders.get(endpoint)
            return endpoint in state.cables and (holder is None or holder.name == job.name)

        heard = not state.reports.missing
        settled = self._settled(job.name) is not None
        enough = least <= len(ranks) <= job.request.count
        return heard and settled and enough and not known and is_whole(ranks, free)

    def _adopt(self, job: JobRecord, epoch: int, ranks: Sequence[RankStatus]) -> JobRecord:
        """Go on with a later run of a job where it lives; return its new record."""
        state = self._state
        endpoints = tuple(s.endpoint for s in ranks)
        paused = all(s.state is RankState.PAUSED for s in ranks)
        adopted = state.jobs.change(
            job.name,
            state="paused" if paused else "running",
            reason="",
            endpoints=endpoints,
            spares=(),
            epoch=epoch,
            exit_codes=(None,) * len(ranks),
            started_at=min((s.started_at for s in ranks if s.started_at), default=state.clock()),
            reserved_at=None,
            could_start_at=None,
        )
        self._engine.placed(job.name, {state.cables[e].server for e in endpoints})
        state.journal.owe(keys.job(job.name), keys.FACTS)
        text = (
            f"the store is an older copy: the job goes on with its later run, epoch {epoch}, on"
            f" {', '.join(endpoints)}"
        )
        state.events.add("warning", f"job/{job.name}", "LaterRunAdopted", text)
        state.jobs.wake.set()
        return adopted

    def _report_later(self, later: Mapping[str, int]) -> None:
        """Report every later run once that the job does not go on with at once."""
        runs = frozenset(later.items())
        for name, epoch in sorted(runs - self._told):
            text = (
                f"containers of a later run, epoch {epoch}, live: the store is an older copy."
                " Nothing of the job is started or judged meanwhile; it goes on with them as soon"
                f" as all its ranks are seen. `lightloom cancel {name}` stops them"
            )
            self._state.events.add("warning", f"job/{name}", "LaterRun", text)
        self._told = runs


class LeftRuns:
    """Stops what runs left, as often as needed, and frees their endpoints when nothing is there."""

    def __init__(
        self, state: State, engine: ExecutionEngine, relighter: Relighter, tasks: Tasks
    ) -> None:
        self._state = state
        self._engine = engine
        self._relighter = relighter
        self._tasks = tasks
        self._under_way: asyncio.Task[None] | None = None
        self._clean: dict[LeftContainers, int] = {}
        """Looks in a row that found nothing."""

    def check(self) -> None:
        """Look once, after an observation of the containers; one cleaning at a time."""
        state, busy = self._state, self._under_way is not None and not self._under_way.done()
        if state.drains.left and not state.command_lost and not busy:
            self._under_way = self._tasks.spawn(self._clean_up(), "clean up lost runs")

    async def _clean_up(self) -> None:
        state = self._state
        answering = state.connections.servers()
        done: list[LeftContainers] = []
        found: list[LeftContainers] = []
        seen: dict[tuple[str, str], int] = {}
        for one in state.jobs.statuses:
            run = one.job, one.server
            seen[run] = min(one.epoch, seen.get(run, one.epoch))
        for entry in state.drains.left:
            if not answering.get(entry.server, False):
                self._clean.pop(entry, None)
            elif seen.get((entry.job, entry.server), entry.epoch + 1) <= entry.epoch:
                # It is there; a container that has ended has its log to keep.
                self._clean[entry] = 0
                found.append(entry)
            else:
                self._clean[entry] = self._clean.get(entry, 0) + 1
                if self._clean[entry] >= SURE_ROUNDS:
                    done.append(entry)
        for entry in done:
            del self._clean[entry]
        await asyncio.gather(*map(self._stop, found))
        if done:
            state.drains.cleaned(done)
            self._relighter.request(name for entry in done for name in entry.endpoints)
            state.journal.owe(keys.FACTS)
            state.jobs.wake.set()

    async def _stop(self, entry: LeftContainers) -> None:
        try:
            async with asyncio.timeout(STOP_LIMIT_S):
                await self._engine.stop(entry.job, 0.0, [entry.server], until=entry.epoch)
        except (EngineError, OSError, TimeoutError) as error:
            log.warning("left_run_not_stopped", job=entry.job, reason=str(error))
            return
        text = f"containers of a former run of job {entry.job} were stopped"
        self._state.events.add("info", f"server/{entry.server}", "LeftRunStopped", text)
