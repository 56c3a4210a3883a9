"""Entering and leaving the phases of a transaction: what each orders, and what follows it. Pure.

The rules that bind them stand in ``controller.transaction.machine``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controller.transaction.instructions import (
    AwaitLull,
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
    Outcome,
    Phase,
    PhaseTime,
    Transaction,
)
from scheduler.model import Policy

Result = tuple[Transaction, list[Instruction]]

DEADLINE_S: dict[Phase, float] = {
    Phase.ADMIT: 25.0,
    Phase.QUIESCE: 30.0,
    Phase.DRAIN: 20.0,
    Phase.SWITCH: 60.0,
    Phase.QUALIFY: 25.0,
    Phase.ROUTE: 20.0,
    Phase.RESUME: 120.0,
    Phase.COMMIT: 25.0,
}
"""Longest time of one attempt of a phase. Generous: the executor's own time-outs come first.

Those add up: a durable write waits for its turn (10 s) and for the disk (10 s); a drain for another
one's flows (8 s) and for its own; a way back for a switch that is away (20 s), for its change
(28 s) and for its map (8 s)."""

ATTEMPTS = 3
"""How often a step that cannot be taken back is tried before the transaction goes on without."""

AWAY_ATTEMPTS = 30
"""How often a switch that vanished after the cut is waited for: ten minutes and more in all."""

LULL = "lull"
QUIET = "quiet"
LOG = "log"
FLOWS = "flows"


# --- entering a phase ---------------------------------------------------------------------


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
    waiting, state, instructions = _ENTRIES[phase](entered)
    if not waiting:
        return advance(state, now)
    deadline = SetDeadline(state.step, deadline_s(state))
    return replace(state, waiting=frozenset(waiting)), [deadline, *instructions]


def deadline_s(tx: Transaction) -> float:
    """Return the longest time of the present phase; a checkpoint's comes on top."""
    if tx.phase is not Phase.QUIESCE:
        return DEADLINE_S[tx.phase]
    checkpoints = [job.checkpoint_s or 0.0 for job in tx.jobs if job.policy is Policy.RESTART]
    return DEADLINE_S[tx.phase] + max(checkpoints, default=0.0)


Entry = tuple[set[str], Transaction, list[Instruction]]


def _write(tx: Transaction) -> Entry:
    return {LOG}, tx, [WriteLog(tx.step)]


def _quiesce(tx: Transaction) -> Entry:
    """The largest job that will be frozen chooses the moment; jobs that restart need none."""
    frozen = [job for job in tx.jobs if job.policy is Policy.PAUSE]
    if not frozen:
        return quiesce_jobs(tx)
    largest = max(frozen, key=lambda job: len(job.endpoints))
    return {LULL}, tx, [AwaitLull(tx.step, largest.endpoints)]


def quiesce_jobs(tx: Transaction) -> Entry:
    """Freeze or stop all jobs at once: one that waits for another one's lull only loses time."""
    jobs = [job for job in tx.jobs if job.policy is not Policy.LIVE]
    names = tuple(job.name for job in jobs)
    orders: list[Instruction] = [
        QuiesceJob(tx.step, job.name, job.policy, job.checkpoint_s) for job in jobs
    ]
    return set(names), replace(tx, quiesced=names), orders


def _drain(tx: Transaction) -> Entry:
    return {FLOWS}, replace(tx, drained=True), [Drain(tx.step, tx.endpoints, tx.target)]


def _switch(tx: Transaction) -> Entry:
    changes = [change.undone() if tx.back else change for change in tx.changes]
    orders: list[Instruction] = [Switch(tx.step, change) for change in changes]
    return {change.switch for change in changes}, replace(tx, cut=True), orders


def _qualify(tx: Transaction) -> Entry:
    orders: list[Instruction] = [
        Qualify(tx.step, endpoint, point) for endpoint, point in tx.target.items() if point
    ]
    waiting = {endpoint for endpoint, point in tx.target.items() if point}
    return waiting, replace(tx, whole_at={}, unclear=frozenset()), orders


def _route(tx: Transaction) -> Entry:
    return {FLOWS}, tx, [Route(tx.step, tx.target)]


def _resume(tx: Transaction) -> Entry:
    broken = _broken_jobs(tx)
    policies = {job.name: job.policy for job in tx.jobs}
    todo = [name for name in tx.quiesced if name not in broken]
    return set(todo), tx, [ResumeJob(tx.step, name, policies[name]) for name in todo]


