"""The phases of a transaction: the instructions, answers and successor of each. Pure.

``PHASES`` is the one place that lists them. The rules common to all are in
``controller.transaction.machine``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from controller.transaction.circuits import End, endpoint_of
from controller.transaction.instructions import (
    AwaitLull,
    AwaitQuiet,
    Drain,
    FailJob,
    Instruction,
    Qualify,
    QuiesceJob,
    ResumeJob,
    Route,
    SetDeadline,
    Switch,
    WriteLog,
)
from controller.transaction.model import (
    AllQualified,
    Drained,
    Event,
    JobNotQuiesced,
    JobNotResumed,
    JobQuiesced,
    JobResumed,
    Key,
    Lull,
    NotDrained,
    NotQualified,
    NotRouted,
    NotSwitched,
    NotWritten,
    Phase,
    PhaseTime,
    Qualified,
    Quiet,
    Routed,
    Switched,
    Transaction,
    Written,
)
from scheduler.model import Policy

Result = tuple[Transaction, list[Instruction]]

Entry = tuple[set[Key], Transaction, list[Instruction]]
"""What a phase waits for, the transaction in it, and what it orders."""

ATTEMPTS = 3
"""How often an irreversible step is tried before the transaction continues without it."""

AWAY_ATTEMPTS = 30
"""How often to wait for a switch that vanished after the cut: ten minutes or more in all."""

LULL = "lull"
QUIET = "quiet"
LOG = "log"
FLOWS = "flows"


@dataclass(slots=True, frozen=True)
class PhaseRules:
    """Defines one phase."""

    enter: Callable[[Transaction], Entry]
    """A phase that waits for nothing is left at once."""
    on: Callable[[Transaction, Event, float], Result]
    """Handles an answer to the present step."""
    leave: Callable[[Transaction, float], Result]
    """Decides what follows when everything has answered."""
    deadline_s: float
    """Longest time of one attempt. Generous: the executor's own time-outs come first, and they
    add up: a durable write waits for its turn (10 s) and for the disk (10 s); a drain for another
    transaction's flows (8 s) and for its own; a rollback for a switch that is away (20 s), for
    its change (28 s) and for its map (8 s)."""
    abortable: bool = False
    """Whether an operator can still turn the transaction back."""


# --- common to all phases ----------------------------------------------------------------


def enter(tx: Transaction, phase: Phase, now: float, *, attempt: int = 0) -> Result:
    """Enter ``phase``; one that has nothing to wait for is left at once."""
    entered = replace(
        tx,
        phase=phase,
        step=tx.step + 1,
        attempt=attempt,
        waiting=frozenset(),
        failed=frozenset(),
        away=frozenset(),
        phases=(*tx.phases, PhaseTime(phase, tx.back, now)) if attempt == 0 else tx.phases,
    )
    waiting, state, instructions = PHASES[phase].enter(entered)
    if not waiting:
        return advance(state, now)
    deadline = SetDeadline(state.step, deadline_s(state))
    return replace(state, waiting=frozenset(waiting)), [deadline, *instructions]


def deadline_s(tx: Transaction) -> float:
    """Return the longest time of the present phase, with its checkpoints or its links on top."""
    if tx.phase is Phase.QUALIFY:
        return PHASES[tx.phase].deadline_s + tx.link_up_s
    if tx.phase is not Phase.QUIESCE:
        return PHASES[tx.phase].deadline_s
    checkpoints = [job.checkpoint_s or 0.0 for job in tx.jobs if job.policy is Policy.RESTART]
    return PHASES[tx.phase].deadline_s + max(checkpoints, default=0.0)


def advance(tx: Transaction, now: float) -> Result:
    """Leave the phase: everything it waited for has answered."""
    return PHASES[tx.phase].leave(tx, now)


def answered(tx: Transaction, key: Key, now: float, reason: str | None = None) -> Result:
    """Remove ``key`` from ``waiting``; with a reason, it has failed."""
    if key not in tx.waiting:
        return tx, []
    state = replace(
        tx,
        waiting=tx.waiting - {key},
        failed=tx.failed if reason is None else tx.failed | {key},
        reasons=tx.reasons if reason is None else with_reason(tx.reasons, reason),
    )
    return (state, []) if state.waiting else advance(state, now)


def with_reason(reasons: tuple[str, ...], reason: str) -> tuple[str, ...]:
    """Add a reason once: a repeated step fails for the same reason again."""
    return reasons if reason in reasons else (*reasons, reason)


def _turning(tx: Transaction) -> bool:
    return not tx.back and (bool(tx.failed) or tx.abort)


def _again(tx: Transaction) -> bool:
    return bool(tx.failed) and tx.attempt + 1 < ATTEMPTS


def turned(tx: Transaction) -> Transaction:
    """Return the transaction going back to the old paths."""
    return replace(tx, back=True)


def finish(tx: Transaction) -> Result:
    """End the transaction with the outcome that its state implies."""
    return replace(tx, phase=Phase.DONE, waiting=frozenset(), outcome=tx.ending), []


# --- admit and commit --------------------------------------------------------------------


def _write(tx: Transaction) -> Entry:
    return {LOG}, tx, [WriteLog(tx.step)]


def _on_admit(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Written():
            return answered(tx, LOG, now)
        case NotWritten(reason=reason):
            return finish(replace(turned(tx), reasons=(*tx.reasons, reason)))
    return tx, []


def _after_admit(tx: Transaction, now: float) -> Result:
    return enter(tx, Phase.QUIESCE, now)


def _commit(tx: Transaction) -> Entry:
    orders: list[Instruction] = [
        FailJob(tx.step, job, f"no path is left for {', '.join(map(str, tx.lost))}")
        for job in sorted(_broken_jobs(tx))
    ]
    orders += [
        FailJob(tx.step, job, "its containers did not resume after the regroup")
        for job in tx.stuck_jobs
    ]
    return {LOG}, tx, [*orders, WriteLog(tx.step)]


def _broken_jobs(tx: Transaction) -> frozenset[str]:
    """Return the jobs that own an endpoint with no path left."""
    lost = {endpoint_of(end) for end in tx.lost}
    return frozenset(job.name for job in tx.jobs if lost & set(job.endpoints))


def _on_commit(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Written():
            return finish(tx)
        case NotWritten(reason=reason):
            # The paths are proven and logged as such; a recovery reaches the same end.
            return finish(replace(tx, reasons=(*tx.reasons, reason)))
    return tx, []


def _after_commit(tx: Transaction, _now: float) -> Result:
    return finish(tx)


# --- quiesce -----------------------------------------------------------------------------


def _quiesce(tx: Transaction) -> Entry:
    """Wait for a lull of the largest job to be frozen; jobs that restart need none."""
    frozen = [job for job in tx.jobs if job.policy is Policy.PAUSE]
    if not frozen:
        return quiesce_jobs(tx)
    largest = max(frozen, key=lambda job: len(job.endpoints))
    return {LULL}, tx, [AwaitLull(tx.step, largest.endpoints)]


def quiesce_jobs(tx: Transaction) -> Entry:
    """Freeze or stop all jobs at once: waiting for another job's lull only loses time."""
    jobs = [job for job in tx.jobs if job.policy is not Policy.LIVE]
    names = tuple(job.name for job in jobs)
    orders: list[Instruction] = [
        QuiesceJob(tx.step, job.name, job.policy, job.checkpoint_s) for job in jobs
    ]
    return set(names), replace(tx, quiesced=names), orders


