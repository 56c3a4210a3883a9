"""The transaction's edges, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.transaction.circuits import EndpointEnd
from controller.transaction.instructions import (
    AwaitLull,
    AwaitQuiet,
    Drain,
    FailJob,
    Qualify,
    QuiesceJob,
    ResumeJob,
    Route,
    SetDeadline,
    Switch,
    WriteLog,
)
from controller.transaction.model import (
    AbortAsked,
    AllQualified,
    DeadlinePassed,
    Drained,
    HeldJob,
    JobNotQuiesced,
    JobNotResumed,
    JobQuiesced,
    Lull,
    NotDrained,
    NotQualified,
    NotRouted,
    NotSwitched,
    NotWritten,
    Outcome,
    Phase,
    Qualified,
    Switched,
)
from controller.transaction.phases import ATTEMPTS, AWAY_ATTEMPTS
from scheduler.model import Policy
from tests.unit.controller.transaction.walk import (
    GPU0,
    GPU9,
    NEW,
    OLD,
    Walk,
    good_answers,
    transaction,
)


def test_a_successful_transaction_orders_everything_once_and_in_order() -> None:
    walk = Walk().to(Phase.DONE)
    kinds = [type(order) for order in walk.all if not isinstance(order, SetDeadline)]
    assert kinds == [
        WriteLog,
        AwaitLull,
        QuiesceJob,
        AwaitQuiet,
        Drain,
        Switch,
        Switch,
        Qualify,
        Qualify,
        WriteLog,
        Route,
        ResumeJob,
        WriteLog,
    ]
    assert walk.tx.outcome is Outcome.COMMITTED
    assert walk.tx.dark_time_s == {GPU0: 0.25}  # gpu9 was dark before: nothing was broken
    assert [(p.phase, p.back) for p in walk.tx.phases] == [
        (phase, False) for phase in Phase if phase is not Phase.DONE
    ]


def test_log_that_is_not_durable_touches_nothing() -> None:
    walk = Walk()
    walk.say(NotWritten(walk.tx.step, "disk full"))
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert [type(o) for o in walk.all] == [SetDeadline, WriteLog]


def test_live_jobs_are_not_quiesced() -> None:
    walk = Walk(transaction(Policy.LIVE)).to(Phase.DONE)
    assert not [
        o for o in walk.all if isinstance(o, AwaitLull | QuiesceJob | ResumeJob | AwaitQuiet)
    ]
    assert walk.tx.outcome is Outcome.COMMITTED


def test_restarted_jobs_have_nothing_in_flight_to_wait_for() -> None:
    walk = Walk(transaction(Policy.RESTART)).to(Phase.DONE)
    assert not [o for o in walk.all if isinstance(o, AwaitLull | AwaitQuiet)]
    assert [o.policy for o in walk.all if isinstance(o, ResumeJob)] == [Policy.RESTART]


def test_frozen_jobs_with_nothing_in_flight_need_no_quiet() -> None:
    walk = Walk().to(Phase.QUIESCE)
    walk.say(Lull(walk.tx.step)).say(JobQuiesced(walk.tx.step, "red", settled=True))
    assert walk.tx.phase is Phase.DRAIN
    assert not [o for o in walk.all if isinstance(o, AwaitQuiet)]


def test_only_jobs_that_may_have_bytes_in_flight_need_quiet() -> None:
    begun = transaction()
    jobs = (*begun.jobs, HeldJob("blue", Policy.PAUSE, ("gpu2", "gpu3")))
    walk = Walk(replace(begun, jobs=jobs)).to(Phase.QUIESCE)
    walk.say(Lull(walk.tx.step))
    walk.say(JobQuiesced(walk.tx.step, "red", settled=True))
    walk.say(JobQuiesced(walk.tx.step, "blue"))
    assert walk.orders == [AwaitQuiet(walk.tx.step, ("gpu2", "gpu3"))]


def test_checkpoint_is_waited_for_as_long_as_its_job_says() -> None:
    begun = transaction(Policy.RESTART)
    (job,) = begun.jobs
    walk = Walk(replace(begun, jobs=(replace(job, checkpoint_s=120.0),))).to(Phase.QUIESCE)
    assert [o.checkpoint_s for o in walk.ordered(QuiesceJob)] == [120.0]
    (deadline,) = walk.ordered(SetDeadline)
    assert deadline.after_s > 120.0


def test_job_that_does_not_freeze_is_thawed_and_light_stays() -> None:
    walk = Walk().to(Phase.QUIESCE)
    walk.say(Lull(walk.tx.step))
    walk.say(JobNotQuiesced(walk.tx.step, "red", "agent away"))
    assert [type(o) for o in walk.orders] == [SetDeadline, ResumeJob]
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert not [o for o in walk.all if isinstance(o, Drain | Switch | Route)]


def test_aggregator_that_does_not_drain_gets_its_old_flows() -> None:
    walk = Walk().to(Phase.DRAIN)
    walk.say(NotDrained(walk.tx.step, "as1 away"))
    assert walk.ordered(Route) == [Route(walk.tx.step, {GPU0: OLD, GPU9: None})]
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert not [o for o in walk.all if isinstance(o, Switch)]


def test_switch_that_refuses_is_undone_after_the_others_answered() -> None:
    walk = Walk().to(Phase.SWITCH)
    step = walk.tx.step
    walk.say(NotSwitched(step, "ocs0", "denied", 50.0, (NEW,)))
    assert not walk.orders
    walk.say(Switched(step, "ocs1"))
    undo = walk.ordered(Switch)
    assert [o.change.make for o in undo if isinstance(o, Switch)] == [
        change.delete for change in walk.tx.changes
    ]
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert walk.tx.quarantine == (NEW,)
    assert walk.tx.dark_time_s.keys() == {GPU0}


def test_switch_that_vanished_after_the_cut_is_waited_for() -> None:
    walk = Walk().to(Phase.SWITCH)
    step = walk.tx.step
    walk.say(NotSwitched(step, "ocs0", "ocs0 away", 50.0, away=True)).say(Switched(step, "ocs1"))
    assert (walk.tx.phase, walk.tx.back) == (Phase.SWITCH, True)
    for _ in range(AWAY_ATTEMPTS - 1):
        step = walk.tx.step
        walk.say(Switched(step, "ocs1")).say(NotSwitched(step, "ocs0", "ocs0 away", away=True))
        assert walk.tx.phase is Phase.SWITCH
    walk.to(Phase.DONE)
    assert (walk.tx.outcome, walk.tx.quarantine) == (Outcome.ROLLED_BACK, ())
    assert walk.tx.reasons == ("ocs0 away",)


def test_switch_that_never_comes_back_is_finally_given_up() -> None:
    walk = Walk().to(Phase.SWITCH)
    for _ in range(AWAY_ATTEMPTS + 1):
        for switch in sorted(walk.tx.waiting):
            walk.say(NotSwitched(walk.tx.step, switch, "away", away=True))
    assert walk.tx.phase is Phase.QUALIFY


def test_proofs_that_arrive_together_equal_single_proofs() -> None:
    one_by_one, together = Walk().to(Phase.QUALIFY), Walk().to(Phase.QUALIFY)
    step = together.tx.step
    one_by_one.say(Qualified(step, GPU0, 51.0)).say(Qualified(step, GPU9, 52.0))
    together.now += 1  # one event less
    together.say(AllQualified(step, {GPU0: 51.0, GPU9: 52.0, EndpointEnd("gpu5"): 53.0}))
    assert together.tx == one_by_one.tx
    assert together.orders == one_by_one.orders
    late = together.tx
    assert together.say(AllQualified(step, {GPU0: 60.0})).tx == late


def test_path_that_does_not_qualify_rolls_back_and_names_the_port() -> None:
    walk = Walk().to(Phase.QUALIFY)
    step = walk.tx.step
    walk.say(NotQualified(step, GPU0, "no answer")).say(Qualified(step, GPU9, 51.0))
    assert (walk.tx.phase, walk.tx.back) == (Phase.SWITCH, True)
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert walk.tx.quarantine == (NEW,)
    assert walk.all[-2:] != [] and isinstance(walk.all[-1], WriteLog)
    assert [o.job for o in walk.all if isinstance(o, ResumeJob)] == ["red"]


def test_an_endpoint_with_neither_path_is_quarantined_and_its_job_fails() -> None:
    walk = Walk().to(Phase.QUALIFY)
    step = walk.tx.step
    walk.say(NotQualified(step, GPU0, "no answer")).say(Qualified(step, GPU9, 51.0))
    walk.to(Phase.QUALIFY)
    for _ in range(ATTEMPTS):
        assert walk.tx.phase is Phase.QUALIFY
        walk.say(NotQualified(walk.tx.step, GPU0, "no answer"))
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.QUARANTINED
    assert walk.tx.lost == (GPU0,)
    assert walk.tx.quarantine == ()  # the endpoint is to blame, not the port
    assert not [o for o in walk.all if isinstance(o, ResumeJob)]
    assert [o.job for o in walk.all if isinstance(o, FailJob)] == ["red"]
    assert walk.tx.target[GPU0] is None


def test_path_that_cannot_be_checked_quarantines_nothing() -> None:
    """The session to an aggregator breaks during qualify: rolled back, without a quarantine."""
    walk = Walk().to(Phase.QUALIFY)
    step = walk.tx.step
    walk.say(NotQualified(step, GPU0, "as1 away", blame=False)).say(Qualified(step, GPU9, 51.0))
    walk.to(Phase.QUALIFY)
    for _ in range(ATTEMPTS):
        walk.say(NotQualified(walk.tx.step, GPU0, "as0 away", blame=False))
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert (walk.tx.quarantine, walk.tx.lost) == ((), ())
    assert [o.job for o in walk.all if isinstance(o, ResumeJob)] == ["red"]


def test_route_is_repeated_and_then_left_to_the_reconnection() -> None:
    walk = Walk().to(Phase.ROUTE)
    for _ in range(ATTEMPTS):
        assert walk.tx.phase is Phase.ROUTE
        walk.say(NotRouted(walk.tx.step, "as1 away"))
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.COMMITTED
    assert walk.tx.reasons == ("as1 away",)


def test_job_that_does_not_resume_is_failed() -> None:
    walk = Walk().to(Phase.RESUME)
    walk.say(JobNotResumed(walk.tx.step, "red", "agent away"))
    assert [o.job for o in walk.orders if isinstance(o, FailJob)] == ["red"]
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.COMMITTED


def test_point_of_no_return_that_is_not_durable_rolls_back() -> None:
    walk = Walk().to(Phase.QUALIFY)
    for event in good_answers(walk.tx):
        walk.say(event)
    walk.say(NotWritten(walk.tx.step, "disk full"))
    assert (walk.tx.phase, walk.tx.back) == (Phase.SWITCH, True)


@pytest.mark.parametrize("phase", [Phase.QUIESCE, Phase.DRAIN, Phase.SWITCH, Phase.QUALIFY])
def test_abort_is_honoured_until_the_paths_are_proven(phase: Phase) -> None:
    walk = Walk().to(phase)
    walk.say(AbortAsked())
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert walk.tx.quarantine == ()


@pytest.mark.parametrize("phase", [Phase.ROUTE, Phase.RESUME, Phase.COMMIT])
def test_abort_after_the_paths_are_proven_changes_nothing(phase: Phase) -> None:
    walk = Walk().to(phase)
    before = walk.tx
    assert walk.say(AbortAsked()).tx == before


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.DONE])
def test_a_deadline_ends_every_phase(phase: Phase) -> None:
    walk = Walk().to(phase)
    for _ in range(30):
        if walk.tx.phase is Phase.DONE:
            break
        walk.say(DeadlinePassed(walk.tx.step))
    forward = (Phase.ROUTE, Phase.RESUME, Phase.COMMIT)
    if phase in forward:
        assert walk.tx.outcome is Outcome.COMMITTED
    else:
        assert walk.tx.outcome in (Outcome.ROLLED_BACK, Outcome.QUARANTINED)


def test_all_jobs_quiesce_at_the_lull_of_the_largest_frozen_job() -> None:
    pair = HeldJob("pair", Policy.PAUSE, ("gpu0",))
    restarted = HeldJob("restarted", Policy.RESTART, ("gpu5", "gpu6", "gpu7"))
    tx = replace(transaction(), jobs=(pair, restarted, *transaction().jobs))
    walk = Walk(tx).to(Phase.QUIESCE)
    assert [o.endpoints for o in walk.all if isinstance(o, AwaitLull)] == [("gpu0", "gpu1")]
    walk.say(Lull(walk.tx.step))
    assert [type(o) for o in walk.orders] == [QuiesceJob] * 3


def test_jobs_are_frozen_even_when_no_lull_comes() -> None:
    walk = Walk().to(Phase.QUIESCE)
    walk.say(DeadlinePassed(walk.tx.step))
    assert walk.ordered(QuiesceJob)
    walk.to(Phase.DONE)
    assert walk.tx.outcome is Outcome.COMMITTED


def test_abort_while_waiting_for_a_lull_thaws_no_job() -> None:
    walk = Walk().to(Phase.QUIESCE)
    walk.say(AbortAsked()).say(Lull(walk.tx.step)).to(Phase.DONE)
    assert walk.tx.outcome is Outcome.ROLLED_BACK
    assert not [o for o in walk.all if isinstance(o, QuiesceJob | ResumeJob | Switch)]


def test_quiet_that_never_comes_is_not_a_failure() -> None:
    walk = Walk().to(Phase.QUIESCE)
    walk.say(Lull(walk.tx.step))
    walk.say(JobQuiesced(walk.tx.step, "red"))
    walk.say(DeadlinePassed(walk.tx.step))
    assert (walk.tx.phase, walk.tx.back) == (Phase.DRAIN, False)


def test_stale_events_change_nothing() -> None:
    walk = Walk().to(Phase.SWITCH)
    before = walk.tx
    for event in (
        Switched(before.step - 1, "ocs0"),
        DeadlinePassed(before.step - 1),
        Drained(before.step),
        Switched(before.step, "ocs7"),
    ):
        assert walk.say(event).tx == before
        assert not walk.orders
