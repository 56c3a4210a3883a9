"""Predictions meet their measurements: makes them, keeps them, and judges them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from controller.advice.compared import predictions_of, spec_of
from controller.advice.outcome import met
from controller.base.errors import ServiceError
from controller.schema.insight.advice import PredictionView, RangeView
from controller.state.intend.intentions import constant
from controller.state.kept.kinds import row_of
from controller.state.kept.measurements import MeasurementRecord
from controller.state.kept.predictions import PREDICTIONS, Cause, PredictionRecord
from controller.state.records import JobRecord
from controller.state.state import State
from controller.telemetry.steps import FactsOf, Outlook, StepMeter
from measure.envelope import Measurement
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.identify import usable

OPEN_S = 24 * 3600.0
"""After this time a prediction whose homes did not come true expires."""

_SAME = 0.01
"""Measured steps that differ by less, relatively, are the same."""

Homes = Mapping[str, str | None]
Ring = tuple[str, ...]


class PredictionKeeper:
    """Keeps what was predicted of jobs' steps, durably."""

    def __init__(self, state: State, meter: StepMeter, facts: FactsOf = lambda job: None) -> None:
        """``facts`` are a job's latest ones, also of a job that has ended."""
        self._state = state
        self._meter = meter
        self._facts = facts
        self._stays: dict[str, object] = {}
        """By met prediction: the stay of its job at these homes, in which it may be corrected."""

    async def make(
        self, job: JobRecord, cause: Cause, after: Homes, outlook: Outlook
    ) -> PredictionRecord:
        """Keep a prediction of a job with the homes ``after``. ServiceError if it is not durable.

        It replaces an open one of the same job, cause and homes, and keeps its id.
        """
        made = self._drawn(job, cause, after, outlook)
        await self._state.intend({row_of(made): constant(made)})
        self._trim()
        return made

    def planned(self, moves: Mapping[str, str | None]) -> None:
        """Note what a plan that is being carried out promises to the jobs whose light it moves.

        It fails for nothing: a plan does not depend on it.
        """
        state, before = self._state, self._state.light.homes()
        after = before | dict(moves)
        held = [job for job in state.jobs.values() if job.holding]
        rings = {job.name: job.endpoints for job in held}
        now, then = self._meter.roads(rings, before), self._meter.roads(rings, after)
        if now is None or then is None:
            return
        for job in held:
            if job.state != "running" or not any(e in moves for e in job.endpoints):
                continue
            outlook = self._meter.outlook(job.name, now, then)
            self._note(self._drawn(job, "plan", after, outlook))

    def compared(self, record: MeasurementRecord, result: Measurement) -> None:
        """Note what a comparison predicted; the journal writes it with the result.

        An open prediction of the same kind of job at the same homes gives way to the new one.
        """
        state = self._state
        for made in predictions_of(record, result, state.clock()):
            older = [
                known.id
                for known in state.predictions.values()
                if known.state == "open"
                and (known.spec, known.homes) == (made.spec, made.homes)
                and tuple(known.homes) == tuple(made.homes)
            ]
            for ident in older:
                state.predictions.remove(ident)
                state.journal.owe(PREDICTIONS.row(ident))
            self._note(replace(made, id=state.predictions.next_key()))

    def _note(self, made: PredictionRecord) -> None:
        """Keep a prediction; it is durable with the next commit."""
        self._state.predictions.put(made)
        self._state.journal.owe(row_of(made))
        self._trim()

    def _trim(self) -> None:
        gone = self._state.predictions.trim()
        self._state.journal.owe(*(PREDICTIONS.row(ident) for ident in gone))

    async def check(self) -> None:
        """Judge predictions once: those whose homes came true, and those that expire.

        What was measured is corrected while the job stays there.
        """
        state, homes = self._state, self._state.light.homes()
        changed = []
        rings: dict[Ring, list[JobRecord]] | None = None
        for prediction in list(state.predictions.values()):
            if prediction.state != "open":
                if (corrected := self._corrected(prediction, homes)) is not prediction:
                    state.predictions.put(corrected)
                    changed.append(corrected)
                continue
            if prediction.spec and rings is None:
                rings = self._rings()
            if prediction.spec:
                job = _same(prediction, (rings or {}).get(tuple(prediction.homes), ()))
            else:
                job = state.jobs.get(prediction.job)
            facts = self._facts_of(prediction, job, homes)
            judged_ = judged(prediction, job, homes, facts, state.clock())
            if judged_ is not prediction:
                state.predictions.put(judged_)
                changed.append(judged_)
                if judged_.state == "met":
                    self._stays[judged_.id] = self._meter.stay(judged_.job)
        if changed:
            with contextlib.suppress(ServiceError):  # the journal writes them with the next commit
                await state.record(*map(row_of, changed))

    def _corrected(self, prediction: PredictionRecord, homes: Homes) -> PredictionRecord:
        """Return a met prediction with what is known by now; the same object if nothing changed."""
        job, stay = self._state.jobs.get(prediction.job), self._stays.get(prediction.id)
        if job is None or stay is None or stay != self._meter.stay(job.name):
            self._stays.pop(prediction.id, None)
            return prediction
        facts, before = self._meter.current(job, homes), prediction.measured_s
        if facts is None or before is None or abs(facts.step_s - before) <= _SAME * before:
            return prediction
        return met(prediction, facts.step_s, self._state.clock())

    def _rings(self) -> dict[Ring, list[JobRecord]]:
        """Return the jobs that run or have run, by their endpoints in rank order."""
        found: dict[Ring, list[JobRecord]] = {}
        for job in self._state.jobs.values():
            if job.endpoints and job.started_at is not None:
                found.setdefault(job.endpoints, []).append(job)
        return found

    def _facts_of(
        self, prediction: PredictionRecord, job: JobRecord | None, homes: Homes
    ) -> StepFacts | None:
        """Return the facts of a job's present placement, or of the only one that it ever had."""
        if job is None:
            return None
        if job.state == "running":
            return self._meter.current(job, homes)
        if not (prediction.spec and job.ended) or job.pauses:
            return None
        facts = self._facts(job.name)
        return facts if facts is not None and usable(facts, len(job.endpoints)) else None

    def views(self, projects: Collection[str] | None = None) -> list[PredictionView]:
        """Return the predictions of jobs of ``projects`` (None is all), oldest first."""
        return [
            prediction_view(record)
            for record in self._state.predictions.values()
            if projects is None or record.project in projects
        ]

    def _drawn(
        self, job: JobRecord, cause: Cause, after: Homes, outlook: Outlook
    ) -> PredictionRecord:
        """Return a new prediction, with the id of the open one that it replaces."""
        step, homes = outlook.then_s, {e: after.get(e) for e in job.endpoints}
        replaced = next(
            (
                known
                for known in self._state.predictions.values()
                if known.state == "open"
                and (known.job, known.submitted_at) == (job.name, job.submitted_at)
                and known.cause == cause
                and known.homes == homes
            ),
            None,
        )
        return PredictionRecord(
            id=replaced.id if replaced else self._state.predictions.next_key(),
            job=job.name,
            submitted_at=job.submitted_at,
            project=job.request.project,
            cause=cause,
            made_at=self._state.clock(),
            homes=homes,
            low_s=None if step is None else step.low,
            high_s=None if step is None else step.high,
            step_before_s=outlook.now_s,
            basis=(*outlook.basis, *outlook.unidentified),
        )


