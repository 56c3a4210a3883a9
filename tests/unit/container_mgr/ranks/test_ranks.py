"""How the agent handles failures of Docker and the kernel; the contract tests the rest."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from agentlink.values import NicReport, NicSpec, RankLimits
from container_mgr.docker.entry import LOST_FILE, NIC_FILE, READY_FILE, SCRIPT
from container_mgr.hardware.inventory import Inventory
from container_mgr.kernel.cgroup import Gauge
from container_mgr.ranks import ghosts, living
from container_mgr.ranks.living import LiveSample
from container_mgr.values import AgentError, ServerFacts
from controller.devices.engine import EngineError, RankState
from tests.parts.agent import docker as fake_docker
from tests.parts.agent.ranks import SLEEP, has_ended, states, until, when_ended
from tests.parts.agent.rig import AgentRig, agent_rig, agent_service


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as one:
        yield one


@pytest.mark.parametrize("call", ["create", "start"])
async def test_the_outcome_of_a_late_call_is_found_by_inspection(rig: AgentRig, call: str) -> None:
    rig.docker.late[call] = 1
    started = await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    assert started[0].state is RankState.RUNNING
    assert rig.docker.calls["create"] == rig.docker.calls["start"] == 1
    assert len(rig.docker.containers) == 1


@pytest.mark.parametrize("call", ["create", "start"])
async def test_a_lost_call_is_a_fault_and_is_not_repeated(rig: AgentRig, call: str) -> None:
    rig.docker.lost[call] = 1
    with pytest.raises(EngineError) as failed:
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    assert failed.value.code == "timeout"
    assert rig.docker.calls[call] == 1
    # A second request starts the rank, in one container.
    started = await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    assert started[0].state is RankState.RUNNING
    assert len(rig.docker.containers) == 1


async def test_memory_is_promised_once(rig: AgentRig) -> None:
    """The server has 8 GiB, a rank's share is 1 GiB."""

    async def start(rank: int, gib: int | None) -> None:
        spec = rig.spec(rank, *SLEEP, job=f"job{rank}")
        limits = RankLimits(memory_bytes=gib << 30) if gib else RankLimits()
        (status,) = await rig.engine.start([replace(spec, limits=limits)], 60)
        assert status.state is RankState.RUNNING

    both = await asyncio.gather(start(0, 5), start(1, 4), return_exceptions=True)
    (refused,) = [one for one in both if one is not None]
    assert isinstance(refused, EngineError)
    assert refused.code == "unavailable"
    await rig.engine.stop("job1", 0)
    await rig.engine.stop("job0", 0)
    await start(0, 5)
    with pytest.raises(EngineError, match="5368709120 are promised to other ranks"):
        await start(1, 4)
    await start(2, 3)
    await start(3, None)  # there is always room for a share


