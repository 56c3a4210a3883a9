"""The limits of a container, tested from inside: privileges, addresses and resources."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from pyroute2 import netns

from agentlink.values import RankLimits
from container_mgr.values import Attach, ServedEndpoint
from controller.devices.engine import EngineError, RankState
from tests.integration.agent_parts import (
    IMAGE,
    NETNS,
    NICS,
    PrivateEngine,
    Rig,
    agent_rig,
    ip,
    pulled,
    two_nics,
)
from tests.parts.agent.ranks import SLEEP, output, seen, states, until, when_ended

pytestmark = pytest.mark.root

UNREACHED = {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ETIMEDOUT}
"""Refused by its own loopback, no route, or no answer on its fiber."""
REFUSED = {errno.EPERM, errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENOSYS}


async def run(rig: Rig, *command: str, limits: RankLimits | None = None) -> list[str]:
    """Run a command as rank 0 beside a sleeping rank 1; return its output."""
    spec = replace(rig.spec(0, *command), limits=limits or RankLimits())
    await rig.engine.start([spec, rig.spec(1, *SLEEP)], 60)
    await when_ended(rig, 0)
    return await output(rig, 0)


async def test_every_attack_is_refused(rig: Rig) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as controller:
        port = str(controller.getsockname()[1])
        agent = rig.config.listen.rpartition(":")[2]
        addresses = (
            *("127.0.0.1", port),  # the controller's, on this machine's loopback
            *("127.0.0.1", agent),
            *("169.254.169.254", "80"),  # a cloud's metadata
            *("10.77.9.254", "3082"),  # an optical switch, were it on the data network
            *("192.0.2.1", "443"),  # any other address
        )
        lines = await run(rig, "attack", *addresses)
    tried = {name: int(code) for name, _, code in (line.rpartition(" ") for line in lines)}
    reached = {name: code for name, code in tried.items() if name.startswith("reach-")}
    assert len(tried) == 24
    assert len(reached) == 5
    assert set(reached.values()) <= UNREACHED, reached
    # It may trace its own init only: its namespace shows no other process.
    worked = {n: c for n, c in tried.items() if n not in reached and c not in REFUSED}
    assert worked.keys() <= {"ptrace-init"}, worked


async def test_a_rank_that_uses_too_much_memory_is_reported(rig: Rig) -> None:
    greedy = "x=0123456789abcdef; while :; do x=$x$x; done"
    limits = RankLimits(memory_bytes=32 << 20)
    await rig.engine.start(
        [replace(rig.spec(0, "sh", "-c", greedy), limits=limits), rig.spec(1, *SLEEP)], 60
    )
    status = await when_ended(rig, 0)
    assert status.exit_code != 0
    assert status.oom
    assert status.reason == "it ran out of memory"
    assert (await states(rig))[1] is RankState.RUNNING


async def test_the_number_of_processes_is_limited(rig: Rig) -> None:
    many = "i=0; while [ $i -lt 40 ]; do sleep 5 & i=$((i+1)); done; echo all"
    lines = await run(rig, "sh", "-c", many, limits=RankLimits(pids=16))
    assert "all" not in lines


async def test_a_fork_bomb_stays_in_its_container(rig: Rig) -> None:
    bomb = "f() { f | f & }; echo lit; f; while :; do sleep 1; done"
    limits = RankLimits(pids=32, memory_bytes=64 << 20)
    await rig.engine.start(
        [replace(rig.spec(0, "sh", "-c", bomb), limits=limits), rig.spec(1, *SLEEP)], 60
    )
    await until(lambda: output(rig, 0), lambda lines: "lit" in lines)
    assert (await states(rig))[1] is RankState.RUNNING
    await rig.engine.start([rig.spec(1, *SLEEP, epoch=1)], 60)  # the agent still answers
    await rig.engine.stop("red", 0)
    assert await seen(rig) == []


async def test_limits_beyond_the_server_leave_nothing_behind(rig: Rig) -> None:
    greedy = replace(rig.spec(0, *SLEEP), limits=RankLimits(memory_bytes=1 << 50))
    with pytest.raises(EngineError) as refused:
        await rig.engine.start([greedy, rig.spec(1, *SLEEP)], 60)
    assert refused.value.code == "invalid"
    assert await seen(rig) == []


async def test_the_root_is_read_only_and_scratch_is_writable(rig: Rig) -> None:
    tries = "touch /bin/x || echo kept; touch /tmp/x $HOME/y /var/tmp/z /run/lightloom/q && echo ok"
    lines = await run(rig, "sh", "-c", tries)
    assert [line for line in lines if line in ("kept", "ok")] == ["kept", "ok"]


async def test_a_command_that_does_not_exist_has_a_reason(rig: Rig) -> None:
    await rig.engine.start([rig.spec(0, "no-such-program"), rig.spec(1, *SLEEP)], 60)
    status = await when_ended(rig, 0)
    assert (status.exit_code, status.reason) == (127, "its command was not found")


async def test_an_image_that_cannot_be_fetched(private: PrivateEngine, tmp_path: Path) -> None:
    image = "127.0.0.1:9/ll-none:1"
    with two_nics():
        async with agent_rig(private, tmp_path, registries=["127.0.0.1:9"]) as rig:
            with pytest.raises(EngineError) as refused:
                await pulled(rig, image)
            assert refused.value.code == "not_found"
            assert f"image {image} cannot be fetched" in str(refused.value)
            assert "refused" not in str(refused.value)
            absent = replace(rig.spec(0, *SLEEP), image=image)
            with pytest.raises(EngineError) as not_started:
                await rig.engine.start([absent, rig.spec(1, *SLEEP)], 60)
            assert not_started.value.code == "not_found"
            assert await seen(rig) == []


async def test_a_job_cannot_make_the_engine_connect_to_an_address(rig: Rig) -> None:
    """It could scan the management network by the error's text and duration."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as anything:
        anything.settimeout(0)
        image = f"127.0.0.1:{anything.getsockname()[1]}/x:1"
        with pytest.raises(EngineError) as refused:
            await pulled(rig, image)
        assert refused.value.code == "invalid"
        with pytest.raises(EngineError) as unresolved:
            await rig.engine.registry_digest(image, [rig.config.server], None, 60)
        assert unresolved.value.code == "invalid"
        with pytest.raises(BlockingIOError):
            anything.accept()


