"""Makes job records of what another engine says of its jobs. Pure.

lightloom's queue never has such a job, and nothing here judges one: it waits, runs and ends because
its engine says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from controller.devices.observed import EngineJob, Turn
from controller.schema.base import JobState
from controller.state.records import JobRecord, JobSpec, Observed
from scheduler.model import Locality, Policy, RankOrder

GONE = "its engine does not know it any more: how it ended is not known"
"""Reason of a job that left the engine's memory while lightloom was away."""


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineRules:
    """What the site says of an engine's jobs."""

    engine: str
    """``slurm``."""
    endpoints: frozenset[str]
    """The endpoints that are the engine's."""
    locality: Locality = Locality.REGROUP
    policy: Policy = Policy.PAUSE


@dataclass(slots=True, frozen=True)
class _End:
    state: JobState
    reason: str
    at: float
    exit_code: int | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class FoldContext:
    """What the records depend on besides the engine's words."""

    now: float
    epoch: int
    """Epoch of jobs that get their endpoints at this moment."""
    homes: Mapping[str, str | None]
    holder: Callable[[str], str | None]
    """The job that holds an endpoint, None if none does."""


def name_of(key: str) -> str:
    """Return the name of an engine's job among lightloom's: ``slurm:4711`` is ``slurm-4711``."""
    return key.replace(":", "-")


def fold(
    records: Mapping[str, JobRecord],
    seen: Iterable[EngineJob],
    rules: EngineRules,
    moment: FoldContext,
    *,
    whole: bool = False,
) -> tuple[JobRecord, ...]:
    """Return the records to put, in this order: endpoints become free before others get them.

    A job that has just been restarted appears twice, first without its old endpoints. With
    ``whole`` the engine has told everything: a job that had ended may be back, because an engine
    that was killed has forgotten the end.
    """
    freed: list[JobRecord] = []
    made: list[JobRecord] = []
    left: dict[str, str | None] = {}
    """Who holds an endpoint after the records in ``freed``."""
    now_seen = list(seen)
    for one in now_seen:
        record = records.get(name_of(one.key))
        if record is None or not record.holding:
            continue
        gone = _released(record, one, moment)
        if gone is not None:
            freed.append(gone)
            left.update(dict.fromkeys(record.endpoints))
    ended = {record.name for record in freed if record.ended}
    between = {record.name: record for record in freed}

    def holder(endpoint: str) -> str | None:
        return left[endpoint] if endpoint in left else moment.holder(endpoint)

    for one in now_seen:
        name = name_of(one.key)
        if name in ended:
            continue
        record = between.get(name) or records.get(name)
        back = whole and record is not None and record.ended and one.turn is not Turn.ENDED
        found = _now(None if back else record, one, rules, moment, holder)
        if found is not None and found != record:
            made.append(found)
            if found.holding:
                left.update(dict.fromkeys(found.endpoints, name))
    return (*freed, *made)


def gone(record: JobRecord, moment: FoldContext) -> JobRecord:
    """Return the record of a job that the engine does not know any more."""
    return _ended(record, _End("cancelled", GONE, moment.now), moment)


def _released(record: JobRecord, seen: EngineJob, moment: FoldContext) -> JobRecord | None:
    """Return the record without its endpoints when the engine has taken them back; None if not."""
    told = record.observed
    if seen.turn is Turn.ENDED and (told is None or told.attempt == seen.attempt):
        return _ended(record, _end(seen, moment), moment)
    same = told is not None and told.attempt == seen.attempt and seen.turn is not Turn.WAITS
    if same and set(record.endpoints) <= set(seen.endpoints):
        return None
    return replace(
        record, state="waiting", endpoints=(), exit_codes=(), started_at=None, reason=seen.reason
    )


