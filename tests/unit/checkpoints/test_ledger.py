from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.ledger import (
    GIVEN_UP,
    MAX_HOLDERS,
    MAX_KEPT,
    MAX_RUNS,
    Began,
    Coded,
    Copied,
    Key,
    Ledger,
    LedgerRun,
    Missing,
    Report,
    ServerLost,
    Spoiled,
    State,
    Wrote,
    dropped,
    fold,
    is_complete,
    prune,
    state,
    ways,
)
from checkpoints.schemes import Layout
from checkpoints.values import Apart, Place, Scheme
from tests.unit.checkpoints.stories import (
    PLACES,
    SERVERS,
    began,
    coded,
    copied,
    copies,
    flushed,
    told,
    written,
    wrote,
)

K = Key(10, 1)


def test_written_protected_persistent() -> None:
    ledger = told(began(1, 2, Scheme.PARTNER), wrote(K, 0, "gpu0"))
    assert state(ledger, K, PLACES) is State.PARTIAL
    ledger = told(wrote(K, 1, "gpu1"), ledger=ledger)
    assert state(ledger, K, PLACES) is State.WRITTEN and not is_complete(ledger, K, PLACES)
    ledger = told(copied(K, 0, "gpu1"), ledger=ledger)
    assert state(ledger, K, PLACES) is State.WRITTEN
    ledger = told(copied(K, 1, "gpu0"), ledger=ledger)
    assert state(ledger, K, PLACES) is State.PROTECTED and is_complete(ledger, K, PLACES)
    ledger = told(flushed(K, 0), flushed(K, 1), ledger=ledger)
    assert state(ledger, K, PLACES) is State.PERSISTENT


def test_single_is_complete_when_written() -> None:
    ledger = told(began(1, 2, Scheme.SINGLE), *written(K, 2))
    assert state(ledger, K, PLACES) is State.WRITTEN and is_complete(ledger, K, PLACES)


def test_a_copy_on_the_same_server_protects_nothing() -> None:
    beside = {**PLACES, "gpu1": replace(PLACES["gpu1"], server="srv0")}
    ledger = told(began(1, 2, Scheme.PARTNER), *written(K, 2), *copies(K, 2))
    assert state(ledger, K, beside) is State.WRITTEN


def test_a_regroup_takes_protection_back() -> None:
    run = LedgerRun(2, Layout(Scheme.PARTNER, Apart.AGGREGATOR))
    ledger = told(Began(1, run), *written(K, 2), *copies(K, 2))
    assert state(ledger, K, PLACES) is State.PROTECTED
    together = {**PLACES, "gpu1": Place("gpu1", "srv1", "as0")}
    assert state(ledger, K, together) is State.WRITTEN


def test_a_set_protects_when_all_parities_match() -> None:
    ring = (2, 0, 1)
    ledger = told(began(1, 3, Scheme.XOR), *written(K, 3))
    ledger = told(*(coded(K, r, f"gpu{r}", ring) for r in (0, 1)), ledger=ledger)
    assert state(ledger, K, PLACES) is State.WRITTEN
    ledger = told(coded(K, 2, "gpu2", ring), ledger=ledger)
    assert state(ledger, K, PLACES) is State.PROTECTED
    anew = Wrote(K, 1, "gpu1", "anew", 3)
    stale = told(anew, ledger=ledger)
    assert state(stale, K, PLACES) is State.WRITTEN
    assert ways(stale, K, SERVERS, PLACES, store=False)[0]
    # The parities hold the part that was there before: nothing can be rebuilt with them.
    assert ways(stale, K, SERVERS - {"srv0"}, PLACES, store=False)[0] == ()
    lost = told(ServerLost(frozenset({"gpu1"})), ledger=ledger)
    (_, way, _), _ = ways(lost, K, SERVERS - {"srv1"}, PLACES, store=False)
    assert [m.rank for m in way.ring] == [2, 0, 1]
    assert way.parts_from == {0: "gpu0", 2: "gpu2"} == way.parities_from
    two = told(ServerLost(frozenset({"gpu0"})), ledger=lost)
    assert ways(two, K, SERVERS, PLACES, store=False)[0] == ()


