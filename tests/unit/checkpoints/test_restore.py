from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from checkpoints.ledger import Began, Key, LedgerRun, ServerLost, Spoiled, StepRecord
from checkpoints.restore import Attempt, How, Swap, choose_spares, plan, spoiled
from checkpoints.schemes import Layout
from checkpoints.values import Place, Scheme
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
LATER = Key(20, 1)


def test_old_endpoints_read_locally_and_a_spare_fetches() -> None:
    ledger = told(began(1, 3, Scheme.PARTNER), *written(K, 3), *copies(K, 3))
    ledger = told(ServerLost(frozenset({"gpu2"})), ledger=ledger)
    found = plan(ledger, ["gpu0", "gpu1", "gpu5"], PLACES, SERVERS - {"srv2"}, store=False)
    assert found.key == K and found.why == ""
    assert [(g.rank, g.how, g.source) for g in found.gets] == [
        (0, How.LOCAL, "gpu0"),
        (1, How.LOCAL, "gpu1"),
        (2, How.FETCH, "gpu0"),
    ]
    assert found.moved == 10


def test_a_spare_beside_the_copy_fetches_nothing() -> None:
    ledger = told(began(1, 2, Scheme.PARTNER), *written(K, 2), *copies(K, 2))
    ledger = told(ServerLost(frozenset({"gpu1"})), ledger=ledger)
    places = {**PLACES, "gpu7": replace(PLACES["gpu7"], server="srv0")}
    found = plan(ledger, ["gpu0", "gpu7"], places, SERVERS - {"srv1"}, store=False)
    assert [g.how for g in found.gets] == [How.LOCAL, How.LOCAL] and found.moved == 0


def test_rebuild_then_store_then_zero() -> None:
    ring = (0, 1, 2)
    ledger = told(
        began(1, 3, Scheme.XOR), *written(K, 3), *(coded(K, r, f"gpu{r}", ring) for r in ring)
    )
    ledger = told(ServerLost(frozenset({"gpu1"})), ledger=ledger)
    ranks = ["gpu0", "gpu4", "gpu2"]
    found = plan(ledger, ranks, PLACES, SERVERS - {"srv1"}, store=True)
    assert found.gets[1].how is How.REBUILD
    assert [m.rank for m in found.gets[1].way.ring] == [0, 1, 2]
    ledger = told(*(flushed(K, r) for r in ring), ledger=ledger)
    ledger = told(ServerLost(frozenset({"gpu0"})), ledger=ledger)
    assert [g.how for g in plan(ledger, ranks, PLACES, {"srv2", "srv4"}, store=True).gets] == [
        How.STORE,
        How.STORE,
        How.LOCAL,
    ]
    zero = plan(ledger, ranks, PLACES, {"srv2", "srv4"}, store=False)
    assert zero.key is None and zero.gets == ()
    assert zero.why == (
        "the job starts at step 0: "
        "step 10 of run 1: rank 0's part is lost on every server that is left"
    )
    assert plan(told(), ranks, PLACES, SERVERS, store=True).why.endswith("it has no checkpoint")


def test_ranks_at_different_steps_go_to_the_newest_common_one() -> None:
    ledger = told(began(1, 2, Scheme.SINGLE), *written(K, 2), wrote(LATER, 0, "gpu0"))
    found = plan(ledger, ["gpu0", "gpu1"], PLACES, SERVERS, store=False)
    assert found.key == K
    assert found.why == "step 20 of run 1: rank 1's part was never written whole"


def test_a_step_that_kills_is_passed_over() -> None:
    ledger = told(began(1, 1, Scheme.SINGLE), wrote(K, 0, "gpu0"), wrote(LATER, 0, "gpu0"))
    died = Attempt(LATER, first_step=False)
    assert spoiled([died]) is None
    assert spoiled([died, died]) == LATER
    assert spoiled([died, replace(died, unfit=True)]) is None
    assert spoiled([died, replace(died, unfit=True), died]) == LATER
    assert spoiled([died, replace(died, first_step=True), died]) is None
    assert spoiled([died, Attempt(K, first_step=False)]) is None
    ledger = told(Spoiled(LATER, "two runs died before their first step"), ledger=ledger)
    found = plan(ledger, ["gpu0"], PLACES, SERVERS, store=False)
    assert found.key == K and "two runs died" in found.why


