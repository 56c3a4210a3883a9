"""What the API asks of this package."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from agentlink.checkpoints import Verified
from checkpoints.interval import Exposure, advise
from checkpoints.ledger import Key, Missing, Spoiled, dropped
from checkpoints.restore import plan
from checkpoints.rules import parse_rule
from checkpoints.values import Scheme
from controller.base.errors import ServiceError
from controller.checkpoints.book import CheckpointBook, complete_of
from controller.checkpoints.keeper import CheckpointKeeper
from controller.checkpoints.protection import holders_of
from controller.checkpoints.views import CheckpointFacts, checkpoints_view, verification_view
from controller.devices.checkpoints import CheckpointEngine
from controller.devices.engine import EngineError
from controller.schema.checkpoints import (
    CheckpointSumsView,
    CheckpointsView,
    IntervalView,
    VerificationView,
)
from controller.state.kept.checkpoints import CHECKPOINTS, CheckpointRecord, SpoiledStep
from controller.state.records import CheckpointSpec, JobRecord
from controller.state.state import State

VERIFY_TIMEOUT_S = 600.0
DROP_TIMEOUT_S = 30.0
MOST_VERIFIED = 1 << 18
"""Parts of one job and server that one verification reads."""
MOST_VERIFYING = 1
"""Verifications of one project at once."""
DROPPED = "it was dropped on request"

Exposures = Callable[[JobRecord], Sequence[tuple[int, Exposure]]]
"""Returns how many parts of each kind a job uses, and how often such parts failed at the site."""
Seconds = Callable[[JobRecord], float | None]
"""Returns a time that was measured of a job; None where none was."""


class CheckpointDesk:
    """Answers about jobs' checkpoints; ended jobs answer until their checkpoints are removed."""

    def __init__(
        self,
        state: State,
        engine: CheckpointEngine,
        keeper: CheckpointKeeper,
        *,
        step_s: Seconds,
        restart_s: Seconds,
        exposures: Exposures,
    ) -> None:
        """``step_s`` gives the time of a job's step, ``restart_s`` that of a recovery."""
        self._state = state
        self._engine = engine
        self._keeper = keeper
        self._books = keeper.books
        self._step_s = step_s
        self._restart_s = restart_s
        self._exposures = exposures
        self._verifying: Counter[str] = Counter()
        """Verifications under way, by project."""

    async def checkpoints(self, job: str) -> CheckpointsView:
        """Return a job's checkpoints. ServiceError ``not_found``; ``conflict`` without any."""
        known, spec, record, book = self._find(job)
        places, answering = self._books.places(), self._books.answering()
        ran = record.runs[-1].endpoints if record.runs else ()
        endpoints = known.endpoints or ran
        store_up = self._keeper.starts.store_up(known, endpoints)
        ledger = book.ledger
        gathers = parse_rule(spec.complete).gathers
        there = all(name in places for name in endpoints)
        restore = await book.compute(
            partial(
                plan,
                ledger,
                endpoints if there else ran,
                places,
                answering,
                store=store_up,
                gathers=gathers,
            )
        )
        told = {name for name in record.servers if self._keeper.inbox.caught_up(name)}
        held = {
            places[name].server
            for one in ledger.steps.values()
            for name in holders_of(one)
            if name in places
        }
        silent = {
            name
            for name in record.servers & self._books.endpoints.keys()
            if name not in answering and (name in held or name not in told)
        }
        data = CheckpointFacts(
            ledger,
            places,
            dict(book.extras),
            {run.epoch: run.endpoints for run in record.runs},
            answering,
            store_up,
        )
        return await book.compute(
            partial(
                checkpoints_view,
                job,
                spec,
                data,
                restore,
                caught_up=told >= record.servers & self._books.endpoints.keys() & answering,
                silent=silent,
                unprotected_why=book.unprotected_why,
                ignored=book.remarks(),
            )
        )

    def sums(self) -> dict[str, CheckpointSumsView]:
        """Return the sums of all jobs that have not ended, as of the keeper's last look."""
        found, now = {}, self._state.clock()
        for record, book in self._books:
            job = self._books.job(record)
            if job is None or job[0].ended:
                continue
            sums, copies = book.sums, job[1].copies.scheme is not Scheme.SINGLE
            bare_s = max(0.0, now - sums.since) if sums.since and not sums.safe else 0.0
            found[record.job] = CheckpointSumsView(
                bytes=dict(sums.bytes),
                written_s=sums.written_s,
                unprotected_s=bare_s if copies else None,
            )
        return found

    async def verify_checkpoints(self, job: str, step: int | None) -> VerificationView:
        """Have all servers read a step (all with None) again.

        ServiceError ``not_found``; ``conflict`` when the project has such reading under way, or a
        server does not read now. What is damaged no longer counts as held.
        """
        known, _, record, book = self._find(job)
        key = None if step is None else self._key(job, book, step)
        asked = sorted(record.servers & self._books.endpoints.keys())
        with self._reading(known):
            answers = await asyncio.gather(*(self._verify(name, book, key) for name in asked))
        found = [one for answer in answers if isinstance(answer, list) for one in answer]
        ledger = book.ledger
        for one in found:
            if one.key in book.extras:
                book.extras[one.key].damages[one.rank, one.endpoint] = one.damages
        await book.fold([Missing(one.key, one.rank, one.endpoint) for one in found if one.damages])
        silent = [name for name, answer in zip(asked, answers, strict=True) if answer is None]
        if refused := [answer for answer in answers if isinstance(answer, EngineError)]:
            raise ServiceError(
                "conflict",
                f"not all of the checkpoints of job {job} were read: {refused[0]}",
                object=f"job/{job}",
                hint="try again in some minutes",
            )
        return await book.compute(partial(verification_view, job, ledger, found, silent))

    async def drop_checkpoint(self, job: str, step: int, *, force: bool) -> CheckpointsView:
        """Remove a step from all servers, and never restore it again.

        ServiceError ``conflict`` for the newest complete one unless ``force``; ``not_found`` when
        another job got the name meanwhile.
        """
        self._state.require_command()
        _, _, record, book = self._find(job)
        keys = [key for key in book.ledger.steps if key.step == step]
        if not keys:
            raise self._no_step(job, step)
        places = self._books.places()
        ledger = book.ledger
        complete = await book.compute(lambda: complete_of(ledger, places))
        if complete and complete[0] in keys and not force:
            raise ServiceError(
                "conflict",
                f"step {step} is the newest complete checkpoint of job {job}",
                object=f"job/{job}",
                hint="a loss now would cost more: use force to drop it nevertheless",
            )

        def spoiled(now: CheckpointRecord | None) -> CheckpointRecord:
            if now is None:
                raise self._removed(job)
            others = (one for one in now.spoiled if one.key not in keys)
            return replace(now, spoiled=(*others, *(SpoiledStep(*key, DROPPED) for key in keys)))

        await self._state.intend({CHECKPOINTS.row(record.folder): spoiled})
        await book.fold([Spoiled(key, DROPPED) for key in keys])
        servers = {
            places[name].server
            for key in keys
            for name in holders_of(ledger.steps[key])
            if name in places
        }
        reached = sorted(servers & self._books.answering())
        await asyncio.gather(*(self._drop(name, record.folder, keys) for name in reached))
        now = self._state.jobs.get(job)
        if now is None or now.folder != record.folder:  # the name is another job's by now
            raise self._removed(job)
        text = f"step {step} was dropped on request"
        self._state.events.add("info", f"job/{job}", "CheckpointDropped", text)
        return await self.checkpoints(job)

    async def checkpoint_advice(self, job: str) -> IntervalView:
        """Return how often a job should write, as far as its figures are measured."""
        known, _, _, book = self._find(job)
        costs = [max(one.written_s.values()) for one in book.extras.values() if one.written_s]
        cost_s, step_s = (median(costs) if costs else None), self._step_s(known)
        restart_s, exposures = self._restart_s(known), list(self._exposures(known))
        view = IntervalView(
            job=job,
            interval_s=None,
            steps=None,
            now_s=book.interval_s,
            cost_s=cost_s,
            step_s=step_s,
            restart_s=restart_s,
            mtbf_s=None,
            waste=None,
            waste_now=None,
        )
        lacking = []
        if cost_s is None:
            lacking.append("no checkpoint was timed yet")
        if step_s is None:
            lacking.append("its steps are not known: they are recorded with record: counts")
        if cost_s is None or step_s is None:
            return view.model_copy(update={"why": "; ".join(lacking)})
        try:
            found = advise(cost_s, step_s, restart_s or 0.0, exposures, book.interval_s)
        except ValueError as error:
            return view.model_copy(update={"why": str(error)})
        why = "" if restart_s is not None else "it never recovered: the restart counts as 0 s"
        return view.model_copy(
            update={
                "interval_s": found.interval_s,
                "steps": found.steps,
                "mtbf_s": found.mtbf_s,
                "waste": found.waste,
                "waste_now": found.waste_now,
                "bounded": found.bounded,
                "why": why,
            }
        )

    # --- helpers --------------------------------------------------------------------------

    def _find(self, job: str) -> tuple[JobRecord, CheckpointSpec, CheckpointRecord, CheckpointBook]:
        known = self._state.jobs.require(job)
        found, spec = self._books.of(job), known.request.checkpoint
        if spec is None:
            raise ServiceError(
                "conflict",
                f"job {job} keeps no checkpoints",
                object=f"job/{job}",
                hint="submit it with checkpoint: (docs/checkpoints.md)",
            )
        if found is None:
            raise self._removed(job)
        return known, spec, *found

    def _removed(self, job: str) -> ServiceError:
        return ServiceError(
            "not_found",
            f"the checkpoints of job {job} are removed: it has ended",
            object=f"job/{job}",
            hint="checkpoints in a store stay there",
        )

    def _key(self, job: str, book: CheckpointBook, step: int) -> Key:
        ledger = book.ledger
        keys = [key for key in ledger.steps if key.step == step]
        if not keys:
            raise self._no_step(job, step)
        return max(keys, key=lambda key: (not dropped(ledger, key), key))

    def _no_step(self, job: str, step: int) -> ServiceError:
        return ServiceError(
            "not_found",
            f"job {job} has no checkpoint of step {step}",
            object=f"job/{job}",
            hint=f"see `lightloom checkpoints {job}`",
        )

    @contextlib.contextmanager
    def _reading(self, job: JobRecord) -> Iterator[None]:
        """Count a verification; ServiceError ``conflict`` if the project has enough of them.

        A server reads for a few calls at once, of all projects together.
        """
        project = job.request.project
        if self._verifying[project] >= MOST_VERIFYING:
            raise ServiceError(
                "conflict",
                f"checkpoints of project {project} are being read already",
                object=f"job/{job.name}",
                hint="try again when it has ended",
            )
        self._verifying[project] += 1
        try:
            yield
        finally:
            self._verifying[project] -= 1
            self._verifying += Counter()  # without those that have none

    async def _verify(
        self, server: str, book: CheckpointBook, key: Key | None
    ) -> list[Verified] | EngineError | None:
        """Return what a server read, or why it did not; None when it did not answer."""
        ours = self._books.endpoints[server]
        found: list[Verified] = []
        try:
            read = self._engine.verify_steps(server, book.folder, key, VERIFY_TIMEOUT_S)
            async with asyncio.timeout(VERIFY_TIMEOUT_S), contextlib.aclosing(read) as parts:
                async for one in parts:
                    if one.endpoint in ours and len(found) < MOST_VERIFIED:
                        found.append(one)
        except EngineError as error:
            if error.code in {"unavailable", "timeout"}:
                return None
            if error.code != "not_found":
                return error
        except TimeoutError:
            return None
        return found

    async def _drop(self, server: str, folder: str, keys: Sequence[Key]) -> None:
        with contextlib.suppress(EngineError):  # the keeper repeats it
            await self._engine.drop_steps(server, folder, keys, DROP_TIMEOUT_S)
