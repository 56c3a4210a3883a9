from __future__ import annotations

from dataclasses import replace

import pytest

from container_mgr.recordings import profiled, xspace
from container_mgr.recordings.asking import Failure
from container_mgr.recordings.profiled import Profiled
from container_mgr.recordings.recording import RecordingState
from container_mgr.recordings.shown import profiler_port
from container_mgr.recordings.xspace import WindowProfile
from tests.parts.agent import profiles
from tests.parts.agent.profiles import BEGAN_AT, made

NOW = BEGAN_AT / 1e9 + 2
NEW = Profiled(since_s=100.0)
ABSENT = RecordingState(state="absent", reason="no recorder", time=5.0)


def trained(step_ms: int = 100, wait_ms: int = 10) -> WindowProfile:
    """Return a window of steps with one all-reduce of 20 ms each, and one wait."""
    events = []
    for begin in range(0, 2000, step_ms):
        events += [
            ("It:IteratorGetNext", begin, begin + wait_ms),
            ("a:CollectiveReduceV2", begin + 50, begin + 70),
            ("b:MatMul", begin + 60, begin + 90),
        ]
    return xspace.read(made(*events))


def added(known: Profiled, profile: WindowProfile, *, now_s: float = 160.0) -> Profiled:
    return profiled.added(known, profile, name="ll-a-0-1", now=NOW, now_s=now_s, on_gpu=False)


def test_a_window_gives_rows_calls_and_steps() -> None:
    known = added(NEW, trained())
    rows = {row.op: row for row in known.operations}
    reduce = rows["all_reduce"]
    assert (reduce.calls, reduce.bytes, reduce.source) == (20, 0, "tf")
    assert reduce.total_s == pytest.approx(0.4)
    assert sum(reduce.histogram) == 20
    assert rows["input_wait"].total_s / rows["step"].calls == pytest.approx(0.01)
    assert known.latest is not None
    assert known.latest.comm_s == pytest.approx(0.4)
    assert known.latest.exposed_s == pytest.approx(0.2)
    first = known.calls[0]
    assert first.issued_s == pytest.approx(158.05)
    assert first.ended_s == pytest.approx(158.07)
    assert known.coverage(160.0) == pytest.approx(2 / 60)


def test_windows_are_summed_and_the_latest_calls_kept() -> None:
    known = added(added(NEW, trained()), trained(200))
    rows = {row.op: row for row in known.operations}
    assert rows["all_reduce"].calls == 30
    assert len(known.calls) == 10
    assert known.operations[known.calls[0].operation].op == "all_reduce"
    assert known.coverage(260.0) == pytest.approx(4 / 160)


def test_a_real_window_has_its_steps() -> None:
    real = xspace.read(profiles.golden())
    known = profiled.added(
        NEW, real, name="ll-a-0-1", now=real.began_at / 1e9, now_s=0.0, on_gpu=False
    )
    rows = {row.op: row for row in known.operations}
    assert rows["all_reduce"].calls == 54
    assert rows["step"].total_s / rows["step"].calls == pytest.approx(0.105, abs=0.03)


def test_ranks_have_communicators_of_their_own() -> None:
    numbers = {
        profiled.added(NEW, trained(), name=name, now=NOW, now_s=0.0, on_gpu=False)
        .calls[0]
        .communicator
        for name in ("ll-a-0-1", "ll-a-1-1")
    }
    assert len(numbers) == 2


def test_on_a_gpu_the_kernels_of_the_processor_say_nothing() -> None:
    known = profiled.added(NEW, trained(), name="a", now=NOW, now_s=0.0, on_gpu=True)
    assert known.latest is not None
    assert known.latest.exposed_s is None


def test_a_window_of_another_time_is_a_lie() -> None:
    assert added(NEW, replace(trained(), began_at=7)).failure == "invalid"


def test_an_idle_worker_has_a_window_without_calls() -> None:
    known = added(NEW, xspace.read(made()))
    assert (known.operations, known.calls) == ((), ())
    assert profiled.shown(ABSENT, known).state == "recording"


def test_a_program_that_profiles_itself_is_never_asked_again() -> None:
    known = profiled.failed(added(NEW, trained()), "busy")
    assert profiled.asked_now(known) == (False, known)
    read = profiled.shown(ABSENT, known)
    assert read.state == "refused"
    assert "profiles itself" in read.reason
    assert read.operations, "what was seen before stays"


