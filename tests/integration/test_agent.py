"""The agent against a real Docker Engine and real veth NICs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from agentlink.ranks import RankSpec
from agentlink.values import NicReport
from container_mgr.hardware.nic import Nics
from controller.devices.engine import EngineError, RankState, RankStatus, ServerSample
from controller.fabric.executor import unwritten
from testbed import processes
from testbed.engine import DockerEngine
from tests.contract.engine_contract import EngineContract
from tests.integration.agent_parts import (
    PrivateEngine,
    Rig,
    agent_rig,
    ip,
    nics_at_home,
    two_nics,
)
from tests.integration.tiny_image import tiny_image_tar
from tests.parts.agent.ranks import SLEEP, has_ended, output, seen, states, until, when_ended

pytestmark = pytest.mark.root


class TestContract(EngineContract):
    """The engine contract, for the agent over Docker. The second rank brings the carrier."""

    async def test_an_endpoint_in_use_is_a_conflict(self, rig: Rig) -> None:
        await rig.engine.start([rig.spec(1, *SLEEP, job="green")], 60)
        await rig.engine.start([rig.spec(0, *SLEEP)], 60)
        with pytest.raises(EngineError) as refused:
            await rig.engine.start([rig.spec(0, *SLEEP, job="blue")], 60)
        assert refused.value.code == "conflict"


async def test_two_ranks_reach_each_other(rig: Rig) -> None:
    ping = ("ping", "-c", "3", "-i", "0.2", "-W", "5", "10.77.9.2")
    await rig.engine.start([rig.spec(0, *ping), rig.spec(1, *SLEEP)], 60)
    status = await when_ended(rig, 0)
    text = "\n".join(await output(rig, 0))
    assert status.exit_code == 0, text
    assert " 0% packet loss" in text


async def test_the_nic_is_as_requested(rig: Rig) -> None:
    net = "/sys/class/net/"
    shows = f"ls {net}; cat {net}e0/address /proc/sys/net/ipv4/tcp_congestion_control"
    await rig.engine.start([rig.spec(0, "sh", "-c", shows), rig.spec(1, *SLEEP)], 60)
    await when_ended(rig, 0)
    *names, mac, congestion_control = await output(rig, 0)
    assert names == ["e0", "lo"]
    assert mac == "02:77:00:00:09:01"
    assert congestion_control in ("cubic", "reno")


async def test_the_nic_of_an_ended_rank_returns_before_a_stop(rig: Rig) -> None:
    await rig.engine.start([rig.spec(0, "sh", "-c", "exit 1"), rig.spec(1, "sleep", "0.2")], 60)
    await until(nics_at_home, lambda home: home)

    async def namespaces() -> str:  # closed once the NIC has left
        return await asyncio.to_thread(ip, "netns", "list")

    await until(namespaces, lambda listed: "ll-c-red" not in listed)


async def test_a_command_waits_for_the_carrier(rig: Rig) -> None:
    await rig.engine.start([rig.spec(0, "cat", "/sys/class/net/e0/carrier")], 60)
    await asyncio.sleep(0.5)  # its only peer is down
    assert await states(rig) == {0: RankState.RUNNING}
    await rig.engine.start([rig.spec(1, *SLEEP)], 60)
    await when_ended(rig, 0)
    assert await output(rig, 0) == ["1"]


async def test_a_container_has_no_privileges(rig: Rig) -> None:
    looks = "cat /proc/self/status; touch /lightloom/entry || echo read-only"
    await rig.engine.start([rig.spec(0, "sh", "-c", looks), rig.spec(1, *SLEEP)], 60)
    await when_ended(rig, 0)
    lines = await output(rig, 0)
    assert "CapEff:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines
    assert "Seccomp:\t2" in lines
    assert "read-only" in lines


async def test_a_command_waits_for_the_file_about_its_nic(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An RDMA device gets its GID after the carrier, and NCCL needs its index."""
    bind = Nics.bind

    def slow(*arguments: Any) -> NicReport:
        report = bind(*arguments)
        time.sleep(1)
        return report

    monkeypatch.setattr(Nics, "bind", slow)
    shows = [rig.spec(n, "sh", "-c", "echo $LIGHTLOOM_MTU") for n in range(2)]
    await rig.engine.start(shows, 60)
    for n in range(2):
        await when_ended(rig, n)
        assert await output(rig, n) == ["1500"]


async def test_a_command_that_does_not_exist_is_reported(rig: Rig) -> None:
    await rig.engine.start([rig.spec(0, "no-such-program"), rig.spec(1, *SLEEP)], 60)
    assert (await when_ended(rig, 0)).exit_code == 127
    assert "no-such-program" in "\n".join(await output(rig, 0))


