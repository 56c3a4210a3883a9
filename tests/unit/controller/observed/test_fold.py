"""The fold: what an engine says becomes records, and nothing else does."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from controller.devices.observed import End, EngineJob, JobNeeds, Turn
from controller.observed.fold import GONE, EngineRules, FoldContext, fold, gone
from controller.state.records import JobRecord
from scheduler.model import Locality, Policy

ENDPOINTS = tuple(f"gpu{i}" for i in range(6))
RULES = EngineRules(engine="slurm", endpoints=frozenset(ENDPOINTS[:5]))


def seen(
    number: int, turn: Turn, *endpoints: str, attempt: int = 0, count: int | None = None
) -> EngineJob:
    return EngineJob(
        key=f"slurm:{number}",
        attempt=attempt,
        revision=f"{attempt} {turn} {endpoints}",
        turn=turn,
        wants=JobNeeds(count=len(endpoints) or 2 if count is None else count, servers=1),
        endpoints=endpoints,
        scope=f"slurm:{number}",
        submitted_at=100.0 + attempt,
        exit_code=0,
    )


class Site:
    """The records, as a controller would keep them."""

    def __init__(self) -> None:
        self.records: dict[str, JobRecord] = {}
        self.now = 1000.0

    def moment(self) -> FoldContext:
        holders = {e: r.name for r in self.records.values() if r.holding for e in r.endpoints}
        return FoldContext(
            now=self.now,
            epoch=7,
            homes=dict.fromkeys(ENDPOINTS, "as0"),
            holder=holders.get,
        )

    def take(self, *news: EngineJob) -> tuple[JobRecord, ...]:
        put = fold(self.records, news, RULES, self.moment())
        for record in put:
            self.records[record.name] = record
            held = [e for r in self.records.values() if r.holding for e in r.endpoints]
            assert len(held) == len(set(held)), "no endpoint is held twice, not even in between"
        return put


def test_the_light_of_a_job_that_is_being_ended_stays() -> None:
    site = Site()
    running = seen(1, Turn.RUNNING, "gpu0", "gpu1")
    site.take(running)
    assert not site.records["slurm-1"].request.pinned
    site.take(replace(running, ending=True))
    record = site.records["slurm-1"]
    assert (record.state, record.request.pinned) == ("running", True)


def test_a_job_waits_gets_endpoints_runs_and_ends() -> None:
    site = Site()
    site.take(seen(1, Turn.WAITS))
    record = site.records["slurm-1"]
    assert (record.state, record.endpoints, record.owner.stops) == ("waiting", (), False)
    site.take(seen(1, Turn.ALLOCATED, "gpu0", "gpu1"))
    record = site.records["slurm-1"]
    assert (record.state, record.endpoints, record.epoch) == ("starting", ("gpu0", "gpu1"), 7)
    assert (record.request.locality, record.request.project) == (Locality.REGROUP, "slurm")
    site.take(seen(1, Turn.RUNNING, "gpu0", "gpu1"))
    assert site.records["slurm-1"].started_at == 1000.0
    site.take(seen(1, Turn.ENDED))
    record = site.records["slurm-1"]
    assert (record.state, record.exit_codes, record.final_homes) == (
        "completed",
        (0, 0),
        ("as0", "as0"),
    )
    assert not site.take(seen(1, Turn.ENDED))
    assert not site.take(seen(1, Turn.RUNNING, "gpu0", "gpu1")), "an ended run never comes back"


def test_a_killed_engine_that_forgot_an_end_brings_the_job_back() -> None:
    site = Site()
    site.take(seen(1, Turn.RUNNING, "gpu0"))
    site.take(seen(1, Turn.ENDED))
    (record,) = fold(site.records, [seen(1, Turn.WAITS)], RULES, site.moment(), whole=True)
    assert (record.state, record.finished_at) == ("waiting", None)
    assert not fold(site.records, [seen(1, Turn.ENDED)], RULES, site.moment(), whole=True)


def test_what_ended_before_it_was_seen_leaves_no_record() -> None:
    site = Site()
    assert not site.take(seen(1, Turn.ENDED))
    assert not site.take(seen(2, Turn.RUNNING, count=0)), "it uses no GPU"


def test_a_requeued_job_gives_its_endpoints_back_first() -> None:
    site = Site()
    site.take(seen(1, Turn.RUNNING, "gpu0", "gpu1"))
    between, after = site.take(seen(1, Turn.RUNNING, "gpu2", "gpu3", attempt=1))
    assert (between.state, between.endpoints) == ("waiting", ())
    assert (after.endpoints, after.restarts, after.submitted_at) == (("gpu2", "gpu3"), 1, 101.0)
    site.take(seen(1, Turn.ENDED, attempt=1))
    (again,) = site.take(seen(1, Turn.WAITS, attempt=2))
    assert (again.state, again.finished_at) == ("waiting", None)


def test_endpoints_pass_from_an_ended_job_to_the_next_in_one_batch() -> None:
    site = Site()
    site.take(seen(1, Turn.RUNNING, "gpu0", "gpu1"))
    site.take(seen(2, Turn.ALLOCATED, "gpu1", "gpu2"), seen(1, Turn.ENDED))
    assert site.records["slurm-2"].endpoints == ("gpu1", "gpu2")


def test_shared_and_foreign_endpoints_are_left_out_and_named() -> None:
    site = Site()
    site.take(seen(1, Turn.RUNNING, "gpu0", "gpu1"))
    shared = replace(seen(2, Turn.RUNNING, "gpu1", "gpu2", "gpu5"), strangers=("n9",))
    site.take(shared)
    record = site.records["slurm-2"]
    assert record.endpoints == ("gpu2",)
    assert record.observed is not None
    assert record.observed.problems == (
        "node n9 is not in the site file",
        "gpu1 is shared with job slurm-1, for which it counts",
        "gpu5 is not the engine's in the site file",
    )
    site.take(seen(1, Turn.ENDED))
    site.take(shared)
    assert site.records["slurm-2"].endpoints == ("gpu1", "gpu2")
    site.take(seen(3, Turn.RUNNING, "gpu1"))
    assert site.records["slurm-3"].state == "waiting", "nothing is its own"


def test_a_job_that_cannot_be_frozen_runs_on_and_none_is_restarted() -> None:
    site = Site()
    site.take(replace(seen(1, Turn.RUNNING, "gpu0"), scope=""))
    assert site.records["slurm-1"].request.policy is Policy.LIVE
    wants = JobNeeds(count=1, servers=1, policy=Policy.RESTART)
    site.take(replace(seen(2, Turn.RUNNING, "gpu1"), wants=wants))
    assert site.records["slurm-2"].request.policy is Policy.PAUSE


def test_a_job_that_the_engine_has_forgotten_says_so() -> None:
    site = Site()
    site.take(seen(1, Turn.RUNNING, "gpu0"))
    record = gone(site.records["slurm-1"], site.moment())
    assert (record.state, record.reason, record.finished_at) == ("cancelled", GONE, 1000.0)


NEWS = st.lists(
    st.builds(
        lambda number, turn, endpoints, attempt, end: replace(
            seen(
                number,
                turn,
                *(() if turn in (Turn.WAITS, Turn.ENDED) else tuple(dict.fromkeys(endpoints))),
                attempt=attempt,
            ),
            end=end,
        ),
        st.integers(1, 4),
        st.sampled_from(Turn),
        st.lists(st.sampled_from(ENDPOINTS), max_size=3),
        st.integers(0, 2),
        st.sampled_from(("completed", "failed", "cancelled")),
    ),
    max_size=6,
)


@given(st.lists(NEWS, max_size=8))
def test_no_endpoint_is_held_twice_whatever_the_engine_says(batches: list[list[EngineJob]]) -> None:
    site = Site()
    for batch in batches:
        latest = {one.key: one for one in batch}
        site.take(*latest.values())
        for one in latest.values():
            record = site.records.get(one.key.replace(":", "-"))
            if record is None or record.ended:
                continue
            assert set(record.endpoints) <= set(one.endpoints) & RULES.endpoints
        again = site.take(*latest.values())
        assert not again, "the same news change nothing"


def test_the_literal_of_ends_is_that_of_jobs() -> None:
    ends: tuple[End, ...] = ("completed", "failed", "cancelled")
    for end in ends:
        site = Site()
        site.take(seen(1, Turn.RUNNING, "gpu0"))
        site.take(replace(seen(1, Turn.ENDED), end=end))
        assert site.records["slurm-1"].state == end
