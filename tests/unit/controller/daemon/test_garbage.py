"""Garbage is collected in batches, and everything only when memory has grown much."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field

from controller.daemon.garbage import (
    BATCH,
    ENOUGH,
    GROWTH,
    LOOK_EVERY_S,
    NEVER,
    PATIENCE,
    TOO_MANY,
    Collector,
    Garbage,
    OwnMemory,
)

THRESHOLDS = (700, 10, 10)


@dataclass
class FakeCollector:
    """Counts objects; ``cycles`` of the frozen ones are garbage."""

    old: int = 0
    frozen: int = 0
    cycles: int = 0
    thresholds: tuple[int, int, int] = THRESHOLDS
    enabled: bool = False
    examined: list[int] = field(default_factory=list)

    def get_threshold(self) -> tuple[int, int, int]:
        return self.thresholds

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        self.thresholds = (young, middle, old)

    def get_objects(self, generation: int) -> Sequence[object]:
        assert generation == 2
        return range(self.old)

    def collect(self) -> int:
        self.examined.append(self.old)
        found = min(self.cycles, self.old)
        self.old -= found
        self.cycles -= found
        return found

    def freeze(self) -> None:
        self.frozen, self.old = self.frozen + self.old, 0

    def unfreeze(self) -> None:
        self.frozen, self.old = 0, self.old + self.frozen

    def enable(self) -> None:
        self.enabled = True


@dataclass
class FakeMemory:
    """Bytes in use, and bytes that the C library keeps."""

    live: int = 1_000_000
    free: int = 0

    def used(self) -> int:
        return self.live + self.free

    def trim(self) -> None:
        self.free = 0


class World:
    """A process of which a test sets what it has made."""

    def __init__(self) -> None:
        self.collector = FakeCollector(old=400_000)
        self.memory = FakeMemory()
        self.moving = False
        self.garbage = Garbage(self.collector, self.memory, lambda: self.moving)

    def makes(self, objects: int) -> None:
        self.collector.old += objects
        self.garbage.check()


def test_full_collections_never_start_by_themselves() -> None:
    collector = World().collector
    assert collector.thresholds == (*THRESHOLDS[:2], NEVER)
    assert collector.enabled


def test_what_exists_at_the_start_is_never_examined() -> None:
    world = World()
    world.makes(BATCH)
    assert world.collector.examined == [BATCH]
    assert world.collector.frozen == 400_000


def test_each_batch_makes_an_examination_due_and_fewer_do_not() -> None:
    world = World()
    world.makes(BATCH - 1)
    assert world.collector.examined == []
    world.makes(1)
    world.makes(BATCH - 1)
    assert world.collector.examined == [BATCH]
    world.makes(1)
    assert world.collector.examined == [BATCH, 2 * BATCH]


def test_old_objects_that_die_make_room_before_the_next_examination() -> None:
    world = World()
    world.makes(2 * BATCH)
    world.collector.old = 0
    world.garbage.check()
    world.makes(BATCH)
    assert world.collector.examined == [2 * BATCH, BATCH]


def test_cycles_are_collected_while_they_are_not_frozen() -> None:
    world = World()
    world.makes(BATCH)
    world.collector.cycles = 1_000
    world.makes(BATCH)
    assert world.collector.cycles == 0


def test_objects_are_frozen_when_their_examination_becomes_long() -> None:
    world = World()
    world.makes(ENOUGH)
    assert world.collector.frozen == 400_000
    world.makes(BATCH)
    assert world.collector.frozen == 400_000 + ENOUGH + BATCH
    world.makes(BATCH)
    assert world.collector.examined[-1] == BATCH


def test_more_objects_than_can_be_examined_in_one_turn_are_frozen_unexamined() -> None:
    world = World()
    world.makes(TOO_MANY + 1)
    assert world.collector.examined == []
    assert world.collector.old == 0


def test_no_examination_is_larger_than_a_turn_however_much_is_made() -> None:
    world = World()
    for second in range(1000):
        world.makes(second * 331)
    assert max(world.collector.examined) <= TOO_MANY


def test_memory_that_has_grown_much_makes_one_full_collection_due() -> None:
    world = World()
    world.makes(BATCH)
    world.collector.cycles = 150_000
    world.memory.live *= GROWTH
    world.garbage.check()
    assert world.collector.cycles == 0
    assert world.collector.examined == [BATCH, 400_000 + BATCH]
    world.garbage.check()
    assert len(world.collector.examined) == 2


def test_memory_that_is_only_kept_by_the_c_library_is_given_back_first() -> None:
    world = World()
    world.memory.free = GROWTH * world.memory.live
    world.garbage.check()
    assert world.memory.free == 0
    assert world.collector.examined == []


def test_the_next_full_collection_waits_until_memory_has_grown_as_much_again() -> None:
    world = World()
    for _ in range(64):
        world.memory.live += 500_000
        world.garbage.check()
    assert len(world.collector.examined) == 3  # 33 times as much is three times three times three


def test_nothing_is_examined_while_endpoints_are_dark() -> None:
    world = World()
    world.moving = True
    world.memory.live *= GROWTH
    world.makes(BATCH)
    assert world.collector.examined == []
    world.moving = False
    world.garbage.check()
    assert world.collector.examined == [400_000 + BATCH]


def test_endpoints_that_stay_dark_do_not_let_garbage_grow_without_bound() -> None:
    world = World()
    world.moving = True
    world.memory.live *= PATIENCE
    world.garbage.check()
    assert world.collector.examined == [400_000]


async def test_a_look_comes_once_a_second() -> None:
    world = World()
    world.collector.old = BATCH
    keeping = asyncio.create_task(world.garbage.keep())
    await asyncio.sleep(LOOK_EVERY_S / 2)
    assert world.collector.examined == []
    await asyncio.sleep(LOOK_EVERY_S)
    assert world.collector.examined == [BATCH]
    keeping.cancel()


def test_pythons_own_collector_finds_a_cycle_among_frozen_objects() -> None:
    collector: Collector = gc
    before, memory = gc.get_threshold(), FakeMemory()

    class Node:
        me: Node
        freed = 0

        def __del__(self) -> None:
            Node.freed += 1

    try:
        garbage = Garbage(collector, memory, lambda: False)
        node = Node()
        node.me = node
        collector.freeze()
        del node
        collector.collect()
        assert Node.freed == 0
        memory.live *= GROWTH
        garbage.check()
        assert Node.freed == 1
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def test_the_memory_of_this_process_is_read_and_trimmed() -> None:
    memory = OwnMemory()
    memory.trim()  # what earlier tests have freed
    before = memory.used()
    kept = b"x" * (64 << 20)
    assert before + len(kept) // 2 < memory.used()