def test_identical_replicas_take_any_part() -> None:
    run = LedgerRun(3, Layout(), identical=True)
    ledger = told(Began(1, run), wrote(K, 0, "gpu0"), wrote(K, 1, "gpu1"), wrote(K, 2, "gpu2"))
    ledger = told(ServerLost(frozenset({"gpu0"})), ledger=ledger)
    found = plan(ledger, ["gpu5", "gpu1"], PLACES, SERVERS - {"srv0"}, store=False)
    assert [(g.rank, g.how, g.way.rank) for g in found.gets] == [
        (0, How.FETCH, 1),
        (1, How.LOCAL, 1),
    ]


def test_shrinking_needs_a_program_that_can() -> None:
    ledger = told(began(1, 3, Scheme.SINGLE), *written(K, 3))
    ranks = ["gpu0", "gpu1"]
    found = plan(ledger, ranks, PLACES, SERVERS, store=False)
    assert found.key is None and "it has 3 parts and the job has 2 ranks" in found.why
    found = plan(ledger, ranks, PLACES, SERVERS, store=False, gathers=True)
    assert found.key == K
    assert [(g.rank, g.way.rank) for g in found.gets] == [(0, 0), (1, 1)]
    assert [way.rank for way in found.everywhere] == [0, 1, 2]
    grown = plan(ledger, [*ranks, "gpu2", "gpu3"], PLACES, SERVERS, store=False, gathers=True)
    assert [g.rank for g in grown.gets] == [0, 1, 2] and len(grown.everywhere) == 3


def test_reasons_are_bounded() -> None:
    ledger = told(began(1, 2, Scheme.SINGLE), *(wrote(Key(s, 1), 0, "gpu0") for s in range(50)))
    found = plan(ledger, ["gpu0", "gpu1"], PLACES, SERVERS, store=False)
    assert found.why.endswith("and 42 older ones") and len(found.why) < 1000


def test_the_spare_with_the_copy_then_fewest_moves() -> None:
    ledger = told(began(1, 2, Scheme.PARTNER), *written(K, 2), copied(K, 1, "gpu4"))
    record = ledger.steps[K]
    alive = SERVERS - {"srv1"}
    spares = {"gpu4": {"gpu1": 3}, "gpu5": {"gpu1": 1}, "gpu6": {"gpu1": 2}}
    assert choose_spares({"gpu1": 1}, spares, record, PLACES, alive)[0] == (
        Swap("gpu1", "gpu4", local=True),
    )
    assert choose_spares({"gpu1": 1}, spares, None, PLACES, alive)[0] == (
        Swap("gpu1", "gpu5", local=False),
    )
    gone = alive - {"srv4", "srv5", "srv6"}
    assert choose_spares({"gpu1": 1}, spares, record, PLACES, gone) == ((), ("gpu1",))


def test_an_aggregator_with_all_its_endpoints() -> None:
    places = {f"gpu{i}": Place(f"gpu{i}", f"srv{i // 8}") for i in range(600)}
    dead = {f"gpu{i}": i for i in range(300)}
    # All but one can take anybody's port; the one needs a spare that others would rather have.
    spares = {f"gpu{i}": dict.fromkeys(dead, 1) for i in range(301, 600)}
    spares["gpu300"] = {"gpu7": 9}
    swaps, without = choose_spares(dead, spares, None, places, {p.server for p in places.values()})
    assert without == () and len({s.spare for s in swaps}) == 300


@given(
    st.dictionaries(
        st.sampled_from(["gpu4", "gpu5", "gpu6", "gpu7"]),
        st.dictionaries(st.sampled_from(["gpu0", "gpu1", "gpu2"]), st.integers(0, 3)),
    ),
    st.sets(st.sampled_from(["gpu0", "gpu1", "gpu2"]), min_size=1),
)
def test_as_many_as_can_get_a_spare_and_none_twice(
    spares: dict[str, dict[str, int]], dead: set[str]
) -> None:
    ranks = {name: int(name[3:]) for name in dead}
    swaps, without = choose_spares(ranks, spares, StepRecord(), PLACES, SERVERS)
    assert sorted([s.dead for s in swaps] + list(without)) == sorted(dead)
    assert len({s.spare for s in swaps}) == len(swaps)
    assert all(s.dead in spares[s.spare] for s in swaps)

    def most(left: list[str], free: frozenset[str]) -> int:
        if not left:
            return 0
        first, rest = left[0], left[1:]
        takes = [1 + most(rest, free - {s}) for s in free if first in spares[s]]
        return max([most(rest, free), *takes])

    assert len(swaps) == most(sorted(dead), frozenset(spares))