async def test_a_local_image_is_not_fetched(rig: Rig) -> None:
    there = await pulled(rig, IMAGE)
    assert there is not None
    assert there.present


async def test_the_nic_is_reported_and_its_mtu_is_set(rig: Rig) -> None:
    shows = "cat /sys/class/net/e0/mtu; echo $LIGHTLOOM_MTU"
    first = rig.spec(0, "sh", "-c", shows)
    await rig.engine.start(
        [replace(first, nic=replace(first.nic, mtu=1400)), rig.spec(1, *SLEEP)], 60
    )
    statuses = {s.rank: s for s in await seen(rig)}
    report = statuses[1].nic
    assert report is not None
    assert (report.mtu, report.rdma_device, report.gid_index) == (1500, "", None)
    await when_ended(rig, 0)
    assert await output(rig, 0) == ["1400", "1400"]


class Sniffer(threading.Thread):
    """Waits for ARP on the far end of rank 0's fiber, in a thread in the server's namespace."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.frame = b""
        self.ready = threading.Event()
        self.start()

    def run(self) -> None:
        netns.setns(NETNS)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806)) as wire:
            wire.bind((NICS[1], 0))
            wire.settimeout(30)
            self.ready.set()
            while not self.frame:
                with contextlib.suppress(OSError):  # ENETDOWN, once when the link goes down
                    self.frame = wire.recv(100)

    async def heard(self) -> bytes:
        await asyncio.to_thread(self.join, 60)
        return self.frame


async def test_a_nic_announces_its_address_when_light_returns(rig: Rig) -> None:
    ip("-n", NETNS, "link", "set", NICS[1], "up")
    for moved in (False, True):
        sniffer = Sniffer()
        await asyncio.to_thread(sniffer.ready.wait, 30)
        if moved:
            ip("-n", NETNS, "link", "set", NICS[1], "down")
            await asyncio.sleep(1.5)  # longer than the agent's interval
            ip("-n", NETNS, "link", "set", NICS[1], "up")
        else:
            await rig.engine.start([rig.spec(0, *SLEEP)], 60)
        frame = await sniffer.heard()
        assert frame[:6] == b"\xff" * 6
        assert frame[6:12] == frame[22:28] == bytes.fromhex("027700000901")
        assert frame[28:32] == frame[38:42] == socket.inet_aton("10.77.9.1")


async def test_a_partial_start_is_removed_after_a_crash(
    rig: Rig, private: PrivateEngine, tmp_path: Path
) -> None:
    await rig.engine.start([rig.spec(1, *SLEEP)], 60)
    with private.api() as api:
        there = await asyncio.to_thread(api.inspect_container, "ll-red-1-1")
        labels = {**there["Config"]["Labels"], "lightloom.rank": "0", "lightloom.endpoint": "gpu0"}
        labels["lightloom.nic"] = labels["lightloom.nic"].replace(NICS[1], NICS[0])
        host = api.create_host_config(network_mode="none", cgroup_parent="/ll-test")
        await asyncio.to_thread(
            api.create_container, "ll-tiny:test", SLEEP, name="ll-red-0-1", labels=labels,
            host_config=host,
        )  # fmt: skip
    orphan = tmp_path / "agent" / "ranks" / "ll-gone-0-1"
    orphan.mkdir()
    await rig.down()
    await rig.up()
    assert await states(rig) == {1: RankState.RUNNING}
    assert not orphan.exists()


async def test_a_nic_that_cannot_return_yet_is_not_lost(rig: Rig) -> None:
    """A veth ends with its namespace, and its fiber too."""
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    ip("-n", NETNS, "link", "add", NICS[0], "type", "veth", "peer", "ll-tx")  # takes its place
    with pytest.raises(EngineError) as failed:
        await rig.engine.stop("red", 0)
    assert failed.value.code == "failed"
    ip("-n", NETNS, "link", "del", NICS[0])
    await rig.engine.start([rig.spec(0, *SLEEP, job="blue")], 60)
    await rig.engine.stop("blue", 0)


async def test_a_stale_epoch_is_refused_while_a_newer_one_runs(rig: Rig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP, epoch=5)], 60)
    with pytest.raises(EngineError) as refused:
        await rig.engine.start([rig.spec(1, *SLEEP, epoch=4)], 60)
    assert refused.value.code == "conflict"
    assert "stale" in str(refused.value)


async def test_a_macvlan_does_not_move_the_interface(
    private: PrivateEngine, tmp_path: Path
) -> None:
    served = [
        ServedEndpoint("gpu0", NICS[0], emulated=True, attach=Attach.MACVLAN),
        ServedEndpoint("gpu1", NICS[1], emulated=True),
    ]
    with two_nics():
        async with agent_rig(private, tmp_path, endpoints=served) as rig:
            ping = ("sh", "-c", "cat /sys/class/net/e0/address; ping -c 1 -W 30 10.77.9.2")
            await rig.engine.start([rig.spec(0, *ping), rig.spec(1, *SLEEP)], 60)
            assert NICS[0] in ip("-n", NETNS, "-br", "link")
            status = await when_ended(rig, 0)
            lines = await output(rig, 0)
            assert lines[0] == "02:77:00:00:09:01"
            assert status.exit_code == 0, lines
            await rig.engine.stop("red", 0)
            assert "macvlan" not in ip("-n", NETNS, "-d", "link")


async def test_a_command_that_ignores_sigterm_is_killed(rig: Rig) -> None:
    stubborn = "trap '' TERM; echo on; while :; do sleep 1; done"
    await rig.engine.start([rig.spec(0, "sh", "-c", stubborn), rig.spec(1, *SLEEP)], 60)
    await until(lambda: output(rig, 0), lambda lines: lines == ["on"])
    async with asyncio.timeout(60):
        await rig.engine.stop("red", 1)
    assert await seen(rig) == []


async def test_two_agents_of_one_machine_see_only_their_own_ranks(
    rig: Rig, private: PrivateEngine, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    ip("netns", "add", "ll-tsrv2")
    try:
        async with agent_rig(
            private, tmp_path / "other", "srv1", listen="127.0.0.1:7792", nic_netns="ll-tsrv2"
        ) as other:
            await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
            assert await seen(other) == []
            await other.engine.stop("red", 0)
            assert len(await seen(rig)) == 2
    finally:
        ip("netns", "del", "ll-tsrv2")
