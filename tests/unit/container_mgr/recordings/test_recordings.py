from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.ranks import RankKey
from agentlink.values import Record
from container_mgr.recordings import recordings
from container_mgr.recordings.recording import RankRecording, RecordingState
from container_mgr.recordings.recordings import KEPT_S, SOON_S, Recordings
from container_mgr.recordings.shown import NOTHING
from container_mgr.recordings.wire import NicSampler, sent_bytes
from container_mgr.rpc import messages
from recorder import layout
from recorder.python.lightloom_writer import Writer
from scheduler.steptime.identify import LEAST_STEPS
from tests.unit.container_mgr.recordings.parts import FakeRank


@dataclass
class World:
    """Recordings over ranks of a fake /proc, with clocks that the test sets."""

    proc: Path
    ranks: list[FakeRank] = field(default_factory=list)
    now: float = 1000.0
    paused: set[str] = field(default_factory=set)
    on_sleep: Callable[[], None] = lambda: None
    sampler: NicSampler = field(init=False)
    kept: Recordings = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = NicSampler(self.proc, lambda: self.now, self.sleep, lambda: 0.0)
        self.kept = Recordings(
            paused=self.paused.__contains__,
            sampler=self.sampler,
            proc=self.proc,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.on_sleep()

    def train(self, ranks: Sequence[FakeRank], *, compute_s: float, comm_s: float) -> None:
        """Let ranks compute, then send, step by step."""

        def on_sleep() -> None:
            if self.now % (compute_s + comm_s) > compute_s:
                for rank in ranks:
                    rank.send(200_000)

        self.on_sleep = on_sleep

    def rank(
        self, number: int = 0, epoch: int = 1, job: str = "red", **options: object
    ) -> FakeRank:
        one = FakeRank(self.proc, RankKey(job, number, epoch), **options)  # type: ignore[arg-type]
        self.ranks.append(one)
        self.kept.begin(one.container)
        return one


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    one = World(tmp_path)
    yield one
    await one.kept.close()
    for rank in one.ranks:
        rank.end()


async def ended(world: World, rank: FakeRank) -> None:
    rank.end()
    name = rank.key.container
    world.kept.end(name)
    closing = world.kept._watched[name].closing
    assert closing is not None
    await closing


async def test_calls_are_read_again_and_again(world: World) -> None:
    rank = world.rank()
    await world.kept.read()
    (before,) = world.kept.of("red")
    assert (before.read.state, before.read.reason) == ("absent", NOTHING)
    rank.write(calls=3)
    await world.kept.read()
    rank.write(calls=5)
    await world.kept.read()
    (found,) = world.kept.of()
    assert found.read.state == "recording"
    (row,) = found.read.operations
    assert (row.op, row.bytes, row.calls) == ("all_reduce", 4096, 5)
    assert [call.sequence for call in found.read.calls] == [0, 1, 2, 3, 4]


async def test_the_last_steps_of_an_ended_rank_count(world: World) -> None:
    rank = world.rank()
    rank.write(calls=3)
    await world.kept.read()
    rank.write(calls=9)
    await ended(world, rank)
    (found,) = world.kept.of("red")
    assert found.read.operations[0].calls == 9


async def test_ended_ranks_are_forgotten_in_the_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = world.rank(0), world.rank(1), world.rank(2)
    await ended(world, first)
    world.now += 1
    await ended(world, second)
    monkeypatch.setattr(recordings, "MOST_ENDED", 1)
    await world.kept.read()
    assert {r.key for r in world.kept.of()} == {second.key, third.key}
    world.now += KEPT_S + 1
    await world.kept.read()
    assert {r.key for r in world.kept.of()} == {third.key}


async def test_full_recorders_of_one_job_displace_no_other_jobs_ended_ranks(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "MOST_ENDED_ROWS", 10)
    other = world.rank(0, job="blue")
    other.write()
    await ended(world, other)
    for epoch in range(1, 4):
        world.now += 1
        full = world.rank(0, epoch)
        for size in range(4):
            full.write(f"torch-{17 + size}.rec", size=4096 << size)
        await ended(world, full)
    await world.kept.read()
    assert {(r.key.job, r.key.epoch) for r in world.kept.of()} == {
        ("blue", 1),
        ("red", 2),
        ("red", 3),
    }


async def test_a_restarted_rank_begins_anew(world: World) -> None:
    old = world.rank(epoch=1)
    old.write(calls=4)
    await ended(world, old)
    new = world.rank(epoch=2)
    new.write(calls=1)
    await world.kept.read()
    calls = {r.key.epoch: r.read.operations[0].calls for r in world.kept.of("red")}
    assert calls == {1: 4, 2: 1}


async def test_processes_of_one_rank_are_summed(world: World) -> None:
    rank = world.rank()
    rank.write("torch-17.rec", calls=3)
    rank.write("torch-18.rec", calls=2)
    rank.write("nccl-18.rec", calls=2)
    await world.kept.read()
    (found,) = world.kept.of()
    assert {(r.source, r.calls) for r in found.read.operations} == {("torch", 5), ("nccl", 2)}
    assert len(found.read.calls) == 7


async def test_damage_is_said_and_the_rest_counts(world: World) -> None:
    rank = world.rank()
    rank.write("torch-17.rec", calls=3)
    (rank.directory / "nccl-3.rec").write_bytes(b"lies")
    await world.kept.read()
    (found,) = world.kept.of()
    assert found.read.state == "damaged"
    assert "nccl-3.rec" in found.read.reason
    assert found.read.operations[0].calls == 3


@pytest.mark.parametrize("harm", ["forged", "truncated", "grown"])
async def test_a_file_that_its_job_spoils_harms_nobody_else(world: World, harm: str) -> None:
    spoilt, other = world.rank(0), world.rank(1)
    path = spoilt.write(calls=3)
    other.write(calls=4)
    await world.kept.read()
    match harm:
        case "forged":
            path.write_bytes(b"\xff" * layout.SIZE)
        case "truncated":
            path.write_bytes(b"")
        case "grown":
            os.truncate(path, 2**40)
    await world.kept.read()
    states = {r.key.rank: r.read for r in world.kept.of()}
    assert (states[0].state, states[1].state) == ("damaged", "recording")
    assert "torch-17.rec" in states[0].reason
    assert states[1].operations[0].calls == 4
    path.unlink()
    spoilt.write(calls=5)
    await world.kept.read()
    assert {r.key.rank: r.read.state for r in world.kept.of()} == {0: "recording", 1: "recording"}


async def test_a_file_that_shrinks_while_it_is_read_is_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.rank().write()
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, at: whole(file, size // 2, at))
    await world.kept.read()
    (found,) = world.kept.of()
    assert (found.read.state, found.read.operations) == ("damaged", ())


async def test_figures_outlive_files_that_a_rank_removes(world: World) -> None:
    rank = world.rank()
    path = rank.write(calls=3)
    await world.kept.read()
    path.unlink()
    await ended(world, rank)
    (found,) = world.kept.of()
    assert found.read.operations[0].calls == 3


async def test_a_refused_rank_says_why(world: World) -> None:
    world.rank(refused="the job sets NCCL_PROFILER_PLUGIN itself")
    await world.kept.read()
    (found,) = world.kept.of()
    assert (found.read.state, found.read.reason) == (
        "refused",
        "the job sets NCCL_PROFILER_PLUGIN itself",
    )


async def test_a_plug_in_of_the_job_is_said_also_where_pytorch_is_recorded(world: World) -> None:
    world.rank(refused="the job sets NCCL_PROFILER_PLUGIN itself").write()
    await world.kept.read()
    (found,) = world.kept.of()
    assert (found.read.state, found.read.reason) == (
        "recording",
        "the job sets NCCL_PROFILER_PLUGIN itself",
    )


async def test_a_rank_that_is_not_recorded_is_not_watched(world: World) -> None:
    world.rank(record=Record.OFF)
    await world.kept.read()
    await world.kept.watch_nics()
    assert world.kept.of() == []


async def test_bursts_on_the_wire_are_seen(world: World) -> None:
    rank = world.rank()

    world.train([rank], compute_s=0.5, comm_s=0.2)
    await world.kept.watch_nics()
    (found,) = world.kept.of()
    assert found.wire is not None
    assert found.wire.period_s == pytest.approx(0.7, rel=0.05)
    assert found.wire.burst_s == pytest.approx(0.2, abs=0.05)
    assert found.wire_time == world.now


@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
async def test_the_wire_of_a_frozen_job_says_nothing(world: World, when: str) -> None:
    rank = world.rank()
    if when == "before":
        world.paused.add(rank.key.container)

    def train() -> None:
        rank.send(100_000)
        if when == "meanwhile" and world.now > 1002:
            world.kept.disturb("red")
        if when == "after" and world.now > 1002:
            world.paused.add(rank.key.container)

    world.on_sleep = train
    await world.kept.watch_nics()
    (found,) = world.kept.of()
    assert found.wire is None


async def test_all_ranks_get_their_turn(world: World) -> None:
    for number in range(3):
        world.rank(number)
    world.sampler.most = 2
    await world.kept.watch_nics()
    assert sum(r.wire is not None for r in world.kept.of()) == 2
    await world.kept.watch_nics()
    assert all(r.wire is not None for r in world.kept.of())


async def test_long_steps_get_longer_windows(world: World) -> None:
    rank = world.rank()

    world.train([rank], compute_s=3.0, comm_s=1.0)
    for _ in range(3):
        await world.kept.watch_nics()
    (found,) = world.kept.of()
    assert found.wire is not None
    assert found.wire.period_s == pytest.approx(4, rel=0.05)


def test_an_expensive_look_watches_fewer_ranks(tmp_path: Path) -> None:
    now, used = 0.0, iter([0.0, 1.5])

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    rank = FakeRank(tmp_path)
    sampler = NicSampler(tmp_path, lambda: now, sleep, lambda: next(used))
    sampler.sample([rank.process.pid] * 8)
    assert sampler.most == 1
    rank.end()


def test_the_nic_of_a_rank_is_found(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path)
    rank.send(1234)
    assert sent_bytes(rank.process.pid, tmp_path) == 1234
    (tmp_path / str(rank.process.pid) / "net" / "dev").write_text("lo: 1 2 3\n")
    with pytest.raises(ValueError, match="has no e0"):
        sent_bytes(rank.process.pid, tmp_path)
    rank.end()


async def test_a_reply_has_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_RECORDED_BYTES", 2**19)
    for number in range(5):
        rank = world.rank(number)
        writer = Writer(str(rank.directory / "torch-1.rec"), "torch")
        for size in range(1000):
            row = writer.row("all_reduce", size, "float", "host")
            ticket = writer.issue(row, 2**60, size, 1e6)
            writer.end(ticket, row, 1e6, 1e6 + 16)
    await world.kept.read()
    reply = messages.recordings_of(world.kept.of())
    assert reply.ByteSize() < 2**19
    shown = [len(r.operations) for r in reply.recordings]
    assert len(set(shown)) == 1, "ranks have equal shares"
    assert 500 < shown[0] < 1000
    assert reply.recordings[-1].reason == f"only {shown[0]} of 1000 rows had room"
    longest = min(row.total_s for row in reply.recordings[0].operations)
    assert longest == 16.0


def full(job: str, rank: int, *, ended: bool = False, rows: int = 1000) -> RankRecording:
    operations = tuple(
        layout.OperationSums(
            op="all_reduce",
            bytes=2**40 + number,
            dtype="float",
            tag="",
            calls=2**50,
            total_s=float(number),
            min_s=1.0,
            max_s=2.0,
            histogram=tuple(2**30 + number for _ in range(layout.BINS)),
            source="torch",
            timing="host",
            exact=True,
        )
        for number in range(rows)
    )
    calls = tuple(layout.Call(0, 2**40 + n, n + 0.25, n + 0.5, 2**60) for n in range(512))
    read = RecordingState(state="recording", operations=operations, calls=calls)
    return RankRecording(key=RankKey(job, rank, 1), read=read, ended=ended)


@pytest.mark.parametrize("most", [None, 2**20, 2**30])
@pytest.mark.parametrize("ended", [False, True])
def test_full_recorders_of_one_job_hide_no_other_job(ended: bool, most: int | None) -> None:
    found = [full("red", rank, ended=ended) for rank in range(12)]
    found += [full("blue", rank, ended=ended, rows=20) for rank in range(4)]
    reply = messages.recordings_of(found, most)
    assert reply.ByteSize() < min(most or 2**30, 2**22)
    blue = [one for one in reply.recordings if one.job == "blue"]
    assert [(len(one.operations), len(one.calls), one.reason) for one in blue] == [
        (20, 512, "")
    ] * 4
    red = [one for one in reply.recordings if one.job == "red"]
    assert len(red) == 12
    assert all(one.operations for one in red)


def test_what_has_ended_hides_nothing_that_runs() -> None:
    found = [full("old", rank, ended=True) for rank in range(40)]
    found += [full("red", rank, rows=100) for rank in range(8)]
    reply = messages.recordings_of(found)
    assert reply.ByteSize() < 2**22
    assert all(len(one.calls) == 512 for one in reply.recordings if one.job == "red")
    assert len(reply.recordings) == 48


async def test_a_window_with_too_few_steps_is_followed_soon_by_a_longer_one(world: World) -> None:
    rank = world.rank()

    world.train([rank], compute_s=0.8, comm_s=0.4)
    assert await world.kept.watch_nics() == SOON_S
    world.sampler.most = 1
    assert await world.kept.watch_nics() > SOON_S, "this one held enough"
    (found,) = world.kept.of()
    assert found.wire is not None
    assert found.wire.bursts > LEAST_STEPS


async def test_many_ranks_wait_for_their_longer_window(world: World) -> None:
    ranks = [world.rank(number) for number in range(4)]

    world.train(ranks, compute_s=0.8, comm_s=0.4)
    world.sampler.most = 5
    assert await world.kept.watch_nics() > SOON_S, "the limit of what looks may cost"
