"""The loop that times collectives, over a backend that only counts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from probe import collectives
from probe.collectives import (
    CollectivePoint,
    CollectivesPlan,
    UnsupportedError,
    in_thread,
    read_plan,
    time_all,
)

PLAN = {
    "groups": [[0, 2], [1, 3]],
    "points": {"2": [["all_reduce", 4096, 1024], ["alltoall", 8192, 1024]]},
    "iterations": 20,
    "repetitions": 5,
    "warm_up": 5,
    "point_s": 10.0,
    "check": True,
    "timeout_s": 30.0,
}


class Clock:
    """Time that only operations spend."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Counting:
    """Every operation takes the same time; some do not exist."""

    note = ""

    def __init__(self, clock: Clock, seconds: float, lacks: str = "") -> None:
        self.clock, self.seconds, self.lacks = clock, seconds, lacks
        self.ran: list[int] = []
        self.barriers = 0

    def prepare(self, point: CollectivePoint) -> Callable[[int], None]:
        if point.operation == self.lacks:
            raise UnsupportedError(f"no {point.operation} here")
        self.ran = []
        return self.run

    def run(self, number: int) -> None:
        self.ran.append(number)
        self.clock.now += self.seconds

    def finish(self) -> None:
        pass

    def barrier(self) -> None:
        self.barriers += 1
        self.clock.now += 1.0  # waiting is no operation

    def mean(self, value: float) -> float:
        return value

    def wrong(self, point: CollectivePoint, seed: int) -> int:
        return seed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(collectives, "time", made)
    return made


def plan(**other: Any) -> CollectivesPlan:
    return read_plan(json.dumps({**PLAN, **other}))


def timed(
    capsys: pytest.CaptureFixture[str], backend: Counting, chosen: CollectivesPlan, rank: int = 2
) -> list[dict[str, Any]]:
    time_all(backend, chosen, rank)
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_line_for_each_point_of_the_ranks_group(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    backend = Counting(clock, 0.001)
    first, second = timed(capsys, backend, plan())
    assert first["probe"] == "collective"
    assert (first["group"], first["operation"], first["size"]) == (0, "all_reduce", 4096)
    assert first["times_s"] == pytest.approx([0.001] * 5)
    assert (first["iterations"], first["wrong"], second["wrong"]) == (20, 0, 1)
    # One to see how long it takes, four of warm-up, then five times twenty.
    assert len(backend.ran) == 1 + 4 + 100
    assert backend.ran[-20:] == list(range(20))


def test_slow_operations_are_repeated_less_but_as_often_as_asked(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    first, _ = timed(capsys, Counting(clock, 0.5), plan())
    assert first["iterations"] == 3
    assert first["times_s"] == pytest.approx([0.5] * 5)
    slowest, _ = timed(capsys, Counting(clock, 60.0), plan())
    assert (slowest["iterations"], len(slowest["times_s"])) == (1, 5)


def test_an_operation_that_does_not_exist_is_told_and_the_next_is_timed(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    first, second = timed(capsys, Counting(clock, 0.001, lacks="all_reduce"), plan())
    assert first["reason"] == "no all_reduce here"
    assert "times_s" not in first
    assert len(second["times_s"]) == 5


def test_groups_meet_at_every_point_and_repetition(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    one, other = Counting(clock, 0.001), Counting(clock, 0.001)
    timed(capsys, one, plan(), rank=0)
    lines = timed(capsys, other, plan(), rank=3)
    assert one.barriers == other.barriers == 2 * (1 + 5)
    assert {line["group"] for line in lines} == {1}


def test_without_a_check_no_count_is_printed(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    assert "wrong" not in timed(capsys, Counting(clock, 0.001), plan(check=False))[0]


def test_a_rank_outside_every_group_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank 4 is in no group"):
        plan().group_of(4)


def test_work_beside_the_main_thread_hands_its_error_on() -> None:
    seen: list[str] = []
    in_thread(lambda: seen.append(threading.current_thread().name))
    assert seen == ["collectives"]

    def fails() -> None:
        raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        in_thread(fails)
