from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_mgr.recordings import xspace
from container_mgr.recordings.xspace import InvalidError, WindowProfile
from protos import profiler_pb2 as pb
from tests.parts.agent import profiles
from tests.parts.agent.profiles import MS, made

REDUCE = "CollectiveReduceV2_3:CollectiveReduceV2"
MULTIPLY = "gradient_tape/MatMul:_MklMatMul"


def test_a_real_window_has_the_programs_own_steps() -> None:
    profile = xspace.read(profiles.golden())
    assert profile.length / 1e9 == pytest.approx(0.8, abs=0.01)
    assert {op for op, _, _ in profile.calls} == {"all_reduce"}
    ends = [end / 1e9 for _, _, end in profile.calls]
    before = 0.0
    for number, step_end in enumerate(profiles.STEP_ENDS_S):
        mine = sum(before < end <= step_end for end in ends)
        # The first step began before the window: some of its collectives are not in it.
        assert mine == profiles.COLLECTIVES if number else mine <= profiles.COLLECTIVES
        before = step_end
    assert profile.waits == len(profiles.STEP_ENDS_S)
    # All gradients are computed when the first of them is sent.
    assert 0.9 * profile.comm < profile.exposed <= profile.comm
    assert profile.comm < profile.length / 2


def test_kernels_cover_communication() -> None:
    data = made((REDUCE, 100, 300), (REDUCE, 250, 400), (MULTIPLY, 0, 150), (MULTIPLY, 390, 900))
    profile = xspace.read(data)
    assert profile.calls == (
        ("all_reduce", 100 * MS, 300 * MS),
        ("all_reduce", 250 * MS, 400 * MS),
    )
    assert (profile.comm, profile.exposed) == (300 * MS, 240 * MS)


@pytest.mark.parametrize(
    "name",
    [
        "ExecutorState::Process",
        "EagerLocalExecute: __inference_step_509",
        "EagerLocalExecute: CollectiveReduceV2",
        "StatefulPartitionedCall:StatefulPartitionedCall",
        "BaseCollectiveExecutor::ExecuteAsync",
        "Loop",
        "python:of the program",
        "",
    ],
)
def test_what_contains_or_awaits_others_is_no_computation(name: str) -> None:
    profile = xspace.read(made((REDUCE, 100, 300), (name, 0, 2000)))
    assert profile.exposed == 200 * MS
    assert len(profile.calls) == 1


@pytest.mark.parametrize("name", ["It:IteratorGetNext", "EagerLocalExecute: IteratorGetNext"])
def test_waits_for_the_input_are_no_computation(name: str) -> None:
    profile = xspace.read(made((REDUCE, 100, 300), (name, 50, 250), (name, 60, 70)))
    assert (profile.waits, profile.waited, profile.exposed) == (1, 200 * MS, 200 * MS)


@pytest.mark.parametrize(
    ("kind", "op"),
    [
        ("CollectiveGatherV2", "all_gather"),
        ("CollectiveReduceScatterV2", "reduce_scatter"),
        ("CollectiveAllToAllV3", "alltoall"),
        ("CollectiveBcastRecvV2", "broadcast"),
    ],
)
def test_collectives_have_the_names_of_nccl_tests(kind: str, op: str) -> None:
    assert xspace.read(made((f"a/b:{kind}", 1, 2))).calls[0][0] == op


def test_lines_may_have_absolute_times() -> None:
    assert xspace.read(made((REDUCE, 5, 7), absolute=True)).calls[0][1:] == (5 * MS, 7 * MS)


def test_impossible_times_do_not_count() -> None:
    data = made((REDUCE, -5, 7), (REDUCE, 9, 8), (REDUCE, 10, 1e9), (REDUCE, 5, 7))
    assert xspace.read(data).calls == (("all_reduce", 5 * MS, 7 * MS),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x42",
        b"lies",
        profiles.answer([pb.XPlane(name=b"/host:CPU")]),
        made(length=0),
        made(length=-1),
        made(length=61_000),
        made(began_at=0),
    ],
)
def test_what_is_no_profile_is_invalid(data: bytes) -> None:
    with pytest.raises(InvalidError):
        xspace.read(data)


def test_too_many_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xspace, "MOST_EVENTS", 2)
    with pytest.raises(InvalidError, match="too many"):
        xspace.read(made(*[(MULTIPLY, 1, 2)] * 3))


def test_the_latest_of_very_many_calls_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xspace, "MOST_CALLS", 2)
    profile = xspace.read(made(*[(REDUCE, at, at + 1) for at in (10, 20, 30)]))
    assert [begin for _, begin, _ in profile.calls] == [20 * MS, 30 * MS]


def plausible(profile: WindowProfile) -> bool:
    return (
        0 < profile.length <= xspace.LONGEST_NS
        and 0 <= profile.exposed <= profile.comm <= profile.length + xspace.LONGEST_NS
        and 0 <= profile.waited <= profile.length + xspace.LONGEST_NS
        and len(profile.calls) <= xspace.MOST_CALLS
        and all(0 <= begin <= end for _, begin, end in profile.calls)
    )


@given(
    edits=st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=20),
    cut=st.integers(0, 2**20),
)
def test_a_damaged_answer_is_invalid_or_plausible(edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(SMALL)
    for at, value in edits:
        data[at % len(data)] = value
    try:
        profile = xspace.read(bytes(data[: cut % (len(data) + 1) or None]))
    except InvalidError:
        return
    assert plausible(profile)


SMALL = made(
    (REDUCE, 100, 300), (REDUCE, 250, 400), (MULTIPLY, 0, 150), ("It:IteratorGetNext", 5, 6)
)

SPANS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(0, 100)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=20,
)


@given(left=SPANS, right=SPANS)
def test_exposed_is_what_no_kernel_covers(
    left: list[tuple[int, int]], right: list[tuple[int, int]]
) -> None:
    events = [(REDUCE, *span) for span in left] + [(MULTIPLY, *span) for span in right]
    profile = xspace.read(made(*events))
    inside = {ms for begin, end in left for ms in range(begin, end)}
    covered = {ms for begin, end in right for ms in range(begin, end)}
    assert profile.comm == len(inside) * MS
    assert profile.exposed == len(inside - covered) * MS
