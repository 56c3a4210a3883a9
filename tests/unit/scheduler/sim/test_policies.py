"""The policy skips an attempt to consolidate only where it would fail again."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.sim.cluster import Cluster, Live, ReplayRegroup, ReplaySettings
from scheduler.sim.engine import replay
from scheduler.sim.policies import LightRegroup
from scheduler.sim.slowdown import GavelSlowdown
from scheduler.sim.trace import Trace
from tests.unit.scheduler.sim.small import consistent, site, table, trace

QUICK = ReplaySettings(pause_s=1.0, cooldown_s=20.0, retry_s=2.0)

workloads = st.lists(
    st.tuples(
        st.integers(0, 60), st.sampled_from([1, 1, 1, 2, 2, 3, 4, 4, 6, 8]), st.integers(1, 40)
    ),
    min_size=1,
    max_size=40,
).map(lambda rows: trace(*((float(s), g, float(d)) for s, g, d in rows)))


class Counting(LightRegroup):
    """Counts attempts to consolidate."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def _find(self, cluster: Cluster, live: Live) -> ReplayRegroup | None:
        self.attempts += 1
        return super()._find(cluster, live)


class Forgetful(Counting):
    """Never remembers an attempt that failed."""

    def improve(self, cluster: Cluster) -> Iterator[ReplayRegroup]:
        for name in cluster.scattered:
            cluster.live[name].in_vain = None
        return super().improve(cluster)


@pytest.mark.parametrize("switches", [1, 2, 4])
@settings(max_examples=60)
@given(workload=workloads)
def test_what_failed_is_remembered_exactly(switches: int, workload: Trace) -> None:
    found = []
    attempts = []
    for policy in (Counting(), Forgetful()):
        where, cost = site(4, 4, switches), GavelSlowdown(table())
        found.append(replay(workload, where, policy, cost, QUICK, watch=consistent).ended)
        attempts.append(policy.attempts)
    assert found[0] == found[1]
    assert attempts[0] <= attempts[1]


BLOCKED = (
    *((0.0, 1, 10.0), (0.0, 1, 500.0)) * 2,
    (20.0, 2, 100.0),
    *((30.0 + i, 2, 10.0) for i in range(20)),
)
"""The job of 2 is scattered between two jobs; later jobs wait behind it."""


def test_no_attempt_is_repeated_while_nothing_changes() -> None:
    tries = {}
    for policy in (Counting(), Forgetful()):
        # A pause of 1000 s never pays: every attempt fails.
        assume = ReplaySettings(pause_s=1000.0, retry_s=2.0)
        replay(trace(*BLOCKED), site(2, 2), policy, GavelSlowdown(table()), assume)
        tries[type(policy)] = policy.attempts
    assert tries[Counting] < tries[Forgetful]


def test_the_state_changes_when_a_cool_down_ends() -> None:
    """A job that is moved at 20 s may be moved again from 40 s on; in between jobs only arrive."""
    states: dict[float, tuple[int, float]] = {}

    def watch(cluster: Cluster) -> None:
        states[cluster.now] = cluster.state()

    jobs = ((0.0, 1, 10.0), (0.0, 1, 500.0)) * 2
    waiting = ((at, 2, 9.0) for at in (30.0, 39.0, 40.0, 41.0))
    workload = trace(*jobs, (20.0, 2, 100.0), *waiting)
    replay(workload, site(2, 2), LightRegroup(), GavelSlowdown(table()), QUICK, watch=watch)
    assert states[20.0] == states[30.0] == states[39.0]
    assert states[20.0][1] == 40.0
    assert states[40.0] == states[41.0] == (states[20.0][0], inf)