def _broken_jobs(tx: Transaction) -> frozenset[str]:
    """Jobs that own an endpoint with no path left."""
    return frozenset(job.name for job in tx.jobs if set(job.endpoints) & set(tx.lost))


def _commit(tx: Transaction) -> Entry:
    orders: list[Instruction] = [
        FailJob(tx.step, job, f"no path is left for {', '.join(tx.lost)}")
        for job in sorted(_broken_jobs(tx))
    ]
    orders += [
        FailJob(tx.step, job, "its containers did not resume after the regroup")
        for job in tx.stuck_jobs
    ]
    return {LOG}, tx, [*orders, WriteLog(tx.step)]


_ENTRIES: dict[Phase, Callable[[Transaction], Entry]] = {
    Phase.ADMIT: _write,
    Phase.QUIESCE: _quiesce,
    Phase.DRAIN: _drain,
    Phase.SWITCH: _switch,
    Phase.QUALIFY: _qualify,
    Phase.ROUTE: _route,
    Phase.RESUME: _resume,
    Phase.COMMIT: _commit,
}


# --- leaving a phase ----------------------------------------------------------------------


def advance(tx: Transaction, now: float) -> Result:
    """Everything the phase waited for has answered."""
    return _EXITS[tx.phase](tx, now)


def _turning(tx: Transaction) -> bool:
    return not tx.back and (bool(tx.failed) or tx.abort)


def _again(tx: Transaction) -> bool:
    return bool(tx.failed) and tx.attempt + 1 < ATTEMPTS


def _after_admit(tx: Transaction, now: float) -> Result:
    return enter(tx, Phase.QUIESCE, now)


def _after_quiesce(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.RESUME, now)
    return enter(tx, Phase.DRAIN, now)


def _after_drain(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.ROUTE, now)
    return enter(tx, Phase.SWITCH, now)


def _after_route(tx: Transaction, now: float) -> Result:
    if _again(tx):
        return enter(tx, Phase.ROUTE, now, attempt=tx.attempt + 1)
    return enter(tx, Phase.RESUME, now)


def _after_resume(tx: Transaction, now: float) -> Result:
    return enter(replace(tx, stuck_jobs=tuple(sorted(tx.failed))), Phase.COMMIT, now)


def _after_commit(tx: Transaction, _now: float) -> Result:
    return finish(tx)


def turned(tx: Transaction) -> Transaction:
    """Return the transaction on its way back."""
    return replace(tx, back=True)


def _after_switch(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.SWITCH, now)
    if _again(tx) or (tx.away and tx.attempt + 1 < AWAY_ATTEMPTS):
        return enter(tx, Phase.SWITCH, now, attempt=tx.attempt + 1)
    return enter(tx, Phase.QUALIFY, now)


def _after_qualify(tx: Transaction, now: float) -> Result:
    if _turning(tx):
        return enter(turned(tx), Phase.SWITCH, now)
    if not tx.back:
        return _log_proven(tx)
    if _again(tx):
        return enter(tx, Phase.QUALIFY, now, attempt=tx.attempt + 1)
    lost = tuple(name for name in tx.endpoints if name in tx.failed - tx.unclear)
    return enter(replace(tx, lost=lost), Phase.ROUTE, now)


def _log_proven(tx: Transaction) -> Result:
    """The point of no return: from here on a crash converges to the new epoch."""
    logged = replace(tx, step=tx.step + 1, waiting=frozenset({LOG}))
    deadline = SetDeadline(logged.step, DEADLINE_S[Phase.ADMIT])
    return logged, [deadline, WriteLog(logged.step)]


def finish(tx: Transaction) -> Result:
    """End the transaction with the outcome that its way so far implies."""
    if not tx.back:
        outcome = Outcome.COMMITTED
    else:
        outcome = Outcome.QUARANTINED if tx.lost else Outcome.ROLLED_BACK
    return replace(tx, phase=Phase.DONE, waiting=frozenset(), outcome=outcome), []


_EXITS: dict[Phase, Callable[[Transaction, float], Result]] = {
    Phase.ADMIT: _after_admit,
    Phase.QUIESCE: _after_quiesce,
    Phase.DRAIN: _after_drain,
    Phase.SWITCH: _after_switch,
    Phase.QUALIFY: _after_qualify,
    Phase.ROUTE: _after_route,
    Phase.RESUME: _after_resume,
    Phase.COMMIT: _after_commit,
}
