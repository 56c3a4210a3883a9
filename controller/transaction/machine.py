"""The regroup transaction: a pure state machine, typed events in, instructions out.

admit → quiesce → drain → switch → qualify → route → resume → commit → done

After a failure in quiesce, drain, switch or qualify, or an operator's abort before the paths
are proven, the transaction goes ``back``: the old circuits are restored and qualified, the old
flows are installed, the jobs resume, and the new ports that did not carry light are quarantined.

Invariants, checked by ``validate`` after every event in the tests:

1. Light is touched only after every job to be quiesced is, and the aggregators hold the
   traffic of the moving endpoints.
2. A job resumes only when each of its moving endpoints has a proven path, or the light was
   never touched; a job with a lost endpoint is failed, never resumed. (An old path whose
   aggregator cannot be asked counts as restored: losing the controller's session to an
   aggregator costs no path, and its flows are repaired when it reconnects.)
3. ``committed`` means that every path of the new epoch is proven.
4. After the new paths are proven and logged, the transaction never goes back.
5. The transaction waits for an optical switch that vanished after the cut, AWAY_ATTEMPTS times,
   before its paths count as lost: most come back, and then the old circuits are restored.
6. Every state but ``done`` waits for something, and one DeadlinePassed ends each wait with a
   bounded number of repetitions: every sequence of events ends.
"""

from __future__ import annotations

from dataclasses import replace

from controller.transaction.instructions import (
    SetDeadline,
)
from controller.transaction.model import (
    AbortAsked,
    DeadlinePassed,
    Event,
    Outcome,
    Phase,
    Transaction,
)
from controller.transaction.phases import (
    LOG,
    LULL,
    PHASES,
    QUIET,
    Result,
    advance,
    after_lull,
    deadline_s,
    enter,
    finish,
    suspected,
    turned,
    with_reason,
)


def begin(tx: Transaction, now: float) -> Result:
    """Start: the intent becomes durable before anything is touched."""
    return enter(tx, Phase.ADMIT, now)


def handle(tx: Transaction, event: Event, now: float) -> Result:
    """Return the state after ``event`` and its instructions. Stale events change nothing."""
    if tx.phase is Phase.DONE:
        return tx, []
    if isinstance(event, AbortAsked):
        return _abort_asked(tx, event)
    if event.step != tx.step:
        return tx, []
    if isinstance(event, DeadlinePassed):
        return _deadline(tx, now)
    return PHASES[tx.phase].on(tx, event, now)


def abortable(tx: Transaction) -> bool:
    """Return whether an AbortAsked would still send the transaction back."""
    return (
        not tx.back
        and tx.phase is not Phase.DONE
        and PHASES[tx.phase].abortable
        and tx.waiting != {LOG}
    )


def _abort_asked(tx: Transaction, event: AbortAsked) -> Result:
    if not abortable(tx):
        return tx, []
    return replace(tx, abort=True, reasons=with_reason(tx.reasons, f"stopped by {event.who}")), []


def _deadline(tx: Transaction, now: float) -> Result:
    """Fail everything that has not answered."""
    reason = f"no answer from {', '.join(sorted(map(str, tx.waiting)))} in {tx.phase}"
    state = replace(tx, reasons=with_reason(tx.reasons, reason))
    if tx.phase is Phase.ADMIT:
        return finish(turned(state))
    if tx.phase is Phase.COMMIT:
        return finish(state)
    if tx.waiting == {LULL} and not tx.abort:
        frozen, orders = after_lull(state, now)
        return frozen, [SetDeadline(frozen.step, deadline_s(frozen)), *orders]
    if tx.waiting <= {LULL, QUIET}:
        return advance(replace(state, waiting=frozenset()), now)
    if tx.phase is Phase.QUALIFY and tx.waiting != {LOG}:
        state = suspected(state, tx.waiting)
    return advance(replace(state, waiting=frozenset(), failed=tx.failed | tx.waiting), now)


def validate(tx: Transaction) -> None:
    """Assert the invariants of one state; AssertionError names the first violated one."""
    if (tx.phase is Phase.DONE) is not (tx.outcome is not None):
        raise AssertionError("done and only done has an outcome")
    if tx.phase is not Phase.DONE and not tx.waiting:
        raise AssertionError(f"{tx.phase} waits for nothing")
    if tx.phase is Phase.DONE and tx.waiting:
        raise AssertionError("done waits for something")
    if tx.cut and not tx.drained:
        raise AssertionError("light touched without a drain")
    if tx.outcome is Outcome.COMMITTED:
        proven = {p.end for p in tx.paths if p.after is not None}
        if not proven <= tx.whole_at.keys():
            raise AssertionError("committed with an unproven path")
    if tx.lost and not tx.back:
        raise AssertionError("an endpoint is lost on the way forward")
    if tx.back and tx.outcome is Outcome.COMMITTED:
        raise AssertionError("committed on the way back")
