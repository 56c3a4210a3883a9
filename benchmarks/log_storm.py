"""Measures a rank that writes output without end: processor time and disk of agent and engine.

``python -m benchmarks.log_storm`` (root) prints one JSON document. One rank runs ``yes``. Three
arms of one run: no reader, a follower through the agent, and as its rival ``docker logs --follow``.
The figures are cores: processor time over wall time. Disk is what the log files hold at most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentlink.ranks import RankKey
from benchmarks.agent_containers import agent, cpu_s, nics, spec
from controller.devices.agents.engine import AgentEngine
from tests.integration.agent_parts import PrivateEngine, private_engine
from tests.integration.tiny_image import PROGRAMS, tiny_image_tar

IMAGE = "ll-storm:bench"
LOG_BYTES = 64 * 2**20
"""Output kept of the rank; the site file's default."""
LINE = "a line of a training that prints its loss too often: step 123456 loss 0.693147"
WARM_S = 2.0
CONTAINER = RankKey("bench", 0, 1).container


def log_files_bytes(log: Path) -> int:
    """Return what a rank's log files hold now."""
    found = 0
    for file in log.parent.glob(f"{log.name}*"):
        with contextlib.suppress(FileNotFoundError):
            found += file.stat().st_size
    return found


@contextlib.asynccontextmanager
async def no_reader(engine: AgentEngine, private: PrivateEngine) -> AsyncIterator[None]:
    """Read nothing."""
    yield


@contextlib.asynccontextmanager
async def follower(engine: AgentEngine, private: PrivateEngine) -> AsyncIterator[None]:
    """Follow through the agent."""

    async def follow() -> None:
        async for _ in engine.logs("bench", 0, 0, True, {0: "srv0"}):
            pass

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def docker_logs(engine: AgentEngine, private: PrivateEngine) -> AsyncIterator[None]:
    """Follow with Docker's own command."""
    words = ("docker", "-H", private.info.host_url, "logs", "--follow", "--tail", "0")
    nowhere = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *words, CONTAINER, stdout=nowhere, stderr=nowhere
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


ARMS = {"no_reader": no_reader, "agent_follower": follower, "docker_logs": docker_logs}


async def arm(
    name: str, engine: AgentEngine, private: PrivateEngine, pid: int, seconds: float
) -> dict[str, Any]:
    """Measure one arm for ``seconds``."""
    pids = {"agent_cores": pid, "engine_cores": private.dockerd()}
    with private.api() as api:
        inspected = await asyncio.to_thread(api.inspect_container, CONTAINER)
    log = Path(inspected["LogPath"])
    async with ARMS[name](engine, private):
        await asyncio.sleep(WARM_S)
        before, begun, most = {k: cpu_s(p) for k, p in pids.items()}, time.perf_counter(), 0
        while (took := time.perf_counter() - begun) < seconds:
            most = max(most, log_files_bytes(log))
            await asyncio.sleep(0.1)
        cores = {k: round((cpu_s(p) - before[k]) / took, 3) for k, p in pids.items()}
    return {"reader": name, **cores, "disk_mib": round(most / 2**20, 1)}


async def main(seconds: float) -> dict[str, Any]:
    """Run the arms one after the other on one engine and one agent."""
    with (
        private_engine() as private,
        nics(1),
        tempfile.TemporaryDirectory(prefix="ll-bench-") as text,
    ):
        image = tiny_image_tar(programs=(*PROGRAMS, "yes"))
        name, _, tag = IMAGE.partition(":")
        with private.api() as api:
            await asyncio.to_thread(api.import_image_from_data, image, repository=name, tag=tag)
        options = ("--logs-per-rank", str(LOG_BYTES))
        async with agent(private, Path(text), *options) as (engine, pid):
            storm = replace(spec(0, 1), image=IMAGE, command=("yes", LINE), emulated_share=None)
            await engine.start([storm], 300)
            return {
                "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
                "seconds": seconds,
                "kept_mib": LOG_BYTES / 2**20,
                "arms": [await arm(one, engine, private, pid, seconds) for one in ARMS],
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=15)
    print(json.dumps(asyncio.run(main(parser.parse_args().seconds)), indent=2))
