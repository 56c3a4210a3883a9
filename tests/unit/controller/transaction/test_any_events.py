"""For any sequence of events the transaction ends, and no instruction comes too early."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.transaction.circuits import End, of_endpoints
from controller.transaction.instructions import (
    Instruction,
    ResumeJob,
    Route,
    Switch,
)
from controller.transaction.machine import handle
from controller.transaction.model import (
    AbortAsked,
    AllQualified,
    DeadlinePassed,
    Drained,
    Event,
    JobQuiesced,
    Phase,
    Qualified,
    Transaction,
    Written,
)
from scheduler.model import Policy
from tests.unit.controller.transaction.walk import Walk, answer, transaction


class Monitor:
    """Watches a walk for an instruction that comes too early."""

    def __init__(self) -> None:
        self.frozen: set[str] = set()
        self.drained = False
        self.proven: set[End] = set()
        self.logged_proven = False

    def order(self, tx: Transaction, order: Instruction) -> None:
        match order:
            case Switch() if not tx.back:
                assert self.frozen >= {j.name for j in tx.jobs if j.policy is not Policy.LIVE}
                assert self.drained
                assert not self.logged_proven
            case Switch():
                assert not self.logged_proven
            case Route() if not tx.back:
                assert self.proven >= {p.end for p in tx.paths if p.after}
            case ResumeJob(job=job):
                mine = {e for j in tx.jobs if j.name == job for e in j.endpoints}
                moved = mine & set(tx.endpoints)
                assert not tx.cut or moved <= of_endpoints(dict.fromkeys(self.proven)).keys()
            case _:
                pass

    def event(self, before: Transaction, event: Event) -> None:
        if isinstance(event, AbortAsked) or event.step != before.step:
            return
        match event:
            case JobQuiesced(job=job):
                self.frozen.add(job)
            case Drained() if before.phase is Phase.DRAIN:
                self.drained = True
            case Qualified(end=end) if before.phase is Phase.QUALIFY:
                self.proven.add(end)
            case AllQualified(at=at) if before.phase is Phase.QUALIFY:
                self.proven |= at.keys()
            case Written() if before.phase is Phase.QUALIFY:
                self.logged_proven = True
            case _:
                pass


choices = st.tuples(
    st.sampled_from(["good", "good", "good", "together", "bad", "deadline", "abort", "stale"]),
    st.integers(0, 10),
)


@settings(max_examples=400)
@given(st.sampled_from(list(Policy)), st.lists(choices, max_size=80))
def test_any_sequence_of_events_ends_with_nothing_out_of_order(
    policy: Policy, script: list[tuple[str, int]]
) -> None:
    walk, monitor = Walk(transaction(policy)), Monitor()

    def step(event: Event) -> None:
        before = walk.tx
        monitor.event(before, event)
        if not before.back and walk.say(event).tx.back:
            monitor.proven.clear()  # the old paths must be proven again
        elif before.back:
            walk.say(event)
        for order in walk.orders:
            monitor.order(walk.tx, order)

    for what, number in script:
        if walk.tx.phase is Phase.DONE:
            break
        key = sorted(walk.tx.waiting, key=str)[number % len(walk.tx.waiting)]
        match what:
            case "deadline":
                step(DeadlinePassed(walk.tx.step))
            case "abort":
                step(AbortAsked())
            case "stale":
                step(answer(replace(walk.tx, step=walk.tx.step - 1), key, ok=True))
            case "together" if walk.tx.phase is Phase.QUALIFY and "log" not in walk.tx.waiting:
                some = sorted(walk.tx.proving, key=str)[: 1 + number % 2]
                step(AllQualified(walk.tx.step, dict.fromkeys(some, 50.25)))
            case _:
                step(answer(walk.tx, key, ok=what != "bad"))
    for _ in range(60):
        if walk.tx.phase is Phase.DONE:
            break
        step(DeadlinePassed(walk.tx.step))
    assert walk.tx.phase is Phase.DONE
    assert walk.tx.outcome is not None
    after = handle(walk.tx, DeadlinePassed(walk.tx.step), 0.0)
    assert after == (walk.tx, [])