def test_parities_of_two_rings_are_never_put_together() -> None:
    rings = {0: (0, 1, 2), 1: (1, 0, 2), 2: (0, 1, 2)}
    ledger = told(
        began(1, 3, Scheme.XOR), *written(K, 3), *(coded(K, r, f"gpu{r}", rings[r]) for r in rings)
    )
    assert ways(ledger, K, SERVERS - {"srv0"}, PLACES, store=False)[0] == ()
    assert ways(ledger, K, SERVERS - {"srv1"}, PLACES, store=False)[0]
    # Nobody told of rank 0's part itself: the parities of its set name what it was.
    unknown = told(
        began(1, 3, Scheme.XOR),
        *(wrote(K, r, f"gpu{r}") for r in (1, 2)),
        *(coded(K, r, f"gpu{r}", (0, 1, 2)) for r in (1, 2)),
    )
    (way, *_), _ = ways(unknown, K, SERVERS, PLACES, store=False)
    assert (way.digest, way.bytes) == ("1-10-0", 10)


def test_runs_and_digests_are_never_mixed() -> None:
    older, newer = Key(10, 1), Key(10, 2)
    ledger = told(
        began(1, 2, Scheme.SINGLE),
        wrote(older, 0, "gpu0"),
        began(2, 2, Scheme.SINGLE, Key(5, 1)),
        wrote(newer, 1, "gpu1"),
    )
    assert state(ledger, older, PLACES) is State.DROPPED
    assert state(ledger, newer, PLACES) is State.PARTIAL
    other = Copied(newer, 1, "gpu3", "another", 10)
    assert told(other, ledger=ledger) == ledger


def test_what_cannot_be_true_changes_nothing() -> None:
    ledger = told(began(1, 2, Scheme.SINGLE))
    for report in (
        wrote(Key(1, 2), 0, "gpu0"),
        wrote(Key(-1, 1), 0, "gpu0"),
        wrote(Key(2**63, 1), 0, "gpu0"),
        wrote(K, 2, "gpu0"),
        wrote(K, -1, "gpu0"),
        coded(K, 0, "gpu0", (0, 0)),
        coded(K, 0, "gpu0", (1,)),
        coded(K, 0, "gpu0", (0, 9)),
        Coded(K, 0, "gpu0", ()),
        Missing(K, 0, "gpu0"),
        Began(1, LedgerRun(5)),
        Began(2, LedgerRun(0)),
        Began(-1, LedgerRun(1)),
    ):
        assert told(report, ledger=ledger) == ledger


def test_the_writers_word_counts() -> None:
    lie = Copied(K, 0, "gpu5", "stale", 10)
    ledger = told(began(1, 1, Scheme.SINGLE), lie, wrote(K, 0, "gpu0"), lie)
    assert ledger.steps[K].parts[0].holders == {"gpu0"}


def test_ledgers_are_bounded_and_keep_the_newest_written_step() -> None:
    ledger = told(began(1, 2, Scheme.SINGLE), *written(Key(3, 1), 2))
    for step in range(4, 4 + 2 * MAX_KEPT):
        ledger = fold(ledger, wrote(Key(step, 1), 0, "gpu0"))
    assert len(ledger.steps) == MAX_KEPT and Key(3, 1) in ledger.steps
    for i in range(2 * MAX_HOLDERS):
        ledger = fold(ledger, copied(Key(3, 1), 0, f"gpu{i}"))
    assert len(ledger.steps[Key(3, 1)].parts[0].holders) == MAX_HOLDERS


def test_a_run_with_the_only_checkpoint_is_not_forgotten() -> None:
    key = Key(3, 0)
    ledger = told(began(0, 1, Scheme.SINGLE), wrote(key, 0, "gpu0"))
    runs = {epoch: LedgerRun(1, Layout(), key) for epoch in range(1, MAX_RUNS)}
    ledger = replace(ledger, runs={**ledger.runs, **runs}, limits=dict.fromkeys(range(9), key))
    ledger = told(*(began(MAX_RUNS + i, 1, Scheme.SINGLE, key) for i in range(3)), ledger=ledger)
    assert len(ledger.runs) == MAX_RUNS and not dropped(ledger, key)