def judged(
    prediction: PredictionRecord,
    job: JobRecord | None,
    homes: Homes,
    facts: StepFacts | None,
    now: float,
) -> PredictionRecord:
    """Return a prediction as it stands now; the same object if nothing happened.

    ``facts`` are those of the job's present placement, None until enough of its steps are known.
    """
    if prediction.spec:
        if job is not None and facts is not None and (job.ended or _there(prediction, job, homes)):
            known = replace(prediction, job=job.name, submitted_at=job.submitted_at)
            return met(known, facts.step_s, now)
    elif job is None or job.ended or job.submitted_at != prediction.submitted_at:
        return replace(prediction, state="expired")
    elif _there(prediction, job, homes) and facts is not None:
        return met(prediction, facts.step_s, now)
    if now - prediction.made_at > OPEN_S:
        return replace(prediction, state="expired")
    return prediction


def _there(prediction: PredictionRecord, job: JobRecord, homes: Homes) -> bool:
    return tuple(prediction.homes) == job.endpoints and all(
        homes.get(e) == home for e, home in prediction.homes.items()
    )


def _same(prediction: PredictionRecord, jobs: Sequence[JobRecord]) -> JobRecord | None:
    """Return the job that a comparison's prediction is about: one that runs, or the last ended.

    An ended one must have ended where the prediction supposes it, after it was made.
    """
    wanted = tuple(prediction.homes.values())
    found = [
        job
        for job in jobs
        if job.request.project == prediction.project
        and (
            job.state == "running"
            or (
                job.ended
                and job.final_homes == wanted
                and (job.finished_at or 0.0) >= prediction.made_at
            )
        )
        and spec_of(job.request) == prediction.spec
    ]
    return max(found, key=lambda job: (not job.ended, job.submitted_at), default=None)


def prediction_view(record: PredictionRecord) -> PredictionView:
    """Return a prediction's document."""
    known = record.low_s is not None and record.high_s is not None
    return PredictionView(
        id=record.id,
        job=record.job,
        cause=record.cause,
        made_at=record.made_at,
        homes=dict(record.homes),
        step_s=RangeView(low=record.low_s, high=record.high_s) if known else None,
        step_before_s=record.step_before_s,
        measured_s=record.measured_s,
        measured_at=record.measured_at,
        error=record.error,
        basis=list(record.basis),
        state=record.state,
    )
