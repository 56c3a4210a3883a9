"""The regroup transaction: a pure state machine, typed events in, instructions out.

admit → quiesce → drain → switch → qualify → route → resume → commit → done

A failure in quiesce or drain, in switch or qualify, or an operator's abort before the paths
are proven, turns the transaction ``back``: the old circuits are made again and qualified, the
old flows go in, the jobs resume, and the new ports that did not carry light are quarantined.

Invariants, checked by ``validate`` after every event in the tests:

1. Light is touched only after every job to be quiesced is, and the aggregators hold the
   traffic of the moving endpoints.
2. A job resumes only when each of its moving endpoints has a proven path, or the light was
   never touched; a job with a lost endpoint is failed, never resumed. (An old path whose
   aggregator cannot be asked counts as found again: losing the controller's session to an
   aggregator costs no path, and its flows are put right when it comes back.)
3. ``committed`` means that every path of the new epoch is proven.
4. After the new paths are proven and logged, the transaction never turns back.
5. An optical switch that vanished after the cut is waited for, AWAY_ATTEMPTS times, before
   what it carried counts as lost: most come back, and then the old circuits are made again.
6. Every state but ``done`` waits for something, and one DeadlinePassed ends each wait with a
   bounded number of repetitions: every sequence of events ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from controller.transaction.instructions import (
    AwaitQuiet,
    SetDeadline,
)
from controller.transaction.model import (
    AbortAsked,
    AllQualified,
    DeadlinePassed,
    Drained,
    Event,
    JobNotQuiesced,
    JobNotResumed,
    JobQuiesced,
    JobResumed,
    Lull,
    NotDrained,
    NotQualified,
    NotRouted,
    NotSwitched,
    NotWritten,
    Outcome,
    Phase,
    Qualified,
    Quiet,
    Routed,
    Switched,
    Transaction,
    Written,
)
from controller.transaction.phases import (
    FLOWS,
    LOG,
    LULL,
    QUIET,
    Result,
    advance,
    deadline_s,
    enter,
    finish,
    quiesce_jobs,
    turned,
)
from scheduler.model import Policy


def begin(tx: Transaction, now: float) -> Result:
    """Start: the intent becomes durable before anything is touched."""
    return enter(tx, Phase.ADMIT, now)


def handle(tx: Transaction, event: Event, now: float) -> Result:
    """Return the state after ``event`` and what to do about it. Stale events change nothing."""
    if tx.phase is Phase.DONE:
        return tx, []
    if isinstance(event, AbortAsked):
        return _abort_asked(tx, event)
    if event.step != tx.step:
        return tx, []
    if isinstance(event, DeadlinePassed):
        return _deadline(tx, now)
    return _HANDLERS[tx.phase](tx, event, now)


def abortable(tx: Transaction) -> bool:
    """Say whether an AbortAsked would still turn the transaction back."""
    return not tx.back and tx.phase in _ABORTABLE and tx.waiting != {LOG}


def validate(tx: Transaction) -> None:
    """Assert the invariants of one state; AssertionError names the first that is broken."""
    if (tx.phase is Phase.DONE) is not (tx.outcome is not None):
        raise AssertionError("done and only done has an outcome")
    if tx.phase is not Phase.DONE and not tx.waiting:
        raise AssertionError(f"{tx.phase} waits for nothing")
    if tx.phase is Phase.DONE and tx.waiting:
        raise AssertionError("done waits for something")
    if tx.cut and not tx.drained:
        raise AssertionError("light touched without a drain")
    if tx.outcome is Outcome.COMMITTED:
        proven = {p.endpoint for p in tx.paths if p.after is not None}
        if not proven <= tx.whole_at.keys():
            raise AssertionError("committed with an unproven path")
    if tx.lost and not tx.back:
        raise AssertionError("an endpoint is lost on the way forward")
    if tx.back and tx.outcome is Outcome.COMMITTED:
        raise AssertionError("committed on the way back")


# --- events, one handler per phase --------------------------------------------------------


def _answered(tx: Transaction, key: str, now: float, reason: str | None = None) -> Result:
    """Take ``key`` off the waiting list; with a reason it has failed."""
    if key not in tx.waiting:
        return tx, []
    state = replace(
        tx,
        waiting=tx.waiting - {key},
        failed=tx.failed if reason is None else tx.failed | {key},
        reasons=tx.reasons if reason is None else _with(tx.reasons, reason),
    )
    return (state, []) if state.waiting else advance(state, now)


def _with(reasons: tuple[str, ...], reason: str) -> tuple[str, ...]:
    """A step that is repeated fails for the same reason; it is worth telling once."""
    return reasons if reason in reasons else (*reasons, reason)


def _on_admit(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Written():
            return _answered(tx, LOG, now)
        case NotWritten(reason=reason):
            return finish(replace(turned(tx), reasons=(*tx.reasons, reason)))
    return tx, []


def _on_quiesce(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Lull():
            return _after_lull(tx, now)
        case JobQuiesced(job=job):
            known = replace(tx, settled=tx.settled | {job}) if event.settled else tx
            if tx.waiting == {job} and not tx.failed and not tx.abort:
                return _await_quiet(known, now)
            return _answered(known, job, now)
        case JobNotQuiesced(job=job, reason=reason):
            return _answered(tx, job, now, reason)
        case Quiet():
            return _answered(tx, QUIET, now)
    return tx, []


def _after_lull(tx: Transaction, now: float) -> Result:
    if LULL not in tx.waiting or tx.abort:
        return _answered(tx, LULL, now)
    waiting, state, orders = quiesce_jobs(tx)
    return replace(state, waiting=frozenset(waiting)), orders


def _await_quiet(tx: Transaction, now: float) -> Result:
    """Bytes still in flight when the light goes cost a retransmission time-out each."""
    frozen = {job.name: job.endpoints for job in tx.jobs if job.policy is Policy.PAUSE}
    restless = [name for name in tx.quiesced if name in frozen and name not in tx.settled]
    endpoints = tuple(e for name in restless for e in frozen[name])
    if not endpoints:
        return enter(replace(tx, waiting=frozenset()), Phase.DRAIN, now)
    return replace(tx, waiting=frozenset({QUIET})), [AwaitQuiet(tx.step, endpoints)]


def _on_drain(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Drained():
            return _answered(tx, FLOWS, now)
        case NotDrained(reason=reason):
            return _answered(tx, FLOWS, now, reason)
    return tx, []


def _on_switch(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Switched(switch=switch, broken_at=at):
            return _answered(_broken(tx, switch, at), switch, now)
        case NotSwitched(switch=switch, reason=reason) if switch in tx.waiting:
            state = _broken(tx, switch, event.broken_at)
            if event.away:
                state = replace(state, away=state.away | {switch})
            if not tx.back:
                state = replace(state, suspects=(*state.suspects, *event.suspects))
            return _answered(state, switch, now, reason)
    return tx, []


def _broken(tx: Transaction, switch: str, at: float | None) -> Transaction:
    if at is None or tx.back or switch not in tx.waiting:
        return tx
    gone = {
        link.endpoint: at
        for change in tx.changes
        if change.switch == switch
        for link in change.delete
    }
    return replace(tx, broken_at={**gone, **tx.broken_at})


def _on_qualify(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Qualified(endpoint=endpoint, at=at):
            return _proven(tx, {endpoint: at}, now)
        case AllQualified(at=at):
            return _proven(tx, at, now)
        case NotQualified(endpoint=endpoint, reason=reason, blame=blame) if endpoint in tx.waiting:
            unclear = replace(tx, unclear=tx.unclear | {endpoint})
            state = _suspected(tx, {endpoint}) if blame else unclear
            return _answered(state, endpoint, now, reason)
        case Written() if tx.waiting == {LOG}:
            return enter(tx, Phase.ROUTE, now)
        case NotWritten(reason=reason) if tx.waiting == {LOG}:
            return _answered(tx, LOG, now, reason)
    return tx, []


def _proven(tx: Transaction, at: Mapping[str, float], now: float) -> Result:
    fresh = {endpoint: at[endpoint] for endpoint in at if endpoint in tx.waiting}
    if not fresh:
        return tx, []
    waiting, whole_at = tx.waiting - fresh.keys(), {**tx.whole_at, **fresh}
    state = replace(tx, waiting=waiting, whole_at=whole_at)
    return (state, []) if waiting else advance(state, now)


def _suspected(tx: Transaction, endpoints: set[str]) -> Transaction:
    if tx.back:
        return tx
    ports = tuple(p.after for p in tx.paths if p.endpoint in endpoints and p.after is not None)
    return replace(tx, suspects=(*tx.suspects, *ports))


def _on_route(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Routed():
            return _answered(tx, FLOWS, now)
        case NotRouted(reason=reason):
            return _answered(tx, FLOWS, now, reason)
    return tx, []


def _on_resume(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case JobResumed(job=job):
            return _answered(tx, job, now)
        case JobNotResumed(job=job, reason=reason):
            return _answered(tx, job, now, reason)
    return tx, []


def _on_commit(tx: Transaction, event: Event, now: float) -> Result:
    match event:
        case Written():
            return finish(tx)
        case NotWritten(reason=reason):
            # The paths are proven and logged as such; recovery finds the same end.
            return finish(replace(tx, reasons=(*tx.reasons, reason)))
    return tx, []


_HANDLERS: dict[Phase, Callable[[Transaction, Event, float], Result]] = {
    Phase.ADMIT: _on_admit,
    Phase.QUIESCE: _on_quiesce,
    Phase.DRAIN: _on_drain,
    Phase.SWITCH: _on_switch,
    Phase.QUALIFY: _on_qualify,
    Phase.ROUTE: _on_route,
    Phase.RESUME: _on_resume,
    Phase.COMMIT: _on_commit,
}


def _abort_asked(tx: Transaction, event: AbortAsked) -> Result:
    if not abortable(tx):
        return tx, []
    return replace(tx, abort=True, reasons=_with(tx.reasons, f"stopped by {event.who}")), []


_ABORTABLE = frozenset({Phase.QUIESCE, Phase.DRAIN, Phase.SWITCH, Phase.QUALIFY})


def _deadline(tx: Transaction, now: float) -> Result:
    """What still waits has failed."""
    reason = f"no answer from {', '.join(sorted(tx.waiting))} in {tx.phase}"
    state = replace(tx, reasons=_with(tx.reasons, reason))
    if tx.phase is Phase.ADMIT:
        return finish(turned(state))
    if tx.phase is Phase.COMMIT:
        return finish(state)
    if tx.waiting == {LULL} and not tx.abort:
        frozen, orders = _after_lull(state, now)
        return frozen, [SetDeadline(frozen.step, deadline_s(frozen)), *orders]
    if tx.waiting <= {LULL, QUIET}:
        return advance(replace(state, waiting=frozenset()), now)
    if tx.phase is Phase.QUALIFY and tx.waiting != {LOG}:
        state = _suspected(state, set(tx.waiting))
    return advance(replace(state, waiting=frozenset(), failed=tx.failed | tx.waiting), now)