def test_pruning_never_takes_the_newest_complete() -> None:
    keys = [Key(step, 1) for step in (10, 20, 30, 40)]
    ledger = told(began(1, 2, Scheme.PARTNER))
    for key in keys:
        ledger = told(*written(key, 2), ledger=ledger)
    assert prune(ledger, 1, PLACES) == ()
    ledger = told(*copies(keys[1], 2), ledger=ledger)
    assert prune(ledger, 1, PLACES) == (keys[0],)
    assert prune(ledger, 2, PLACES) == ()
    ledger = told(*copies(keys[3], 2), ledger=ledger)
    assert prune(ledger, 2, PLACES) == (keys[0],)
    assert prune(ledger, 1, PLACES) == (keys[0], keys[1], keys[2])
    ledger = told(Spoiled(keys[3], "it kills"), ledger=ledger)
    assert prune(ledger, 1, PLACES) == (keys[0], keys[3])
    with pytest.raises(ValueError, match="at least one"):
        prune(ledger, 0, PLACES)


def test_resuming_gives_later_steps_up() -> None:
    ledger = told(
        began(1, 1, Scheme.SINGLE),
        *(wrote(Key(step, 1), 0, "gpu0") for step in (10, 20, 30)),
        began(2, 1, Scheme.SINGLE, Key(20, 1)),
        began(3, 1, Scheme.SINGLE, Key(20, 1)),
    )
    assert [dropped(ledger, Key(step, 1)) for step in (10, 20, 30)] == ["", "", GIVEN_UP]
    ledger = told(began(4, 1, Scheme.SINGLE, None), ledger=ledger)
    assert all(dropped(ledger, key) for key in ledger.steps)


RUNS = [
    began(1, 3, Scheme.XOR),
    began(2, 3, Scheme.PARTNER, Key(20, 1)),
    began(3, 2, Scheme.SINGLE, Key(20, 2)),
]
KEYS = st.builds(Key, st.sampled_from([10, 20, 30]), st.sampled_from([1, 2, 3]))
RANKS = st.integers(0, 3)
HOLDERS = st.sampled_from(["gpu0", "gpu1", "gpu2"])
HELD: st.SearchStrategy[Report] = st.one_of(
    st.builds(wrote, KEYS, RANKS, HOLDERS),
    st.builds(copied, KEYS, RANKS, HOLDERS),
    st.builds(flushed, KEYS, RANKS),
    st.builds(coded, KEYS, RANKS, HOLDERS, st.just((0, 1, 2))),
    st.builds(Spoiled, KEYS, st.just("it kills")),
)


@given(st.lists(HELD, max_size=30), st.randoms(use_true_random=False))
def test_order_and_repetition_of_reports_do_not_matter(
    reports: list[Report], random: object
) -> None:
    shuffled = [*reports, *reports]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert told(*RUNS, *reports) == told(*RUNS, *shuffled)


@given(st.lists(HELD, max_size=40), st.integers(1, 3))
def test_what_stays_after_pruning_restores_as_well(reports: list[Report], keep: int) -> None:
    ledger = told(*RUNS, *reports)
    going = prune(ledger, keep, PLACES)
    complete = sorted(key for key in ledger.steps if is_complete(ledger, key, PLACES))
    held = [k for k in complete if any(p.holders for p in ledger.steps[k].parts.values())]
    assert not set(held[-keep:]) & set(going)
    assert list(going) == sorted(going)
    for key in going:
        assert dropped(ledger, key) or key < held[-keep]


@given(st.lists(HELD, max_size=40))
def test_protected_means_that_any_one_server_may_go(reports: list[Report]) -> None:
    ledger = told(*RUNS, *reports)
    for key in ledger.steps:
        found = state(ledger, key, PLACES)
        if found is State.PROTECTED:
            for server in SERVERS:
                assert ways(ledger, key, SERVERS - {server}, PLACES, store=True)[0]
        if found is State.PERSISTENT:
            assert ways(ledger, key, (), PLACES, store=True)[0]
        if found is State.WRITTEN:
            assert ways(ledger, key, SERVERS, PLACES, store=True)[0]


def test_replicas_are_one_part_with_many_holders() -> None:
    run = LedgerRun(3, Layout(Scheme.PARTNER), identical=True)
    ledger = told(Began(1, run), wrote(K, 0, "gpu0"))
    assert state(ledger, K, PLACES) is State.WRITTEN
    assert len(ways(ledger, K, SERVERS, PLACES, store=False)[0]) == 1
    ledger = told(wrote(K, 2, "gpu2"), ledger=ledger)
    assert state(ledger, K, PLACES) is State.PROTECTED
    assert state(Ledger(), K, PLACES) is State.DROPPED