async def test_stop_reports_how_each_rank_ended(rig: Rig) -> None:
    writes = "trap 'exit {}' TERM; echo ready; while :; do sleep 0.05; done"
    full = rig.spec(0, "sh", "-c", writes.format(28))
    await rig.engine.start([full, rig.spec(1, "sh", "-c", writes.format(0))], 60)
    for rank in range(2):
        await until(lambda rank=rank: output(rig, rank), lambda lines: lines == ["ready"])
    ended = await rig.engine.stop("red", 30)
    assert {s.rank: s.exit_code for s in ended} == {0: 28, 1: 0}
    assert unwritten("red", ended, 30).startswith("rank 0 of red exited with code 28")


async def test_containers_survive_a_restart_of_the_agent(rig: Rig) -> None:
    before = await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    await rig.down()
    await rig.up()
    assert await seen(rig) == before
    await rig.engine.freeze("red")
    await rig.engine.stop("red", 0)
    assert await nics_at_home()


async def test_a_restarted_agent_returns_nics_of_ended_ranks(
    rig: Rig, private: PrivateEngine
) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    await rig.down()
    with private.api() as api:
        api.kill("ll-red-0-1")
        api.remove_container("ll-red-1-1", force=True)
    await rig.up()
    await until(nics_at_home, bool)
    await when_ended(rig, 0)
    assert [s.rank for s in await seen(rig)] == [0]


async def test_the_share_applies_once_the_program_is_ready(
    rig: Rig, private: PrivateEngine
) -> None:
    busy = "touch /run/lightloom/ready; while :; do :; done"
    await rig.engine.start(
        [
            replace(rig.spec(0, "sh", "-c", busy), emulated_share=0.1),
            replace(rig.spec(1, *SLEEP), emulated_share=0.1),
        ],
        60,
    )
    with private.api() as api:

        async def quotas() -> list[int]:
            names = ("ll-red-0-1", "ll-red-1-1")
            found = [await asyncio.to_thread(api.inspect_container, name) for name in names]
            return [c["HostConfig"]["CpuQuota"] for c in found]

        assert await until(quotas, lambda q: q[0] > 0) == [5000, 0]

    used: dict[int, float] = {}
    sized: set[int] = set()
    async with asyncio.timeout(60), contextlib.aclosing(rig.engine.telemetry()) as stream:
        async for sample in stream:
            if isinstance(sample, ServerSample):
                assert sample.values.keys() == {"load", "memory_available_bytes"}
                continue
            assert sample.source == "emulated"
            if sample.values.get("memory_bytes"):
                sized.add(sample.rank)
            if "utilisation" in sample.values:
                used[sample.rank] = sample.values["utilisation"]
            if used.get(0, 0) > 0.5 and used.get(1, 1) < 0.5 and sized == {0, 1}:
                break


async def test_a_hung_daemon_makes_no_second_container(
    private: PrivateEngine, tmp_path: Path
) -> None:
    with two_nics():
        # A short time-out for the engine keeps the test short.
        async with agent_rig(private, tmp_path, engine_timeout_s=5) as rig:
            ranks = [rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)]
            os.kill(private.dockerd(), signal.SIGSTOP)
            try:
                with pytest.raises(EngineError) as failed:
                    await rig.engine.start(ranks, 60)
                assert failed.value.code == "timeout"
                assert rig.engine.reachable() == {"srv0": True}
            finally:
                os.kill(private.dockerd(), signal.SIGCONT)
            started = await until_started(rig, ranks)
            assert [s.state for s in started] == [RankState.RUNNING] * 2
            with private.api() as api:
                assert len(api.containers(all=True)) == 2


async def until_started(rig: Rig, ranks: list[RankSpec]) -> list[RankStatus]:
    """Start again what timed out, until the engine has recovered."""

    async def again() -> list[RankStatus]:
        try:
            return await rig.engine.start(ranks, 60)
        except EngineError as error:
            assert error.code == "timeout"
            return []

    return await until(again, bool)


def test_a_killed_engine_leaves_nothing_behind(tmp_path: Path) -> None:
    run_dir = Path(tempfile.mkdtemp(prefix="ll-engine-"))
    engine = DockerEngine(run_dir, run_dir / "data", prefer_host=False, cgroup="ll-test2")
    try:
        info = engine.start()
        assert engine.start() == info
        with contextlib.closing(docker.APIClient(info.host_url)) as api:
            api.import_image_from_data(tiny_image_tar(), repository="ll-tiny", tag="test")
            config = api.create_host_config(network_mode="none", cgroup_parent="/ll-test2")
            api.create_container("ll-tiny:test", SLEEP, name="ll-x", host_config=config)
            api.start("ll-x")
            api.pause("ll-x")
            pid = api.inspect_container("ll-x")["State"]["Pid"]
        dockerd = int((run_dir / "docker" / "dockerd.pid").read_text(encoding="ascii"))
        os.kill(dockerd, signal.SIGKILL)
        engine.stop()
        assert has_ended(pid)
        assert not processes.running("dockerd", run_dir)
        assert not processes.running("containerd", run_dir)
        assert str(run_dir) not in Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        assert not list(Path("/sys/fs/cgroup").glob("**/ll-test2"))
        engine.stop()
    finally:
        engine.stop()
        shutil.rmtree(run_dir)