def test_our_own_window_that_still_runs_is_not_the_programs() -> None:
    known = profiled.failed(profiled.failed(NEW, "silent"), "busy")
    assert profiled.asked_now(known)[0]
    assert not known.never
    assert profiled.failed(replace(known, doubtful=False), "busy").never


@pytest.mark.parametrize("failure", ["closed", "silent", "invalid"])
def test_failures_are_followed_by_ever_longer_pauses(failure: Failure) -> None:
    known, asked = NEW, []
    for turn in range(80):
        now, known = profiled.asked_now(known)
        if now:
            asked.append(turn)
            known = profiled.failed(known, failure)
    assert asked == [0, 1, 2, 3, 6, 11, 20, 37, 54, 71]
    read = profiled.shown(ABSENT, known)
    assert (read.state, bool(read.reason)) == ("absent", True)
    assert added(known, trained()).pause == known.pause
    assert added(known, trained()).failures == 0


def slow(step_ms: int, window_s: float) -> WindowProfile:
    """Return a window of steps with one all-reduce each, and nothing else."""
    length_ms = round(1000 * window_s)
    calls = [("a:CollectiveReduceV2", at, at + 20) for at in range(0, length_ms, step_ms)]
    return xspace.read(made(*calls, length=length_ms))


@pytest.mark.parametrize("step_ms", [450, 700, 1200, 2400])
@pytest.mark.parametrize("seen_on_the_wire", [True, False])
def test_windows_grow_until_they_see_steps(step_ms: int, seen_on_the_wire: bool) -> None:
    known, lengths = NEW, []
    for _ in range(4):
        period_s = step_ms / 1000 if seen_on_the_wire else None
        lengths.append(profiled.window_s(known, period_s))
        known = added(known, slow(step_ms, lengths[-1]))
    assert known.step_s == pytest.approx(step_ms / 1000)
    assert lengths[0] == pytest.approx(min(6 * step_ms / 1000, 10) if seen_on_the_wire else 2)
    assert max(lengths) <= 10
    # Short steps bring short windows back.
    assert profiled.window_s(added(known, trained()), 0.1) == 2


def test_windows_of_workers_that_do_not_answer_shrink() -> None:
    known = profiled.failed(added(NEW, slow(1200, 2)), "silent")
    assert profiled.window_s(known, 1.2) == 5
    assert profiled.window_s(profiled.failed(known, "invalid"), 1.2) == 2.5
    assert profiled.window_s(profiled.failed(profiled.failed(known, "invalid"), "silent"), 9) == 2
    assert profiled.window_s(added(NEW, xspace.read(made())), None) == 2, "an idle worker"


def test_what_has_no_profiler_is_asked_once() -> None:
    assert not profiled.asked_now(profiled.failed(NEW, "none"))[0]


def test_recorders_of_files_come_first() -> None:
    known = added(NEW, trained())
    own = replace(ABSENT, state="recording", operations=known.operations[:1])
    assert profiled.shown(own, known) is own
    damaged = profiled.shown(replace(ABSENT, state="damaged", reason="lies"), known)
    assert (damaged.state, damaged.reason) == ("damaged", "lies")
    assert profiled.shown(ABSENT, None) is ABSENT
    assert profiled.shown(ABSENT, NEW) is ABSENT


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ('{"cluster": {"worker": ["a:1", "b:123"]}, "task": {"type": "worker", "index": 1}}', 123),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 7}}', 0),
        ('{"cluster": {"worker": ["a:x"]}, "task": {"type": "worker", "index": 0}}', 0),
        ('{"cluster": {"worker": ["a:99999"]}, "task": {"type": "worker", "index": 0}}', 0),
        ('{"cluster": {"worker": ["[fd00::1]:7"]}, "task": {"type": "worker", "index": 0}}', 7),
        ('{"cluster": {"worker": ["fd00::1:7"]}, "task": {"type": "worker", "index": 0}}', 0),
        ('{"cluster": {"worker": [7]}, "task": {"type": "worker", "index": 0}}', 0),
        ("[]", 0),
        ("{}", 0),
        ("[" * 100_000, 0),
    ],
)  # fmt: skip
def test_the_port_is_that_of_the_ranks_task(text: str, port: int) -> None:
    assert profiler_port({"TF_CONFIG": text}) == port
    assert profiler_port({}) == 0
