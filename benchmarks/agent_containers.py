"""Measures the agent's containers: batched start against single calls, freeze, thaw, overhead.

``python -m benchmarks.agent_containers`` (root) prints one JSON document. It uses a private
Docker Engine, a tiny image, veth NICs and an agent in its own process, with mutual TLS as on a
site. The rival of the batched start is the same agent with one rank per call, one after the
other, like a script over ``docker run``. Overhead is the agent's CPU time over wall time with
all containers sampled and observed once a second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec
from controller.devices.agents.engine import AgentEngine
from controller.devices.agents.trust import AgentTrust
from controller.devices.engine import RankSample
from pki import CONTROLLER, Authority, Credentials
from tests.integration.agent_parts import IMAGE, PrivateEngine, ip, private_engine

NETNS = "ll-bench"
LISTEN = "127.0.0.1:7795"
SLEEP = ("sleep", "3600")
JOB_SIZE = 6


def spec(number: int, epoch: int) -> RankSpec:
    """Return one rank of a job that only sleeps, with a stand-in for a GPU."""
    return RankSpec(
        key=RankKey("bench", number, epoch),
        endpoint=f"gpu{number}",
        server="srv0",
        image=IMAGE,
        command=SLEEP,
        nic=NicSpec(
            f"ll-b{number}", f"10.77.9.{number + 1}", 24, f"02:77:00:00:09:{number + 1:02x}"
        ),
        emulated_share=0.25,
    )


@contextlib.contextmanager
def nics(count: int) -> Iterator[None]:
    """Create a namespace with ``count`` NICs whose far ends are up."""
    ip("netns", "add", NETNS)
    try:
        for n in range(count):
            ip("-n", NETNS, "link", "add", f"ll-b{n}", "type", "veth", "peer", "name", f"ll-p{n}")
            ip("-n", NETNS, "link", "set", f"ll-p{n}", "up")
        yield
    finally:
        ip("netns", "del", NETNS)


@contextlib.asynccontextmanager
async def agent(
    private: PrivateEngine, directory: Path, *options: str
) -> AsyncIterator[tuple[AgentEngine, int]]:
    """Run the agent; yield a controller's engine and the agent's process id."""
    now = datetime.now(UTC)
    authority = Authority.create(directory / "ca", "bench", now=now)
    authority.issue_agent("srv0", directory / "srv0", now=now)
    authority.issue_controller(directory / "c", now=now)
    words = (
        *(sys.executable, "-m", "container_mgr", "--server", "srv0", "--listen", LISTEN),
        *("--nic-netns", NETNS, "--docker-host", private.info.host_url, "--cgroup", "ll-test"),
        *("--state-dir", str(directory / "agent"), "--tls", str(directory / "srv0")),
        *options,
    )
    with (directory / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*words, stdout=log, stderr=log)
    trust = AgentTrust(Credentials.load(directory / "c", CONTROLLER, now=now))
    engine = AgentEngine({"srv0": LISTEN}, trust=trust)
    try:
        async with asyncio.timeout(60):
            while not engine.reachable()["srv0"]:
                await engine.observe()
                await asyncio.sleep(0.1)
        yield engine, process.pid
    finally:
        with contextlib.suppress(Exception):
            await engine.stop("bench", 0)
        await engine.close()
        process.terminate()
        await process.wait()


async def start(engine: AgentEngine, count: int, epoch: int, *, batched: bool) -> float:
    """Start ``count`` ranks and remove them; return the seconds of the start."""
    specs = [spec(n, epoch) for n in range(count)]
    begun = time.perf_counter()
    if batched:
        await engine.start(specs, 300)
    else:
        for one in specs:
            await engine.start([one], 300)
    took = time.perf_counter() - begun
    await engine.stop("bench", 0)
    return took


async def starts(engine: AgentEngine, count: int, runs: int) -> dict[str, Any]:
    """Alternate both methods, so that both run under the same conditions."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for run in range(runs):
        for batched in (True, False):
            epoch = 2 * run + batched + 1
            seconds[batched].append(await start(engine, count, epoch, batched=batched))
    batched_s, single_s = (statistics.median(seconds[way]) for way in (True, False))
    return {
        "containers": count,
        "runs": runs,
        "batched_s": round(batched_s, 3),
        "one_call_each_s": round(single_s, 3),
        "ratio": round(single_s / batched_s, 2),
    }


async def freezing(engine: AgentEngine, private: PrivateEngine, runs: int) -> dict[str, Any]:
    """Freeze and thaw a job of six containers; the rival is Docker's pause of all six."""
    ranks = await engine.start([spec(n, 1) for n in range(JOB_SIZE)], 300)
    took: dict[str, list[float]] = {"freeze": [], "thaw": [], "pause": [], "unpause": []}

    async def timed(name: str, act: Awaitable[object]) -> None:
        begun = time.perf_counter()
        await act
        took[name].append(time.perf_counter() - begun)

    with private.api() as api:

        async def of_all(call: Callable[[str], object]) -> None:
            calls = (asyncio.to_thread(call, rank.container_id) for rank in ranks)
            await asyncio.gather(*calls)

        for _ in range(runs):
            await timed("freeze", engine.freeze("bench"))
            await timed("thaw", engine.thaw("bench"))
            await timed("pause", of_all(api.pause))
            await timed("unpause", of_all(api.unpause))
    await engine.stop("bench", 0)
    figures = {
        f"{name}_ms_{word}": round(1e3 * of(values), 1)
        for name, values in took.items()
        for word, of in (("median", statistics.median), ("max", max))
    }
    return {"containers": JOB_SIZE, "runs": runs, **figures}


async def overhead(engine: AgentEngine, pid: int, count: int, seconds: float) -> dict[str, Any]:
    """Return the agent's CPU use while ``count`` containers are sampled and observed at 1 Hz."""
    await engine.start([spec(n, 1) for n in range(count)], 300)
    samples = 0

    async def listen() -> None:
        nonlocal samples
        async for sample in engine.telemetry():
            samples += isinstance(sample, RankSample)

    async def look() -> None:
        while True:
            await engine.observe()
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(listen()), asyncio.create_task(look())]
    await asyncio.sleep(3)
    before, begun, samples = cpu_s(pid), time.perf_counter(), 0
    await asyncio.sleep(seconds)
    share = (cpu_s(pid) - before) / (time.perf_counter() - begun)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await engine.stop("bench", 0)
    return {
        "containers": count,
        "seconds": seconds,
        "samples_per_s": round(samples / seconds, 1),
        "agent_cores": round(share, 4),
        "agent_rss_mib": round(_rss_mib(pid), 1),
    }


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def main(most: int, runs: int, seconds: float) -> dict[str, Any]:
    """Run all measurements on one engine and one agent."""
    with (
        private_engine() as private,
        nics(most),
        tempfile.TemporaryDirectory(prefix="ll-bench-") as text,
    ):
        with private.api() as api:
            docker_version = await asyncio.to_thread(lambda: api.version()["Version"])
        async with agent(private, Path(text)) as (engine, pid):
            await start(engine, 2, 1, batched=True)  # caches are warm on both sides
            return {
                "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
                "docker": docker_version,
                "start": [await starts(engine, n, runs) for n in (4, most)],
                "freeze": await freezing(engine, private, 10),
                "overhead": await overhead(engine, pid, most, seconds),
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(main(given.most, given.runs, given.seconds)), indent=2))
