"""Steps through a transaction by hand: takes events and keeps all instructions."""

from __future__ import annotations

from controller.devices.aggregators import AttachPoint
from controller.transaction.circuits import EndpointEnd, Link, SwitchChange
from controller.transaction.instructions import (
    Instruction,
)
from controller.transaction.machine import begin, handle, validate
from controller.transaction.model import (
    Cause,
    Drained,
    Event,
    HeldJob,
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
    Path,
    Phase,
    Qualified,
    Quiet,
    Routed,
    Switched,
    Transaction,
    Written,
)
from scheduler.model import Policy

OLD, NEW = AttachPoint("as0", 1), AttachPoint("as1", 1)
GPU0, GPU9 = EndpointEnd("gpu0"), EndpointEnd("gpu9")


def transaction(policy: Policy = Policy.PAUSE) -> Transaction:
    """gpu0 of job red moves from as0 to as1; idle gpu9 on a second switch is lit."""
    other = AttachPoint("as1", 9)
    return Transaction(
        id="t1",
        cause=Cause.REGROUP,
        epoch=7,
        paths=(Path(GPU0, OLD, NEW), Path(GPU9, None, other)),
        changes=(
            SwitchChange(
                "ocs0",
                (Link("ocs0", "e0", "a1", GPU0, OLD),),
                (Link("ocs0", "e0", "b1", GPU0, NEW),),
            ),
            SwitchChange("ocs1", (), (Link("ocs1", "e9", "b9", GPU9, other),)),
        ),
        jobs=(HeldJob("red", policy, ("gpu0", "gpu1")),),
    )


class Walk:
    """Feeds events and keeps all instructions."""

    def __init__(self, tx: Transaction | None = None) -> None:
        self.now = 100.0
        self.tx, self.orders = begin(tx or transaction(), self.now)
        self.all = list(self.orders)
        validate(self.tx)

    def say(self, event: Event) -> Walk:
        self.now += 1
        self.tx, self.orders = handle(self.tx, event, self.now)
        self.all += self.orders
        validate(self.tx)
        return self

    def to(self, phase: Phase) -> Walk:
        """Answer everything with success until ``phase`` is reached."""
        while self.tx.phase is not phase:
            for event in good_answers(self.tx):
                self.say(event)
        return self

    def ordered(self, kind: type[Instruction]) -> list[Instruction]:
        return [order for order in self.orders if isinstance(order, kind)]


def good_answers(tx: Transaction) -> list[Event]:
    return [answer(tx, key, ok=True) for key in sorted(tx.waiting, key=str)]


def answer(tx: Transaction, key: Key, *, ok: bool) -> Event:
    """Return the event that answers ``key`` with success or failure."""
    step = tx.step
    good: Event
    bad: Event
    if key == "log":
        good, bad = Written(step), NotWritten(step, "disk full")
    elif key == "lull":
        good, bad = Lull(step), Lull(step)
    elif key == "quiet":
        good, bad = Quiet(step), Quiet(step)
    elif not isinstance(key, str):
        good, bad = Qualified(step, key, 50.25), NotQualified(step, key, "no answer")
    elif tx.phase is Phase.QUIESCE:
        good, bad = JobQuiesced(step, key), JobNotQuiesced(step, key, "agent away")
    elif tx.phase is Phase.DRAIN:
        good, bad = Drained(step), NotDrained(step, "as0 away")
    elif tx.phase is Phase.SWITCH:
        good, bad = (
            Switched(step, key, 50.0),
            NotSwitched(step, key, "denied", 50.0, (NEW,), tx.back),
        )
    elif tx.phase is Phase.ROUTE:
        good, bad = Routed(step), NotRouted(step, "as0 away")
    else:
        good, bad = JobResumed(step, key), JobNotResumed(step, key, "agent away")
    return good if ok else bad