def _now(
    record: JobRecord | None,
    seen: EngineJob,
    rules: EngineRules,
    moment: FoldContext,
    holder: Callable[[str], str | None],
) -> JobRecord | None:
    """Return the record that says what the engine says; None for a job that leaves none."""
    fresh = record is None or (
        record.ended
        and (record.submitted_at, _attempt(record)) != (seen.submitted_at, seen.attempt)
    )
    if record is not None and record.ended and not fresh:
        return None
    if seen.turn is Turn.ENDED:
        if record is None or record.ended:
            return None
        return _ended(record, _end(seen, moment), moment)
    if seen.wants.count < 1:
        return None
    endpoints, problems = _theirs(seen, rules, holder)
    state = _state(seen) if endpoints else "waiting"
    base = record
    if base is None or fresh or base.submitted_at != seen.submitted_at:
        base = JobRecord(name_of(seen.key), _spec(seen, rules), "", seen.submitted_at)
    told = base.observed
    answered = told.answered if told is not None and told.attempt == seen.attempt else ""
    holds = bool(endpoints)
    return replace(
        base,
        request=_spec(seen, rules),
        state=state,
        reason=seen.reason if state == "waiting" else "",
        endpoints=endpoints,
        exit_codes=(None,) * len(endpoints),
        epoch=(base.epoch if base.holding else moment.epoch) if holds else base.epoch,
        restarts=seen.attempt,
        started_at=_started_at(base, seen, moment) if holds else None,
        user=seen.user,
        observed=Observed(
            engine=rules.engine,
            key=seen.key,
            attempt=seen.attempt,
            revision=seen.revision,
            turn=seen.turn,
            title=seen.name,
            scope=seen.scope,
            servers=seen.wants.servers,
            leaves=seen.wants.leaves,
            curable=seen.curable,
            ahead=seen.ahead,
            problems=(*seen.wants.problems, *problems),
            answered=answered,
        ),
    )


def _theirs(
    seen: EngineJob, rules: EngineRules, holder: Callable[[str], str | None]
) -> tuple[tuple[str, ...], list[str]]:
    """Return the endpoints that the job alone has, and what is wrong with the others."""
    problems = [f"node {node} is not in the site file" for node in seen.strangers]
    mine: list[str] = []
    if not _holds(seen):
        return (), problems
    name = name_of(seen.key)
    for endpoint in dict.fromkeys(seen.endpoints):
        other = holder(endpoint)
        if endpoint not in rules.endpoints:
            problems.append(f"{endpoint} is not the engine's in the site file")
        elif other not in (None, name):
            problems.append(f"{endpoint} is shared with job {other}, for which it counts")
        else:
            mine.append(endpoint)
    return tuple(mine), problems


def _holds(seen: EngineJob) -> bool:
    return seen.turn in (Turn.ALLOCATED, Turn.RUNNING)


def _state(seen: EngineJob) -> JobState:
    if seen.turn is Turn.ALLOCATED:
        return "starting"
    return "paused" if seen.suspended else "running"


def _attempt(record: JobRecord) -> int:
    return 0 if record.observed is None else record.observed.attempt


def _started_at(record: JobRecord, seen: EngineJob, moment: FoldContext) -> float | None:
    if seen.turn is Turn.ALLOCATED:
        return None
    if seen.started_at is not None:
        return seen.started_at
    return moment.now if record.started_at is None else record.started_at


def _spec(seen: EngineJob, rules: EngineRules) -> JobSpec:
    """Return what the job asks for.

    lightloom does not restart an engine's job; one that cannot be frozen runs while light moves.
    """
    wants = seen.wants
    policy = wants.policy or rules.policy
    if policy is Policy.RESTART:
        policy = Policy.PAUSE
    return JobSpec(
        name=name_of(seen.key),
        count=wants.count,
        project=rules.engine,
        locality=wants.locality or rules.locality,
        policy=policy if seen.scope else Policy.LIVE,
        rank_order=RankOrder.PLACED,
        pinned=wants.pinned or seen.ending,
        dark_tolerance_s=wants.dark_tolerance_s,
        time_limit_s=wants.time_limit_s,
    )


def _end(seen: EngineJob, moment: FoldContext) -> _End:
    at = moment.now if seen.ended_at is None else seen.ended_at
    return _End(seen.end, seen.reason, at, seen.exit_code)


def _ended(record: JobRecord, end: _End, moment: FoldContext) -> JobRecord:
    told = record.observed
    return replace(
        record,
        state=end.state,
        reason=end.reason,
        finished_at=end.at,
        exit_codes=(end.exit_code,) * len(record.endpoints),
        final_homes=tuple(moment.homes.get(e) for e in record.endpoints),
        observed=None if told is None else replace(told, turn=Turn.ENDED, curable=False),
    )
