"""The contract of every execution engine. Subclass it and provide a ``rig``."""

from __future__ import annotations

import uuid
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from agentlink.values import Record, Scope, Typed
from controller.devices.engine import EngineError, ExecEnd, RankState
from tests.parts.agent.ranks import (
    SLEEP,
    TICKS,
    Rig,
    all_ended,
    executing,
    output,
    quiet,
    seen,
    states,
    until,
    when_ended,
)


class EngineContract:
    """The tests of the contract."""

    async def test_a_started_job_runs(self, rig: Rig) -> None:
        started = await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        assert {s.rank for s in started} == {0, 1}
        assert await states(rig) == {0: RankState.RUNNING, 1: RankState.RUNNING}
        assert all(s.started_at and s.exit_code is None for s in started)
        assert all(rig.engine.reachable().values())

    async def test_starting_again_starts_nothing(self, rig: Rig) -> None:
        ranks = [rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)]
        first = await rig.engine.start(ranks, 60)
        again = await rig.engine.start(ranks, 60)
        assert [s.container_id for s in first] == [s.container_id for s in again]

    @pytest.mark.real_time
    async def test_a_rank_that_has_ended_is_not_run_twice(self, rig: Rig) -> None:
        ranks = [rig.spec(0, "sh", "-c", "exit 3"), rig.spec(1, *SLEEP)]
        first = await rig.engine.start(ranks, 60)
        await when_ended(rig, 0)
        again = await rig.engine.start(ranks, 60)
        assert again[0].container_id == first[0].container_id
        assert again[0].exit_code == 3

    async def test_the_same_key_with_another_command_is_a_conflict(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        with pytest.raises(EngineError) as refused:
            await rig.engine.start([rig.spec(0, "sleep", "601")], 60)
        assert refused.value.code == "conflict"

    async def test_an_endpoint_in_use_is_a_conflict(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
        with pytest.raises(EngineError) as refused:
            await rig.engine.start([rig.spec(0, *SLEEP, job="blue")], 60)
        assert refused.value.code == "conflict"
        assert "red" in str(refused.value)
        assert await states(rig) == {0: RankState.RUNNING}

    @pytest.mark.real_time
    async def test_an_endpoint_is_free_once_its_rank_has_ended(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, "sh", "-c", "exit 1"), rig.spec(1, *SLEEP)], 60)
        await when_ended(rig, 0)
        again = await rig.engine.start([rig.spec(0, *SLEEP, epoch=2)], 60)
        assert again[0].state is RankState.RUNNING

    @pytest.mark.real_time
    async def test_exit_code_and_times(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, "sh", "-c", "exit 7"), rig.spec(1, *SLEEP)], 60)
        status = await when_ended(rig, 0)
        assert status.exit_code == 7
        assert status.started_at is not None
        assert status.finished_at is not None
        assert status.finished_at >= status.started_at

    @pytest.mark.real_time
    async def test_a_frozen_job_does_nothing(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *TICKS), rig.spec(1, *TICKS)], 60)
        await until(lambda: output(rig, 0), lambda lines: len(lines) > 2)
        await rig.engine.freeze("red")
        await rig.engine.freeze("red")
        assert set((await states(rig)).values()) == {RankState.PAUSED}
        frozen = await quiet(rig, 0)
        await rig.engine.thaw("red")
        await rig.engine.thaw("red")
        assert set((await states(rig)).values()) == {RankState.RUNNING}
        await until(lambda: output(rig, 0), lambda lines: len(lines) > len(frozen))

    async def test_freezing_touches_one_job_only(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
        await rig.engine.start([rig.spec(1, *SLEEP, job="blue")], 60)
        await rig.engine.freeze("red")
        assert await states(rig) == {0: RankState.PAUSED, 1: RankState.RUNNING}

    async def test_stop_removes_all_ranks_and_may_be_repeated(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        await rig.engine.stop("red", 0)
        assert await seen(rig) == []
        await rig.engine.stop("red", 0)
        await rig.engine.stop("never-seen", 0)

    async def test_a_stop_of_earlier_runs_leaves_a_later_one(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
        await rig.engine.start([rig.spec(1, *SLEEP, epoch=2)], 60)
        places = sorted({s.server for s in await rig.engine.observe()})
        await rig.engine.stop("red", 0, places, until=1)
        assert await states(rig) == {1: RankState.RUNNING}
        await rig.engine.freeze("red")
        assert await states(rig) == {1: RankState.PAUSED}, "where it is is still known"
        await rig.engine.stop("red", 0)
        assert await seen(rig) == []

    async def test_a_frozen_job_can_be_stopped(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        await rig.engine.freeze("red")
        await rig.engine.stop("red", 1)
        assert await seen(rig) == []

    async def test_a_job_starts_completely_or_not_at_all(self, rig: Rig) -> None:
        bad = replace(rig.spec(1, *SLEEP), image="ll-no-such-image:1")
        with pytest.raises(EngineError) as refused:
            await rig.engine.start([rig.spec(0, *SLEEP), bad], 60)
        assert refused.value.code == "not_found"
        assert await seen(rig) == []

    async def test_an_environment_outside_the_allow_list_is_refused(self, rig: Rig) -> None:
        bad = replace(rig.spec(0, *SLEEP), env={"LD_PRELOAD": "/tmp/evil.so"})
        with pytest.raises(EngineError) as refused:
            await rig.engine.start([bad], 60)
        assert refused.value.code == "invalid"
        assert "LD_PRELOAD" in str(refused.value)

    @pytest.mark.real_time
    async def test_logs_follow_to_the_end_and_outlive_the_rank(self, rig: Rig) -> None:
        counts = "for i in 1 2 3; do echo $i; sleep 0.2; done; echo done >&2"
        await rig.engine.start([rig.spec(0, "sh", "-c", counts), rig.spec(1, *SLEEP)], 60)
        followed = [line async for line in rig.engine.logs("red", 0, None, True)]
        # Each stream keeps its order; the order between the streams is not defined.
        for stream, texts in (("stdout", ["1", "2", "3"]), ("stderr", ["done"])):
            mine = [line for line in followed if line.stream == stream]
            assert [line.text for line in mine] == texts
            assert [line.time for line in mine] == sorted(line.time for line in mine)
        assert len(followed) == 4
        await rig.engine.stop("red", 0)
        everything = [line.text for line in followed]
        assert await output(rig, 0) == everything
        last = [line.text async for line in rig.engine.logs("red", 0, 1, False)]
        assert last == everything[-1:]

    async def test_recordings_are_of_recorded_ranks(self, rig: Rig) -> None:
        recorded = replace(rig.spec(0, *SLEEP), record=Record.COUNTS)
        await rig.engine.start([recorded, rig.spec(1, *SLEEP)], 60)
        (found,) = await rig.engine.recordings(10.0)
        assert (found.job, found.rank, found.epoch) == ("red", 0, 1)
        assert found.state == "absent"
        assert found.reason
        assert await rig.engine.recordings(10.0, "red") == [found]
        assert await rig.engine.recordings(10.0, "blue") == []
        await rig.engine.stop("red", 0)
        (last,) = await rig.engine.recordings(10.0)  # kept: a controller may have been away
        assert (last.job, last.rank, last.epoch) == ("red", 0, 1)

    @pytest.mark.real_time
    async def test_a_command_runs_in_a_rank(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        async with executing(rig, "sh", "-c", "echo out; echo err >&2; exit 3") as run:
            run.inputs.put_nowait(Typed(None))
            assert await run.end() == ExecEnd(3)
            assert (run.out, run.err) == (b"out\n", b"err\n")
        async with executing(rig, "cat", rank=1) as run:
            sent = bytes(range(256)) * 1024
            run.inputs.put_nowait(Typed(sent))
            run.inputs.put_nowait(Typed(None))
            assert await run.end() == ExecEnd(0)
            assert run.out == sent
        assert set((await states(rig)).values()) == {RankState.RUNNING}

    @pytest.mark.real_time
    async def test_a_command_ends_when_its_caller_leaves(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        deaf = "trap '' HUP TERM; echo ready; while :; do sleep 0.1; done"
        word = uuid.uuid4().hex
        async with executing(rig, "sh", "-c", deaf, word) as run:
            await run.shows(b"ready\n")
        await all_ended(word)
        assert set((await states(rig)).values()) == {RankState.RUNNING}

    @pytest.mark.real_time
    async def test_a_command_without_a_reader_waits(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        storm = "while :; do echo yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy; done"
        word = uuid.uuid4().hex
        async with executing(rig, "sh", "-c", storm, word, idle_s=8.0) as run:
            await run.shows(b"yyy")
            await all_ended(word)  # it could write nothing for 8 s
            end = await run.end()
            assert end.exit_code is None
            assert "no input and no output" in end.reason
            assert len(run.out) < 16 * 2**20

    @pytest.mark.real_time
    async def test_a_command_has_time_limits(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        async with executing(rig, *SLEEP, idle_s=1.0) as run:
            end = await run.end()
            assert "no input and no output" in end.reason
        word = uuid.uuid4().hex
        async with executing(rig, *TICKS, word, total_s=1.0) as run:
            end = await run.end()
            assert end.exit_code is None
            assert "time limit" in end.reason
        await all_ended(word)

    @pytest.mark.real_time
    async def test_commands_are_refused_where_none_can_run(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, "sh", "-c", "exit 0")], 60)
        await when_ended(rig, 1)
        await rig.engine.freeze("red")
        for rank, job, code, why in (
            (0, "red", "conflict", "frozen"),
            (1, "red", "conflict", "exited"),
            (2, "red", "not_found", "not on this server"),
            (0, "never-seen", "not_found", "not on this server"),
        ):
            with pytest.raises(EngineError) as refused:
                async with executing(rig, "sh", "-c", ":", rank=rank, job=job) as run:
                    await run.end()
            assert refused.value.code == code
            assert why in str(refused.value)
        await rig.engine.thaw("red")
        async with executing(rig, "sh", "-c", ":") as run:
            assert await run.end() == ExecEnd(0)

    @pytest.mark.real_time
    async def test_a_command_for_another_run_is_refused(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP, epoch=3)], 60)
        for epoch in (2, 4):
            with pytest.raises(EngineError) as refused:
                async with executing(rig, "sh", "-c", ":", epoch=epoch) as run:
                    await run.end()
            assert refused.value.code == "conflict"
            assert f"meant for run {epoch}, here is run 3" in str(refused.value)
        async with executing(rig, "sh", "-c", ":", epoch=3) as run:
            assert await run.end() == ExecEnd(0)

    @pytest.mark.real_time
    async def test_the_number_of_commands_in_a_rank_is_limited(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
        async with AsyncExitStack() as stack:
            for _ in range(8):
                await (await stack.enter_async_context(executing(rig, *TICKS))).shows(b"1\n")
            with pytest.raises(EngineError) as refused:
                async with executing(rig, *TICKS) as run:
                    await run.end()
            assert refused.value.code == "conflict"
            async with executing(rig, *TICKS, rank=1) as run:
                await run.shows(b"1\n")

        async def again() -> bool:
            try:
                async with executing(rig, "sh", "-c", ":") as run:
                    return await run.end() == ExecEnd(0)
            except EngineError:
                return False

        await until(again, bool)

    async def test_logs_of_an_unknown_job_are_not_found(self, rig: Rig) -> None:
        with pytest.raises(EngineError) as refused:
            await output(rig, 0, job="never-seen")
        assert refused.value.code == "not_found"

    async def test_volumes_are_those_of_servers_that_answer(self, rig: Rig) -> None:
        await seen(rig)
        assert (await rig.engine.volumes(10.0)).keys() <= rig.engine.reachable().keys()

    async def test_data_that_no_server_can_hold_is_not_removed(self, rig: Rig) -> None:
        await seen(rig)
        server = rig.spec(0).server
        with pytest.raises(EngineError):
            await rig.engine.remove_data(server, "no-such-volume", Scope.JOB, "vision.red")
        with pytest.raises(EngineError) as unknown:
            await rig.engine.remove_data("no-such-server", "v", Scope.PROJECT, "vision")
        assert unknown.value.code == "not_found"