def _on_quiesce(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Lull():
            return after_lull(tx, now)
        case JobQuiesced(job=job):
            known = replace(tx, settled=tx.settled | {job}) if event.settled else tx
            if tx.waiting == {job} and not tx.failed and not tx.abort:
                return _await_quiet(known, now)
            return answered(known, job, now)
        case JobNotQuiesced(job=job, reason=reason):
            return answered(tx, job, now, reason)
        case Quiet():
            return answered(tx, QUIET, now)
    return tx, []


def after_lull(tx: Transaction, now: float) -> Result:
    """Freeze the jobs at the lull; after an abort, only end the wait for it."""
    if LULL not in tx.waiting or tx.abort:
        return answered(tx, LULL, now)
    waiting, state, orders = quiesce_jobs(tx)
    return replace(state, waiting=frozenset(waiting)), orders


def _await_quiet(tx: Transaction, now: float) -> Result:
    """Wait for bytes in flight: each lost one costs a retransmission time-out."""
    frozen = {job.name: job.endpoints for job in tx.jobs if job.policy is Policy.PAUSE}
    unsettled = [name for name in tx.quiesced if name in frozen and name not in tx.settled]
    endpoints = tuple(e for name in unsettled for e in frozen[name])
    if not endpoints:
        return enter(replace(tx, waiting=frozenset()), Phase.DRAIN, now)
    return replace(tx, waiting=frozenset({QUIET})), [AwaitQuiet(tx.step, endpoints)]


def _after_quiesce(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.RESUME, now)
    return enter(tx, Phase.DRAIN, now)


# --- drain -------------------------------------------------------------------------------


def _drain(tx: Transaction) -> Entry:
    return {FLOWS}, replace(tx, drained=True), [Drain(tx.step, tx.target)]


def _on_drain(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Drained():
            return answered(tx, FLOWS, now)
        case NotDrained(reason=reason):
            return answered(tx, FLOWS, now, reason)
    return tx, []


def _after_drain(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.ROUTE, now)
    return enter(tx, Phase.SWITCH, now)


# --- switch ------------------------------------------------------------------------------


def _switch(tx: Transaction) -> Entry:
    changes = [change.undone() if tx.back else change for change in tx.changes]
    orders: list[Instruction] = [Switch(tx.step, change) for change in changes]
    return {change.switch for change in changes}, replace(tx, cut=True), orders


def _on_switch(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Switched(switch=switch, broken_at=at):
            return answered(_broken(tx, switch, at), switch, now)
        case NotSwitched(switch=switch, reason=reason) if switch in tx.waiting:
            state = _broken(tx, switch, event.broken_at)
            if event.away:
                state = replace(state, away=state.away | {switch})
            if not tx.back:
                state = replace(state, suspects=(*state.suspects, *event.suspects))
            return answered(state, switch, now, reason)
    return tx, []


def _broken(tx: Transaction, switch: str, at: float | None) -> Transaction:
    if at is None or tx.back or switch not in tx.waiting:
        return tx
    gone = {
        link.end: at for change in tx.changes if change.switch == switch for link in change.delete
    }
    return replace(tx, broken_at={**gone, **tx.broken_at})


def _after_switch(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.SWITCH, now)
    if _again(tx) or (tx.away and tx.attempt + 1 < AWAY_ATTEMPTS):
        return enter(tx, Phase.SWITCH, now, attempt=tx.attempt + 1)
    return enter(tx, Phase.QUALIFY, now)


# --- qualify -----------------------------------------------------------------------------


def _qualify(tx: Transaction) -> Entry:
    orders: list[Instruction] = [Qualify(tx.step, end, point) for end, point in tx.proving.items()]
    return set(tx.proving), replace(tx, whole_at={}, unclear=frozenset()), orders


def _on_qualify(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Qualified(end=end, at=at):
            return _proven(tx, {end: at}, now)
        case AllQualified(at=at):
            return _proven(tx, at, now)
        case NotQualified(end=end, reason=reason, blame=blame) if end in tx.waiting:
            unclear = replace(tx, unclear=tx.unclear | {end})
            state = suspected(tx, {end}) if blame else unclear
            return answered(state, end, now, reason)
        case Written() if tx.waiting == {LOG}:
            return enter(tx, Phase.ROUTE, now)
        case NotWritten(reason=reason) if tx.waiting == {LOG}:
            return answered(tx, LOG, now, reason)
    return tx, []


def _proven(tx: Transaction, at: Mapping[End, float], now: float) -> Result:
    fresh = {end: at[end] for end in at if end in tx.waiting}
    if not fresh:
        return tx, []
    waiting, whole_at = tx.waiting - fresh.keys(), {**tx.whole_at, **fresh}
    state = replace(tx, waiting=waiting, whole_at=whole_at)
    return (state, []) if waiting else advance(state, now)


def suspected(tx: Transaction, ends: Collection[Key]) -> Transaction:
    """Suspect the new ports of these ends; going back, suspect none."""
    if tx.back:
        return tx
    ports = tuple(p.after for p in tx.paths if p.end in ends and p.after is not None)
    return replace(tx, suspects=(*tx.suspects, *ports))


def _after_qualify(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.SWITCH, now)
    if not tx.back:
        return _log_proven(tx)
    if _again(tx):
        return enter(tx, Phase.QUALIFY, now, attempt=tx.attempt + 1)
    lost = tuple(p.end for p in tx.paths if p.end in tx.failed - tx.unclear)
    return enter(replace(tx, lost=lost), Phase.ROUTE, now)


def _log_proven(tx: Transaction) -> Result:
    """Log the point of no return: from here on a crash converges to the new epoch."""
    logged = replace(tx, step=tx.step + 1, waiting=frozenset({LOG}))
    deadline = SetDeadline(logged.step, PHASES[Phase.ADMIT].deadline_s)
    return logged, [deadline, WriteLog(logged.step)]


# --- route -------------------------------------------------------------------------------


def _route(tx: Transaction) -> Entry:
    return {FLOWS}, tx, [Route(tx.step, tx.target)]


def _on_route(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Routed():
            return answered(tx, FLOWS, now)
        case NotRouted(reason=reason):
            return answered(tx, FLOWS, now, reason)
    return tx, []


def _after_route(tx: Transaction, now: float) -> Result:
    if _again(tx):
        return enter(tx, Phase.ROUTE, now, attempt=tx.attempt + 1)
    return enter(tx, Phase.RESUME, now)


# --- resume ------------------------------------------------------------------------------


def _resume(tx: Transaction) -> Entry:
    broken = _broken_jobs(tx)
    policies = {job.name: job.policy for job in tx.jobs}
    todo = [name for name in tx.quiesced if name not in broken]
    return set(todo), tx, [ResumeJob(tx.step, name, policies[name]) for name in todo]


def _on_resume(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case JobResumed(job=job):
            return answered(tx, job, now)
        case JobNotResumed(job=job, reason=reason):
            return answered(tx, job, now, reason)
    return tx, []


def _after_resume(tx: Transaction, now: float) -> Result:
    return enter(replace(tx, stuck_jobs=tuple(sorted(map(str, tx.failed)))), Phase.COMMIT, now)


PHASES: dict[Phase, PhaseRules] = {
    Phase.ADMIT: PhaseRules(_write, _on_admit, _after_admit, 25.0),
    Phase.QUIESCE: PhaseRules(_quiesce, _on_quiesce, _after_quiesce, 30.0, abortable=True),
    Phase.DRAIN: PhaseRules(_drain, _on_drain, _after_drain, 20.0, abortable=True),
    Phase.SWITCH: PhaseRules(_switch, _on_switch, _after_switch, 60.0, abortable=True),
    Phase.QUALIFY: PhaseRules(_qualify, _on_qualify, _after_qualify, 25.0, abortable=True),
    Phase.ROUTE: PhaseRules(_route, _on_route, _after_route, 20.0),
    Phase.RESUME: PhaseRules(_resume, _on_resume, _after_resume, 120.0),
    Phase.COMMIT: PhaseRules(_commit, _on_commit, _after_commit, 25.0),
}
