"""Plans of small sites are proven at once: a search is bounded by nodes, not by the time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.plan_states import small
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Limits, Objective, Site
from scheduler.regroup.plan import plan_regroup

NODES = 20
"""Of each search by HiGHS."""


def tight() -> Fabric:
    """Return six endpoints on two switches that leave little choice."""
    ocs = {"e0": "o1", "e1": "o0", "e2": "o0", "e3": "o0", "e4": "o1", "e5": "o1"}
    ports = {"as0": {"o0": 1, "o1": 1}, "as1": {"o0": 2, "o1": 1}, "as2": {"o1": 2}}
    homes = {"e0": "as0", "e1": "as0", "e2": "as1", "e3": "as1", "e4": "as1", "e5": "as2"}
    site = Site(
        "tight",
        tuple(Endpoint(name, ocs=switch) for name, switch in ocs.items()),
        tuple(Aggregator(name, there) for name, there in ports.items()),
    )
    jobs = Job("j0", ("e4", "e1", "e0", "e2")), Job("j1", ("e3", "e5"))
    return Fabric(site, homes, jobs)


@pytest.mark.parametrize("objective", list(Objective))
def test_few_nodes_prove_a_tight_site(objective: Objective) -> None:
    made = plan_regroup(replace(tight(), search_nodes=NODES), Limits(objective=objective))
    assert made.optimal
    assert (made.excess_span_before, made.excess_span_after) == (1, 0)


@pytest.mark.parametrize("objective", list(Objective))
def test_few_nodes_prove_every_small_site(objective: Objective) -> None:
    limits = Limits(objective=objective)
    unproven = [
        seed
        for seed in range(150)
        if not plan_regroup(replace(small(seed), search_nodes=NODES), limits).optimal
    ]
    assert not unproven
