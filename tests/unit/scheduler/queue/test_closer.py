"""On several optical switches the first job waits a while for endpoints that fit together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.model import Fabric, Job, Locality, Request, Spread, SpreadBy
from scheduler.queue.decide import decide
from scheduler.queue.model import Decisions, Pending, Promise, QueuePolicy, RunningJob
from tests.unit.scheduler.racks import uniform


def half_busy(switches: int = 2) -> Fabric:
    """Return two aggregators of 2 ports; with two switches both idle endpoints are of one."""
    return replace(uniform(2, 2, 4, switches), jobs=(Job("busy", ("e1", "e3")),))


def pair(locality: Locality = Locality.REGROUP, **more: object) -> Pending:
    return Pending(Request("pair", 2, locality), 0.0, **more)  # type: ignore[arg-type]


def look(fabric: Fabric, job: Pending, now: float = 0.0, **policy: float) -> Decisions:
    return decide(fabric, [job], policy=QueuePolicy(**policy), now=now)  # type: ignore[arg-type]


def test_the_first_job_waits_for_closer_endpoints_and_then_starts_scattered() -> None:
    made = look(half_busy(), pair())
    (hold,) = made.holds
    assert (hold.code, hold.could_start_at, hold.earliest_start) == ("switches", 0.0, 3600.0)
    assert hold.reason == (
        "needs 2 endpoints that a regroup can bring under 1 aggregator; the idle ones are on too"
        " few optical switches for fewer than 2"
    )
    assert hold.remedy == (
        "endpoints of other optical switches become idle; it starts scattered in 3600 s"
        " (submitted with locality preferred: at once); no other job may delay it"
    )
    later = pair(reserved_at=0.0, could_start_at=0.0)
    assert not look(half_busy(), later, 3599.9).starts
    (start,) = look(half_busy(), later, 3600.0).starts
    assert (start.placement.span, start.placement.span_possible) == (2, 2)


def test_it_starts_as_soon_as_endpoints_fit_together() -> None:
    freed = replace(half_busy(), jobs=(Job("busy", ("e3",)),))
    (start,) = look(freed, pair(could_start_at=0.0), 10.0).starts
    assert start.placement.span_possible == 1


@pytest.mark.parametrize(
    ("fabric", "job", "policy"),
    [
        pytest.param(half_busy(1), pair(), {}, id="one switch"),
        pytest.param(half_busy(), pair(Locality.PREFERRED), {}, id="preferred"),
        pytest.param(half_busy(), pair(Locality.ANY), {}, id="any"),
        pytest.param(half_busy(), pair(), {"switch_wait_s": 0.0}, id="switched off"),
        pytest.param(
            half_busy(),
            Pending(Request("pair", 2, Locality.REGROUP, endpoints=("e0", "e2")), 0.0),
            {},
            id="named endpoints",
        ),
        pytest.param(
            half_busy(),
            Pending(Request("one", 1, Locality.REGROUP), 0.0),
            {},
            id="one endpoint",
        ),
        pytest.param(
            half_busy(),
            Pending(
                Request("pair", 2, Locality.REGROUP, spread=Spread(SpreadBy.AGGREGATOR, 1)),
                0.0,
            ),
            {},
            id="spread over aggregators",
        ),
        pytest.param(
            replace(half_busy(), jobs=(), unavailable=frozenset({"e1", "e3"})),
            pair(),
            {},
            id="the others are lost",
        ),
        pytest.param(
            half_busy(),
            pair(promise=Promise(0.0, frozenset({"stopped"}))),
            {},
            id="others were stopped for it",
        ),
    ],
)
def test_a_job_does_not_wait_where_waiting_cannot_help(
    fabric: Fabric, job: Pending, policy: dict[str, float]
) -> None:
    assert len(look(fabric, job, **policy).starts) == 1


def test_a_job_waits_no_longer_than_it_runs() -> None:
    short = pair(run_time_s=60.0, could_start_at=0.0)
    assert look(half_busy(), short, 59.0).holds[0].earliest_start == 60.0
    assert look(half_busy(), short, 60.0).starts


def test_jobs_pass_it_that_leave_its_endpoints() -> None:
    """A job may pass that ends before the wait does; one that runs longer may not."""
    for run_time_s, passes in ((3600.0, True), (3601.0, False)):
        one = Pending(Request("one", 1), 1.0, run_time_s=run_time_s)
        made = decide(half_busy(), [pair(), one], now=0.0)
        assert [start.job for start in made.starts] == (["one"] if passes else [])


def test_only_the_first_job_starts_scattered() -> None:
    first = Pending(Request("first", 3), 0.0)
    made = decide(half_busy(), [first, pair()], now=10_000.0)
    assert {hold.job: hold.code for hold in made.holds} == {"first": "busy", "pair": "switches"}
    made = decide(half_busy(), [first, pair(Locality.PREFERRED)], now=10_000.0)
    assert [start.job for start in made.starts] == ["pair"]


def test_a_job_that_waits_for_others_to_end_says_when_it_starts_at_the_latest() -> None:
    three = Pending(Request("three", 3, Locality.REGROUP), 0.0)
    ends = [RunningJob("busy", expected_end=100.0)]
    made = decide(uniform(2, 4, 8, 2), [three], now=0.0)
    assert made.starts
    busy = Job("busy", ("e1", "e2", "e3", "e5", "e6", "e7"))
    fabric = replace(uniform(2, 4, 8, 2), jobs=(busy,))
    assert decide(fabric, [three], ends, now=0.0).holds[0].earliest_start == 3700.0
    waited = replace(three, could_start_at=-1000.0)
    assert decide(fabric, [waited], ends, now=0.0).holds[0].earliest_start == 2600.0
    one_switch = replace(uniform(2, 4, 8), jobs=(busy,))
    assert decide(one_switch, [three], ends, now=0.0).holds[0].earliest_start == 100.0
