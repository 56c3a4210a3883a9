"""Which rank of a failed job failed first, whatever the clocks of its servers say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.engine import RankState, RankStatus
from controller.ranks.diagnosis import merged
from controller.ranks.first_cause import (
    MAX_LINES_CHARS,
    SAME_TIME_S,
    first_cause,
    last_lines,
    ranks_text,
)
from controller.state.records import Failure

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:525] Connection reset by peer"


def ended(rank: int, code: int | None = None, at: float = 100.0, **fields: object) -> RankStatus:
    """A rank that exited with this code, or that runs without one."""
    state = RankState.RUNNING if code is None else RankState.EXITED
    status = RankStatus("red", rank, 7, f"gpu{rank}", f"srv{rank}", state, code)
    at_end = None if code is None else at
    return replace(status, finished_at=at_end, **fields)  # type: ignore[arg-type]


def gone(rank: int) -> RankStatus:
    return RankStatus("red", rank, 7, f"gpu{rank}", f"srv{rank}", RankState.ABSENT)


def decided(ends: Sequence[RankStatus], stopped: Sequence[int] = (), **output: str) -> Failure:
    """``output``: the last line of some ranks, as ``r1``."""
    lines = {int(name[1:]): (line,) for name, line in output.items()}
    found = first_cause(ends, lines, frozenset(stopped))
    assert found is not None
    return found


def test_the_first_of_plain_exits_is_the_cause() -> None:
    found = decided([ended(0, 1, 105.0), ended(1, 3, 100.0), ended(2)], stopped=[2])
    assert (found.rank, found.endpoint, found.epoch, found.exit_code) == (1, "gpu1", 7, 3)
    assert found.cause == "rank 1 exited with code 3"
    assert found.others == "rank 0 exited with code 1; lightloom stopped rank 2"


@pytest.mark.parametrize(
    ("culprit", "cause"),
    [
        (ended(2, 137, 100.9, oom=True), "rank 2 ran out of memory"),
        (ended(2, 139, 100.9), "rank 2 was ended by SIGSEGV (exit code 139)"),
        (ended(2, reason="the GPU is lost"), "rank 2: the GPU is lost"),
        (
            ended(2, 69, 100.9, reason="its NIC had no carrier"),
            "rank 2 exited with code 69: its NIC had no carrier",
        ),
        (gone(2), "the container of rank 2 is gone"),
    ],
)
def test_stronger_evidence_wins_within_a_second(culprit: RankStatus, cause: str) -> None:
    found = decided([ended(0, 1), ended(1, 1, 100.2), culprit])
    assert (found.rank, found.cause) == (2, cause)
    assert found.others == "ranks 0-1 exited with code 1"


@pytest.mark.parametrize(("code", "stopped"), [(0, False), (143, True), (137, True), (1, False)])
def test_a_helper_that_ran_out_of_memory_is_not_the_cause_of_a_crash(
    code: int, stopped: bool
) -> None:
    """The kernel counts what it killed in the container, at any time."""
    helped = ended(0, code, 99.9, oom=True)
    found = decided([helped, ended(1, 139, 100.4)], stopped=[0] if stopped else [])
    assert (found.rank, found.oom) == (1, False)
    assert found.cause == "rank 1 was ended by SIGSEGV (exit code 139)"


@pytest.mark.parametrize("code", [0, 143])
def test_a_helper_that_ran_out_of_memory_fails_no_job(code: int) -> None:
    assert first_cause([ended(0, code, oom=True)], stopped=frozenset({0})) is None
    assert first_cause([ended(0, 0, oom=True)]) is None


def test_a_helper_that_ran_out_of_memory_is_noted() -> None:
    found = decided([ended(0, 1, oom=True), ended(1, 1, 100.2)], r1=RESET)
    assert (found.rank, found.oom) == (0, False)
    note = "the kernel had killed a process of it for lack of memory"
    assert found.cause == f"rank 0 exited with code 1; {note}"


def test_a_kill_long_after_the_first_exit_is_not_the_cause() -> None:
    assert decided([ended(0, 1), ended(1, 139, 101.5)]).rank == 0


def test_a_rank_that_lost_a_connection_followed_another() -> None:
    """Also a rank whose end took longer: it wrote a core file, or a long trace."""
    ends = [ended(0, 1), ended(1, 134, 100.1), ended(2, 1, 104.0), ended(3, 0)]
    found = decided(ends, r0=RESET, r1="ProcessGroupNCCL's watchdog got a timeout", r2="ValueError")
    assert found.rank == 2
    assert found.others == "ranks 0-1 lost the connection to another rank; rank 3 had completed"


def test_when_all_lost_a_connection_the_first_is_named() -> None:
    assert decided([ended(0, 1, 101.0), ended(1, 1, 100.0)], r0=RESET, r1=RESET).rank == 1


def test_a_crash_during_the_stop_explains_a_lost_connection() -> None:
    before = [ended(0, 1), ended(1), ended(2)]
    after = [ended(0, 1), ended(1, 139, 103.0), ended(2, 1, 103.0)]
    ends, lived = merged(before, after)
    found = first_cause(ends, {0: (RESET,)}, lived)
    assert found is not None
    assert found.rank == 1
    assert found.others == ("rank 0 lost the connection to another rank; lightloom stopped rank 2")


@pytest.mark.parametrize("code", [0, 1, 130, 137, 143])
def test_a_rank_that_lightloom_stopped_is_never_the_cause(code: int) -> None:
    assert first_cause([ended(0, code)], stopped=frozenset({0})) is None


def test_nothing_failed_without_a_failed_rank() -> None:
    assert first_cause([ended(0, 0), ended(1)]) is None
    assert first_cause([]) is None


@pytest.mark.parametrize(
    ("code", "name"), [(137, "SIGKILL"), (134, "SIGABRT"), (255, ""), (128, ""), (1, "")]
)
def test_signals_have_names(code: int, name: str) -> None:
    assert decided([ended(0, code)]).signal == name


RANKS = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, 3, 134, 137, 139]),
        st.floats(0, 10),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


def made(ranks: Sequence[tuple[int | None, float, bool, bool]]) -> list[RankStatus]:
    return [
        ended(n, code, at, oom=oom and code == 137) for n, (code, at, oom, _) in enumerate(ranks)
    ]


@given(ranks=RANKS, order=st.randoms(use_true_random=False))
def test_the_cause_is_a_rank_that_failed_in_any_order(
    ranks: list[tuple[int | None, float, bool, bool]], order: st.randoms
) -> None:
    ends = made(ranks)
    lines = {n: (RESET,) for n, (*_, lost) in enumerate(ranks) if lost}
    found = first_cause(ends, lines)
    assert (found is None) == all(not s.exit_code for s in ends)
    if found is not None:
        assert ends[found.rank].exit_code
        order.shuffle(ends)
        again = first_cause(ends, lines)
        assert again == found


@given(ranks=RANKS, skew=st.floats(0, SAME_TIME_S / 2))
def test_skewed_clocks_do_not_hide_a_rank_out_of_memory(
    ranks: list[tuple[int | None, float, bool, bool]], skew: float
) -> None:
    others = [ended(n, code, 100 + skew) for n, (code, *_) in enumerate(ranks) if code != 137]
    culprit = ended(99, 137, 100 + SAME_TIME_S / 2, oom=True)
    assert decided([*others, culprit]).rank == 99


def test_last_lines_are_bounded() -> None:
    kept = last_lines([f"line {n}" for n in range(100)])
    assert kept == tuple(f"line {n}" for n in range(80, 100))
    long = last_lines(["x" * 100_000] * 20)
    assert 0 < sum(map(len, long)) <= MAX_LINES_CHARS
    assert long[-1].endswith("x…")


def test_ranks_are_named_briefly() -> None:
    assert ranks_text([4]) == "rank 4"
    assert ranks_text([5, 0, 1, 2]) == "ranks 0-2, 5"
    assert ranks_text(range(0, 4096, 2)).endswith(" and more, 2048 in all")
    assert len(ranks_text(range(0, 4096, 2))) < 100