async def test_a_rank_above_a_new_limit_goes_on_and_is_named(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    (old,) = rig.docker.containers.values()
    old.raw["HostConfig"]["Memory"] = 9 << 30
    with capture_logs() as logs:
        await rig.ranks.recover()
    (named,) = [one for one in logs if "above a limit" in one["event"]]
    assert (named["container"], named["most"]) == ("ll-red-0-1", 8 << 30)
    assert await states(rig) == {0: RankState.RUNNING}


@pytest.mark.parametrize("call", ["stop", "remove"])
async def test_a_late_stop_succeeds(rig: AgentRig, call: str) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    rig.docker.late[call] = 1
    await rig.engine.stop("red", 0)
    assert await rig.engine.observe() == []
    assert rig.nics.where["e-gpu0"] == ""


async def test_a_lost_stop_is_a_fault(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    rig.docker.lost["stop"] = 1
    with pytest.raises(EngineError) as failed:
        await rig.engine.stop("red", 0)
    assert failed.value.code == "timeout"
    assert await states(rig) == {0: RankState.RUNNING}
    await rig.engine.stop("red", 0)
    assert await rig.engine.observe() == []


@pytest.mark.parametrize(("call", "act"), [("pause", "freeze"), ("unpause", "thaw")])
async def test_a_late_freeze_or_thaw_succeeds(rig: AgentRig, call: str, act: str) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    if act == "thaw":
        await rig.engine.freeze("red")
    rig.docker.late[call] = 1
    await getattr(rig.engine, act)("red")
    assert rig.docker.calls[call] == 1


async def test_a_lost_freeze_is_a_fault(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    rig.docker.lost["pause"] = 1
    with pytest.raises(EngineError) as failed:
        await rig.engine.freeze("red")
    assert failed.value.code == "timeout"


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_container_whose_end_the_engine_missed_has_ended(
    rig: AgentRig, restarted: bool
) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    (ghost,) = rig.docker.containers.values()
    ghost.missed = True
    assert ghost.process is not None
    ghost.process.kill()
    has_ended(ghost.process.pid)
    if restarted:
        await rig.ranks.recover()
    assert await states(rig) == {0: RankState.RUNNING}  # the engine may be slow
    await asyncio.sleep(20)
    (status,) = await rig.engine.observe()
    assert (status.state, status.exit_code) == (RankState.EXITED, ghosts.EXIT_UNKNOWN)
    assert "the Docker Engine reports it as running" in status.reason
    await rig.engine.stop("red", 0)
    assert rig.nics.where["e-gpu0"] == ""
    started = await rig.engine.start([rig.spec(0, *SLEEP, job="blue")], 60)
    assert [s.state for s in started] == [RankState.RUNNING]


async def test_a_rank_that_cannot_get_its_nic_is_removed(rig: AgentRig) -> None:
    rig.nics.broken.add("e-gpu1")
    with pytest.raises(EngineError) as failed:
        await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    assert failed.value.code == "failed"
    assert rig.docker.containers == {}
    assert set(rig.nics.where.values()) == {""}


async def test_a_nic_returns_from_a_container_that_the_engine_does_not_remove(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may remove it much later, without telling the agent."""

    def half(nic: NicSpec, namespace: str, pid: int, *_: object) -> NicReport:
        rig.nics.where[nic.name] = namespace
        raise AgentError("failed", nic.name, "the kernel refused its address")

    monkeypatch.setattr(rig.nics, "bind", half)
    rig.docker.lost["remove"] = 9
    with pytest.raises(EngineError):
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    assert rig.nics.where["e-gpu0"] == ""


async def test_a_nic_that_could_not_return_does_so_at_the_next_start(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    rig.nics.broken.add("ll-c-red-0-1")
    with pytest.raises(EngineError):
        await rig.engine.stop("red", 0)
    rig.nics.broken.clear()
    await rig.engine.start([rig.spec(0, *SLEEP, job="blue")], 60)
    assert rig.nics.where == dict.fromkeys(rig.nics.where, "") | {"e-gpu0": "ll-c-blue-0-1"}


async def test_a_nic_is_not_taken_from_a_running_rank(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    rig.nics.where["e-gpu1"] = "ll-c-red-0-1"
    with pytest.raises(EngineError) as failed:
        await rig.engine.start([rig.spec(1, *SLEEP, job="blue")], 60)
    assert failed.value.code == "not_found"


class BlockedCall:
    """Blocks one of the engine's calls before it takes effect, until ``open`` is set."""

    def __init__(self, rig: AgentRig, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._act = getattr(rig.docker, call)
        self.reached = asyncio.Event()
        self.open = asyncio.Event()
        monkeypatch.setattr(rig.docker, call, self)

    async def __call__(self, *arguments: Any) -> None:
        self.reached.set()
        await self.open.wait()
        await self._act(*arguments)


async def overtaken(
    blocked: BlockedCall, first: Awaitable[object], then: Awaitable[object]
) -> None:
    """Run ``first`` up to the blocked call, give ``then`` time to overtake it, and unblock."""
    async with asyncio.timeout(60):
        one = asyncio.ensure_future(first)
        await blocked.reached.wait()
        two = asyncio.ensure_future(then)
        await asyncio.wait({two}, timeout=1)
        blocked.open.set()
        await asyncio.gather(one, two)


async def test_a_stop_ends_ranks_of_a_start_that_is_still_running(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that gave up a start stops the job while the start continues."""
    blocked = BlockedCall(rig, "create", monkeypatch)
    start = rig.engine.start([rig.spec(0, *SLEEP)], 60)
    await overtaken(blocked, start, rig.engine.stop("red", 0))
    assert await rig.engine.observe() == []


async def test_a_thaw_undoes_the_freeze_before_it(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    blocked = BlockedCall(rig, "pause", monkeypatch)
    await overtaken(blocked, rig.engine.freeze("red"), rig.engine.thaw("red"))
    assert await states(rig) == {0: RankState.RUNNING}


async def test_a_late_end_takes_no_nic_from_the_next_rank(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rank is stopped and started at once; the start waits for the endpoint first."""
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    blocked = BlockedCall(rig, "stop", monkeypatch)
    again = rig.engine.start([replace(rig.spec(0, *SLEEP), env={"LIGHTLOOM_X": "1"})], 60)
    await overtaken(blocked, rig.engine.stop("red", 0), again)
    await asyncio.gather(*rig.ranks._background)
    assert rig.nics.where["e-gpu0"] == "ll-c-red-0-1"
    assert await states(rig) == {0: RankState.RUNNING}


async def test_a_nic_that_is_in_another_namespace(rig: AgentRig) -> None:
    rig.nics.where["e-gpu0"] = "another"
    with pytest.raises(EngineError) as failed:
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    assert failed.value.code == "not_found"
    assert rig.docker.calls["create"] == 0


async def test_a_nic_returns_when_its_rank_ends(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, "sh", "-c", "exit 1")], 60)

    async def where() -> str:
        return rig.nics.where["e-gpu0"]

    await until(where, lambda namespace: namespace == "")


async def test_recovery_takes_over_running_ranks_and_frees_other_nics(
    rig: AgentRig,
) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    await rig.ranks.close()
    await rig.docker.remove("ll-red-1-1")
    assert rig.nics.where["e-gpu1"] == "ll-c-red-1-1"
    await rig.ranks.recover()
    assert rig.nics.where["e-gpu0"] == "ll-c-red-0-1"
    assert rig.nics.where["e-gpu1"] == ""
    assert await states(rig) == {0: RankState.RUNNING}


async def test_an_agent_that_restarts_sends_nothing_in_a_frozen_jobs_networks(
    rig: AgentRig,
) -> None:
    other = rig.spec(1, *SLEEP)
    await rig.engine.start(
        [rig.spec(0, *SLEEP), replace(other, key=replace(other.key, job="blue"))], 60
    )
    await rig.engine.freeze("red")
    await rig.ranks.close()
    rig.transfers.paused.clear()
    await rig.ranks.recover()
    assert rig.transfers.paused == {"red"}
    await rig.engine.thaw("red")
    assert rig.transfers.paused == set()


async def test_a_rank_that_ends_before_it_gets_its_nic_is_reported_as_ended(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A NIC cannot move to a namespace that is gone; the job needs the exit code."""

    def too_late(nic: NicSpec, namespace: str, pid: int, *_: object) -> NicReport:
        assert has_ended(pid)
        rig.nics.where[nic.name] = namespace
        raise AgentError("failed", nic.name, "mount failed")

    monkeypatch.setattr(rig.nics, "bind", too_late)
    await rig.engine.start([rig.spec(0, "sh", "-c", "sleep 0.5; exit 3")], 60)
    assert (await when_ended(rig, 0)).exit_code == 3
    assert rig.nics.where["e-gpu0"] == ""


async def test_files_that_a_job_leaves_in_its_directory_are_harmless(
    rig: AgentRig, tmp_path: Path
) -> None:
    """Ranks that an older agent started may write there, and the agent writes there as root."""
    await rig.engine.start([rig.spec(n, *SLEEP) for n in range(2)], 60)
    victim = tmp_path / "of-the-machine"
    victim.write_text("untouched", encoding="ascii")
    link, wall = (tmp_path / "agent/ranks" / f"ll-red-{n}-1" / NIC_FILE for n in range(2))
    for path in (link, wall):
        path.unlink()
    link.symlink_to(victim)
    wall.mkdir()
    await rig.ranks.close()
    await rig.ranks.recover()
    assert victim.read_text(encoding="ascii") == "untouched"
    assert "LIGHTLOOM_MTU" in link.read_text(encoding="ascii")
    assert not link.is_symlink()
    assert await states(rig) == {0: RankState.RUNNING, 1: RankState.RUNNING}
    left = sorted(path.name for path in wall.parent.iterdir())
    assert left == ["group", NIC_FILE, "passwd"], "a temporary file was left"


def status_files(rig: AgentRig, rank: int) -> Path:
    """Return the directory of a rank's status files, as the agent sees it."""
    pid = rig.docker.containers[f"ll-red-{rank}-1"].raw["State"]["Pid"]
    return rig.docker.proc / str(pid) / "root" / "run" / "lightloom"


async def test_a_status_file_counts_only_where_only_the_rank_can_create_it(
    rig: AgentRig, tmp_path: Path
) -> None:
    """Not in a directory of the server, and not through a link in the image."""
    await rig.engine.start([rig.spec(n, *SLEEP) for n in range(2)], 60)
    server = tmp_path / "of-the-server" / "lightloom"
    server.mkdir(parents=True)
    for directory in (server, tmp_path / "agent/ranks/ll-red-0-1"):
        (directory / LOST_FILE).touch()
    shutil.rmtree(status_files(rig, 1).parent)
    status_files(rig, 1).parent.symlink_to(server.parent)
    assert {s.reason for s in await rig.engine.observe()} == {""}
    (status_files(rig, 0) / LOST_FILE).touch()
    reasons = {s.rank: s.reason for s in await rig.engine.observe()}
    assert reasons == {0: "the container may not open its GPU any more", 1: ""}


async def test_an_image_with_a_pipe_in_its_sysfs_blocks_nothing(rig: AgentRig) -> None:
    """The agent reads the carrier there once a second."""
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    nic = status_files(rig, 0).parents[1] / "sys" / "class" / "net" / "e0"
    nic.mkdir(parents=True)
    os.mkfifo(nic / "carrier")
    held_up = threading.Timer(30, lambda: (nic / "carrier").write_bytes(b"1"))
    held_up.daemon = True
    held_up.start()  # ends a loop that waits for the pipe, and so fails the test
    rig.ranks.sample()
    assert held_up.is_alive()
    held_up.cancel()


async def test_observe_tells_the_carriers_of_running_ranks(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    assert rig.engine.carriers() == {}, "no NIC is there yet"
    files = []
    for number in (0, 1):
        nic = status_files(rig, number).parents[1] / "sys" / "class" / "net" / "e0"
        nic.mkdir(parents=True)
        files.append(nic / "carrier")
    files[0].write_text("1\n")
    files[1].write_text("0\n")
    await rig.engine.observe()
    assert rig.engine.carriers() == {"gpu0": True, "gpu1": False}
    files[1].unlink()
    await rig.engine.observe()
    assert rig.engine.carriers() == {"gpu0": True}, "what cannot be read is not known"


async def test_other_accounts_cannot_access_the_agents_files(rig: AgentRig, tmp_path: Path) -> None:
    home = tmp_path / "agent"
    home.chmod(0o777)
    await rig.ranks.recover()
    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    for directory in (home, home / "ranks", home / "logs"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700, directory
    mine = home / "ranks" / "ll-red-0-1"
    assert stat.S_IMODE(mine.stat().st_mode) == 0o755  # bound read-only into the container
    assert stat.S_IMODE((mine / NIC_FILE).stat().st_mode) == 0o444


async def test_a_link_in_place_of_a_status_file_is_not_followed(
    rig: AgentRig,
) -> None:
    """Following it could block, fail, or reveal the machine's files to a job."""
    await rig.engine.start([replace(rig.spec(0, *SLEEP), emulated_share=0.5)], 60)
    for name in (READY_FILE, LOST_FILE):
        (status_files(rig, 0) / name).symlink_to("x" * 300)  # ENAMETOOLONG
    rig.ranks.sample()

    async def limits() -> int:
        return rig.docker.calls["limit_cpu"]

    await until(limits, lambda calls: calls == 1)
    (status,) = await rig.engine.observe()
    assert status.reason == "the container may not open its GPU any more"


async def test_a_second_that_fails_does_not_end_the_sampling(
    rig: AgentRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter((False, True, False, True))
    measured = asyncio.Event()

    def sample() -> list[LiveSample]:
        if next(seconds, True):
            measured.set()
            return []
        raise ValueError("rubbish in sysfs")

    monkeypatch.setattr(rig.ranks, "sample", sample)
    agent = agent_service(
        rig.docker, rig.ranks, Inventory(None, ServerFacts(4, 8 << 30)), tmp_path / "images.json"
    )
    sampler = asyncio.create_task(agent.sample_forever())
    for _ in range(2):
        async with asyncio.timeout(30):
            await measured.wait()
        measured.clear()
    sampler.cancel()


async def test_a_script_does_not_change_while_a_shell_reads_it(
    rig: AgentRig, tmp_path: Path
) -> None:
    """A shell reads step by step; a container may start while an agent starts."""
    entry = tmp_path / "agent" / "entry"
    entry.chmod(0o755)
    entry.write_text("echo of an older agent", encoding="ascii")
    with entry.open(encoding="ascii") as reader:
        await rig.ranks.recover()
        assert reader.read() == "echo of an older agent"
    assert entry.read_text(encoding="ascii") == SCRIPT


async def test_a_process_that_got_an_ended_ranks_number_is_left_alone(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that hangs reports the old number, which the kernel has reused meanwhile."""
    bound: list[int] = []
    bind = rig.nics.bind

    def noted(nic: NicSpec, namespace: str, pid: int, *rest: Any) -> NicReport:
        bound.append(pid)
        return bind(nic, namespace, pid, *rest)

    await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    await rig.ranks.close()
    monkeypatch.setattr(rig.nics, "bind", noted)
    stale = rig.docker.containers["ll-red-0-1"]
    stale.raw["State"]["Pid"] = os.getpid()
    await rig.ranks.recover()

    async def where() -> str:
        return rig.nics.where["e-gpu0"]

    await until(where, lambda namespace: namespace == "")
    assert bound == []
    assert not list(rig.ranks._living)


async def test_a_rank_that_takes_long_to_exit_has_ended(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loses its namespaces first; its end is visible only when its memory is freed."""

    def too_late(nic: NicSpec, namespace: str, pid: int, *_: object) -> NicReport:
        (rig.docker.proc / str(pid) / "ns").unlink()
        raise AgentError("failed", nic.name, "mount failed")

    monkeypatch.setattr(rig.nics, "bind", too_late)
    started = await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    assert len(started) == 1
    assert rig.docker.calls["remove"] == 0
    assert rig.nics.where["e-gpu0"] == ""


@pytest.mark.real_time
async def test_output_that_the_engine_copies_late_is_followed(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent sees a program's end at once; its last output may not be in the log yet."""
    copy = fake_docker.copy_lines

    def late(source: Any, *where: Any) -> None:
        text = source.read()  # until its end
        time.sleep(1)
        copy(text.splitlines(keepends=True), *where)

    monkeypatch.setattr(fake_docker, "copy_lines", late)
    await rig.engine.start([rig.spec(0, "echo", "last")], 60)
    followed = [line.text async for line in rig.engine.logs("red", 0, None, True)]
    assert followed == ["last"]


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("kill -9 $$", "it ran out of memory"),
        ("exit 1", ""),  # the kernel killed a helper, at any time
        ("exit 0", ""),
    ],
)
async def test_the_kernel_reports_an_oom_that_the_engine_missed(
    rig: AgentRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, reason: str
) -> None:
    events = tmp_path / "memory.events"
    events.write_text("oom 0\noom_kill 0\n", encoding="ascii")
    monkeypatch.setattr(living, "locate", lambda pid: Gauge(2, tmp_path, tmp_path))
    waits = ("sh", "-c", f"while grep -q 'kill 0' {events}; do sleep 0.05; done; {end}")
    await rig.engine.start([rig.spec(0, *waits)], 60)
    events.write_text("oom 1\noom_kill 1\n", encoding="ascii")
    status = await when_ended(rig, 0)
    assert status.oom
    assert status.reason == reason
    (ended,) = await rig.engine.stop("red", 0)
    assert ended.oom


async def test_an_ended_container_that_cannot_be_removed_blocks_nothing(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, "true", job="old")], 60)
    await when_ended(rig, 0)
    rig.docker.lost["remove"] = 100
    started = await rig.engine.start([rig.spec(0, *SLEEP)], 60)
    assert started[0].state is RankState.RUNNING
    assert "ll-old-0-1" in rig.docker.containers
