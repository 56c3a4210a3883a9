"""Which step is copied, and which may go: jobs may write faster than their servers copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints.ledger import (
    Began,
    Coded,
    Copied,
    Key,
    Ledger,
    LedgerRun,
    Member,
    Spoiled,
    State,
    Wrote,
    fold,
    state,
)
from checkpoints.schemes import Layout
from checkpoints.values import Place, Scheme
from controller.checkpoints.book import complete_of, safety_of
from controller.checkpoints.protection import RunningRanks, droppable, target, wanted

PLACES = {f"gpu{n}": Place(f"gpu{n}", f"srv{n}", "as0") for n in range(2)}
LAYOUT = Layout(Scheme.PARTNER, partner=(1, 0))
EPOCH = 5
RUNNING = RunningRanks(EPOCH, ("gpu0", "gpu1"), {}, LAYOUT)


def key(step: int) -> Key:
    return Key(step, EPOCH)


def written(step: int) -> list[Wrote]:
    return [Wrote(key(step), rank, f"gpu{rank}", f"{step}-{rank}", 9) for rank in range(2)]


def copied(step: int) -> list[Copied]:
    return [Copied(key(step), rank, f"gpu{1 - rank}", f"{step}-{rank}", 9) for rank in range(2)]


@dataclass
class Keeper:
    """What the controller does at every look."""

    ledger: Ledger = field(
        default_factory=lambda: fold(Ledger(), Began(EPOCH, LedgerRun(2, LAYOUT)))
    )
    copying: Key | None = None
    seen: set[Key] = field(default_factory=set)

    def look(self, keep: int) -> tuple[Key, ...]:
        safety = safety_of(self.ledger, PLACES)
        self.seen.update(complete_of(self.ledger, PLACES))
        self.copying = target(self.ledger, RUNNING, PLACES, safety, self.copying)
        stays = self.seen if self.copying is None else self.seen | {self.copying}
        return droppable(self.ledger, keep, PLACES, stays, None)

    def take(self, reports: Sequence[Wrote | Copied]) -> None:
        self.ledger = reduce(fold, reports, self.ledger)


def test_a_copy_that_began_is_finished_before_a_newer_one_begins() -> None:
    keeper = Keeper()
    keeper.take(written(5))
    assert keeper.look(2) == ()
    for step in (10, 15, 20):
        keeper.take(written(step))
        keeper.look(2)
        assert keeper.copying == key(5)
    keeper.take(copied(5))
    keeper.look(2)
    assert keeper.copying == key(20), "then the newest"


def chosen(keeper: Keeper, now: Key | None, running: RunningRanks = RUNNING) -> Key | None:
    places = {**PLACES, "gpu2": Place("gpu2", "srv2", "as0")}
    return target(keeper.ledger, running, places, safety_of(keeper.ledger, places), now)


def test_a_step_that_cannot_be_copied_gives_its_turn_up() -> None:
    keeper = Keeper()
    keeper.take([*partly(5), *written(10)])
    assert chosen(keeper, key(5)) == key(10)
    keeper.ledger = fold(keeper.ledger, Spoiled(key(10), "torn"))
    keeper.ledger = fold(keeper.ledger, Spoiled(key(5), "torn"))
    assert chosen(keeper, key(5)) is None


def test_a_part_is_copied_while_other_ranks_still_write() -> None:
    keeper = Keeper()
    keeper.take([*written(5), *copied(5), *partly(10)])
    assert chosen(keeper, None) == key(10)
    other = replace(RUNNING, epoch=EPOCH + 1)
    assert chosen(keeper, None, other) is None, "another run writes it no more"


@pytest.mark.parametrize(
    "layout", [LAYOUT, Layout(Scheme.XOR, sets=((0, 1),))], ids=["partner", "xor"]
)
def test_a_step_whose_part_only_a_lost_endpoint_has_gives_its_turn_up(layout: Layout) -> None:
    keeper = Keeper()
    keeper.take([*written(5), *copied(5)[:1]])
    keeper.ledger = fold(keeper.ledger, Began(EPOCH + 1, LedgerRun(2, layout, key(5))))
    swapped = RunningRanks(EPOCH + 1, ("gpu0", "gpu2"), {}, layout)
    assert chosen(keeper, key(5), replace(swapped, endpoints=("gpu0", "gpu1"))) == key(5)
    assert chosen(keeper, key(5), swapped) is None, "gpu1 is lost, with rank 1's part"
    later = Key(10, EPOCH + 1)
    keeper.take([Wrote(later, 0, "gpu0", "10-0", 9)])
    assert chosen(keeper, key(5), swapped) == later
    keeper.take([Wrote(later, 1, "gpu2", "10-1", 9)])
    assert chosen(keeper, key(5), swapped) == later


def test_steps_that_nothing_copies_go_once_a_newer_one_is_written() -> None:
    keeper = Keeper()
    for step in (5, 10, 15):
        keeper.take(written(step))
        going = keeper.look(2)
    assert going == (key(10),), "5 is being copied, 15 is the newest"


def test_a_step_that_lost_its_copies_stays() -> None:
    keeper = Keeper()
    for step in (5, 10):
        keeper.take(written(step))
        keeper.take(copied(step))
        keeper.look(2)
    alone = {name: Place(name, "srv0", "as0") for name in PLACES}
    safety = safety_of(keeper.ledger, alone)
    assert set(safety.values()) == {State.WRITTEN}
    assert droppable(keeper.ledger, 2, alone, keeper.seen, None) == ()


def partly(step: int, epoch: int = EPOCH) -> list[Wrote]:
    return [Wrote(Key(step, epoch), 0, "gpu0", f"{step}-0", 9)]


@pytest.mark.parametrize("keep", [1, 3])
def test_steps_that_a_rank_never_writes_go(keep: int) -> None:
    keeper = Keeper()
    for step in range(1, 21):
        keeper.take(partly(step))
    assert keeper.look(keep) == tuple(key(step) for step in range(1, 20 - keep))
    silent = droppable(keeper.ledger, keep, PLACES, (), None, all_told=False)
    assert silent == (), "a server that is away may have the other parts"


def test_partial_steps_older_than_a_complete_one_go() -> None:
    keeper = Keeper()
    for step in (1, 2, 4):
        keeper.take(partly(step))
    keeper.take([*written(3), *copied(3)])
    assert keeper.look(2) == (key(1), key(2))


def test_a_part_that_is_reported_after_a_newer_one_still_completes_its_step() -> None:
    """Agents hold the newest step first."""
    keeper = Keeper()
    keeper.take([Wrote(key(10), 1, "gpu1", "10-1", 9), *partly(20)])
    assert keeper.look(2) == ()
    keeper.take(partly(10))
    assert state(keeper.ledger, key(10), PLACES) is State.WRITTEN


def test_a_coded_step_whose_sets_have_changed_gives_its_turn_up() -> None:
    """Its old parities stand, so that no new ones are made; newer steps need their turn."""
    places = {f"gpu{n}": Place(f"gpu{n}", f"srv{n}", f"as{n % 2}") for n in range(4)}
    before, after = (Layout(Scheme.XOR, sets=sets) for sets in (((0, 1), (2, 3)), ((0, 2), (1, 3))))
    ends = tuple(places)
    ledger = fold(Ledger(), Began(EPOCH, LedgerRun(4, before)))
    for rank, end in enumerate(ends):
        ledger = fold(ledger, Wrote(key(10), rank, end, f"10-{rank}", 9))
    for ring in before.sets:
        covers = tuple(Member(rank, f"10-{rank}", 9) for rank in ring)
        for rank in ring:
            ledger = fold(ledger, Coded(key(10), rank, ends[rank], covers))
    running = RunningRanks(EPOCH, ends, {}, after)
    safety = {key(10): State.WRITTEN}  # the sets of before are not apart where light is now
    assert target(ledger, running, places, safety, key(10)) is None
    for rank, end in enumerate(ends):
        ledger = fold(ledger, Wrote(key(20), rank, end, f"20-{rank}", 9))
    safety[key(20)] = State.WRITTEN
    assert target(ledger, running, places, safety, key(10)) == key(20)


def test_a_later_run_completes_its_own_steps() -> None:
    keeper = Keeper()
    keeper.ledger = fold(keeper.ledger, Began(EPOCH + 1, LedgerRun(2, LAYOUT)))
    for step in (100, 101):
        keeper.take(partly(step))
    keeper.take([*written(90), *copied(90)])
    keeper.take(partly(20, EPOCH + 1))
    assert Key(20, EPOCH + 1) not in droppable(keeper.ledger, 2, PLACES, (), None)


def test_of_identical_parts_nothing_is_copied_while_a_server_apart_is_about_to_write_one() -> None:
    ledger = fold(Ledger(), Began(EPOCH, LedgerRun(2, LAYOUT, identical=True)))
    running = RunningRanks(EPOCH, ("gpu0", "gpu1"), {}, LAYOUT)

    def orders(step: int, *ranks: int) -> int:
        nonlocal ledger
        for rank in ranks:
            ledger = fold(ledger, Wrote(key(step), rank, f"gpu{rank}", "the same", 9))
        return len(wanted(ledger, running, PLACES, key(step), None))

    assert orders(5, 0) == 1, "who writes is not known yet"
    assert orders(5, 1) == 0, "both servers have it"
    assert orders(10, 0) == 0, "rank 1 wrote the step before as well"
    assert orders(15, 0) == 1, "it did not: only rank 0 still writes"


@given(st.integers(1, 9), st.integers(1, 4))
def test_however_slow_copies_are_steps_become_protected_and_space_is_bounded(
    slow: int, keep: int
) -> None:
    """A copy takes the time of ``slow`` steps, and starts again when another step is ordered."""
    keeper, held, began = Keeper(), set[Key](), 0
    was: Key | None = None
    for number in range(1, 12 * slow):
        keeper.take(written(number))
        held.add(key(number))
        held -= set(keeper.look(keep))
        if keeper.copying != was:
            was, began = keeper.copying, number
        assert len(held) <= keep + 2, "the complete ones, the one being copied, the newest"
        if was is not None and number - began >= slow:
            keeper.take(copied(was.step))
            held -= set(keeper.look(keep))
    assert len(keeper.seen) >= 5
