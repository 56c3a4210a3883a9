"""What limits a job, in order of gain."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.advice.findings import JobFinding, Situation, judge
from measure.loading.floor import Floor
from scheduler.steptime.calibrate import PredictionInterval
from scheduler.steptime.facts import StepFacts

FACTS = StepFacts(
    ranks=4,
    step_s=1.0,
    comm_s=0.02,
    exposed_s=0.02,
    bytes_per_step=1e6,
    calls_per_step=1,
    wait_s=0.0,
    steps=100,
    source="torch",
)


def limits(situation: Situation) -> list[str]:
    return [finding.limit for finding in judge(situation).findings]


def test_a_job_that_computes_is_told_that_the_fabric_is_not_its_limit() -> None:
    judged = judge(Situation(job="red", facts=FACTS, links_measured=True))
    assert judged.limit == "compute"
    assert judged.unknown == ()
    assert "98 %" in judged.findings[0].text


def test_a_scattered_job_is_told_the_plan() -> None:
    facts = replace(FACTS, comm_s=0.6, exposed_s=0.6)
    situation = Situation(
        job="red", facts=facts, span=2, span_least=1, compact=PredictionInterval(1.9, 2.0)
    )
    judged = judge(situation)
    first = judged.findings[0]
    assert judged.limit == first.limit == "scatter"
    assert first.command == "lightloom plan --job red"
    assert first.gain == PredictionInterval(pytest.approx(1 - 1 / 1.9), pytest.approx(0.5))
    assert "network" in limits(situation)  # what is left once it is compact


def test_an_ended_job_is_judged_from_its_last_facts_and_has_no_plan() -> None:
    facts = replace(FACTS, comm_s=0.6, exposed_s=0.6)
    situation = Situation(
        job="red",
        ended=True,
        facts=facts,
        span=2,
        span_least=1,
        compact=PredictionInterval(1.9, 2.0),
    )
    found = judge(situation).findings[0]
    assert (found.limit, found.command) == ("scatter", "")
    assert "next time" in found.remedy


def test_a_compact_job_with_exposed_communication_is_limited_by_the_network() -> None:
    facts = replace(FACTS, comm_s=0.8, exposed_s=0.8)
    judged = judge(Situation(job="red", facts=facts))
    assert judged.limit == "network"
    assert judged.findings[0].gain == PredictionInterval(0.0, 0.8)
    assert "overlap" in limits(Situation(job="red", facts=facts))


def test_one_slow_rank_is_named_with_its_evidence() -> None:
    facts = replace(FACTS, comm_s=0.4, exposed_s=0.4)
    judged = judge(
        Situation(
            job="red",
            facts=facts,
            compute_s={0: 0.6, 1: 0.61, 2: 1.0, 3: 0.6},
            rank_evidence={2: ("its endpoint is gpu5", "utilisation 40 %")},
        )
    )
    assert judged.limit == "straggler"
    assert judged.findings[0].evidence == ("its endpoint is gpu5", "utilisation 40 %")
    assert "network" not in [finding.limit for finding in judged.findings]


def test_waiting_for_batches_is_input() -> None:
    judged = judge(Situation(job="red", facts=replace(FACTS, wait_s=0.5)))
    assert judged.limit == "input"
    assert judged.findings[0].command == "lightloom measure input"


def test_without_facts_it_says_what_to_measure() -> None:
    judged = judge(Situation(job="red", recorder="recording is off"))
    assert judged.limit == "unknown"
    assert judged.findings == ()
    assert any("recording is off" in text and "--record" in text for text in judged.unknown)
    assert any("measure links" in text for text in judged.unknown)


def test_a_waiting_job_says_why() -> None:
    judged = judge(Situation(job="red", waits="2 GPUs are missing", wait_command="lightloom plan"))
    assert judged.limit == "none"
    assert "2 GPUs are missing" in judged.findings[0].text


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.dictionaries(st.integers(0, 3), st.floats(0, 2), max_size=4),
    st.none() | st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)),
)
def test_findings_come_in_order_and_save_at_most_the_step(
    exposed: float,
    hidden: float,
    wait: float,
    computes: dict[int, float],
    compact: tuple[float, float] | None,
) -> None:
    facts = replace(FACTS, exposed_s=exposed, comm_s=exposed + hidden, wait_s=wait)
    ratio = PredictionInterval(min(compact), max(compact)) if compact else None
    judged = judge(
        Situation(job="red", facts=facts, span=2, span_least=1, compact=ratio, compute_s=computes)
    )
    weights = [finding.weight for finding in judged.findings if finding.limit != "compute"]
    assert weights == sorted(weights, reverse=True)
    gains = [f.gain for f in judged.findings if f.gain is not None]
    assert all(0 <= gain.low <= gain.high <= 1 for gain in gains)
    assert judged.limit == judged.findings[0].limit


def test_a_finding_without_gain_weighs_nothing() -> None:
    assert JobFinding(limit="compute", text="").weight == 0


FLOOR = Floor(step_s=0.97, measurement="m7", volume="images", batch=32)


def test_a_loader_that_takes_a_step_limits_it_also_where_waiting_is_not_recorded() -> None:
    facts = replace(FACTS, comm_s=0.3, exposed_s=0.3, wait_s=None)
    judged = judge(Situation(job="red", facts=facts, floor=FLOOR))
    found = next(f for f in judged.findings if f.limit == "input")
    assert judged.limit == "input"
    assert found.gain == PredictionInterval(0.0, pytest.approx(0.7))
    assert "--set volume=images --set batch=32" in found.command
    assert any("m7" in text for text in found.evidence)
    assert not any("input" in text for text in judged.unknown)


def test_a_loader_that_keeps_up_is_no_finding_and_nothing_unknown() -> None:
    fast = replace(FLOOR, step_s=0.2)
    judged = judge(Situation(job="red", facts=replace(FACTS, wait_s=None), floor=fast))
    assert judged.limit == "compute"
    assert not any("input" in text for text in judged.unknown)


def test_a_job_that_waits_though_its_loader_keeps_up_needs_a_deeper_queue() -> None:
    facts = replace(FACTS, wait_s=0.4)
    slow, fast = (
        judge(Situation(job="red", facts=facts, floor=replace(FLOOR, step_s=s))).findings[0]
        for s in (0.99, 0.2)
    )
    assert slow.limit == fast.limit == "input"
    assert "workers" in slow.remedy and "further ahead" in fast.remedy


def test_a_single_rank_that_waits_has_no_collectives_and_yet_a_finding() -> None:
    judged = judge(Situation(job="solo", input_wait=(0.3, 0.5)))
    assert judged.limit == "input"
    assert judged.findings[0].gain == PredictionInterval(pytest.approx(0.6), pytest.approx(0.6))
    assert judge(Situation(job="solo", input_wait=(0.001, 0.5))).limit == "unknown"
