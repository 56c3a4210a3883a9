"""The kernel's freezer and socket table with real containers, without Docker's pause."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from container_mgr.kernel.freezer import FreezerState, find
from controller.devices.engine import RankState
from tests.integration.agent_parts import (
    PrivateEngine,
    Rig,
    ip,
    nics_at_home,
)
from tests.parts.agent.ranks import SLEEP, TICKS, output, seen, states, until

pytestmark = pytest.mark.root

NAMES = ("ll-red-0-1", "ll-red-1-1")
HEAR = """
import socket, sys
with socket.create_server(("10.77.9.2", 7000)) as server:
    print("listening", flush=True)
    for line in server.accept()[0].makefile():
        print(line, end="", flush=True)
"""
TELL = """
import socket, sys
with socket.create_connection(("10.77.9.2", 7000)) as to:
    for line in sys.stdin:
        to.sendall(line.encode())
        print("sent", flush=True)
"""


def kernel(private: PrivateEngine) -> list[FreezerState]:
    """Return the kernel's state of both ranks."""
    with private.api() as api:
        raw = [api.inspect_container(name) for name in NAMES]
    return [find(c["Id"], c["State"]["Pid"]).state() for c in raw]


def docker(private: PrivateEngine) -> list[str]:
    """Return Docker's state of both ranks."""
    with private.api() as api:
        return [api.inspect_container(name)["State"]["Status"] for name in NAMES]


async def test_a_freeze_is_done_by_the_kernel_and_survives_the_agent(
    rig: Rig, private: PrivateEngine
) -> None:
    await rig.engine.start([rig.spec(0, *TICKS), rig.spec(1, *TICKS)], 60)
    await until(lambda: output(rig, 0), lambda lines: len(lines) > 2)
    await rig.engine.freeze("red")
    assert kernel(private) == [FreezerState.FROZEN] * 2
    assert docker(private) == ["running"] * 2
    await rig.down()
    await rig.up()
    assert await states(rig) == {0: RankState.PAUSED, 1: RankState.PAUSED}
    frozen = await output(rig, 0)
    await rig.engine.thaw("red")
    assert kernel(private) == [FreezerState.THAWED] * 2
    await until(lambda: output(rig, 0), lambda lines: len(lines) > len(frozen))


async def test_containers_that_docker_paused_are_reported_thawed_and_stopped(
    rig: Rig, private: PrivateEngine
) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    with private.api() as api:
        for name in NAMES:
            api.pause(name)
        assert await states(rig) == {0: RankState.PAUSED, 1: RankState.PAUSED}
        await rig.engine.thaw("red")
        assert docker(private) == ["running"] * 2
        assert kernel(private) == [FreezerState.THAWED] * 2
        api.pause(NAMES[0])
    await rig.engine.freeze("red")
    await rig.engine.stop("red", 0)
    assert await seen(rig) == []


async def test_a_frozen_job_is_stopped_by_an_agent_that_did_not_freeze_it(rig: Rig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    await rig.engine.freeze("red")
    await rig.down()
    await rig.up()
    await rig.engine.stop("red", 1)
    assert await seen(rig) == []
    assert await nics_at_home()


@contextlib.contextmanager
def speaker(rank: int, program: str) -> Iterator[Callable[[str], str]]:
    """Run Python in a rank's network namespace; yield a function that writes and reads a line."""
    argv = ["ip", "netns", "exec", f"ll-c-red-{rank}-1", sys.executable, "-c", program]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        to, out = process.stdin, process.stdout

        def say(line: str = "") -> str:
            if line:
                to.write(f"{line}\n")
                to.flush()
            return out.readline().strip()

        try:
            yield say
        finally:
            process.kill()


async def test_tcp_does_not_delay_acknowledgements(rig: Rig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    (route,) = (await asyncio.to_thread(ip, "-n", "ll-c-red-0-1", "route")).splitlines()
    assert "quickack 1" in route
    assert "rto_min lock 20ms" in route


async def test_data_sent_in_the_dark_is_seen_and_neighbours_are_kept(rig: Rig) -> None:
    """The speakers are in the ranks' namespaces but not in their cgroups: they are not frozen."""
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    assert await rig.engine.freeze("red") is True, "no rank has a socket"

    async def settled() -> bool | None:
        return await rig.engine.freeze("red")

    def neighbour() -> str:
        return ip("-n", "ll-c-red-0-1", "neigh", "show", "10.77.9.2")

    with speaker(1, HEAR) as hear:
        assert hear() == "listening"
        with speaker(0, TELL) as tell:
            assert tell("one") == "sent"
            assert hear() == "one"
            assert await rig.engine.freeze("red", 1.0) is True
            assert "lladdr 02:77:00:00:09:02" in neighbour()

            ip("-n", "ll-c-red-1-1", "link", "set", "e0", "down")
            await until(lambda: asyncio.to_thread(carrier), lambda light: light == "0")
            assert tell("two") == "sent"
            assert await settled() is False
            assert "lladdr 02:77:00:00:09:02" in neighbour(), "dropped with the carrier"

            ip("-n", "ll-c-red-1-1", "link", "set", "e0", "up")
            assert hear() == "two"
            await until(settled, lambda seen: seen is True)


def carrier() -> str:
    """Return 1 when rank 0 has a carrier."""
    return ip("netns", "exec", "ll-c-red-0-1", "cat", "/sys/class/net/e0/carrier").strip()
