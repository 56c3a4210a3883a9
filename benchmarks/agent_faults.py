"""Measures the time to detect faults, and checks that no partition assigns a GPU twice.

``python -m benchmarks.agent_faults`` prints one JSON document; it needs neither root nor a GPU.
A mock of ``libnvidia-ml.so`` provides the GPUs. The agent reads it at 1 Hz as on a site, and the
benchmark polls the result at 1 Hz like the controller; stalls are evaluated once a second on
rates in which every rank becomes silent.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import platform
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import structlog

from container_mgr.docker.engine import DockerHost, EngineFailure
from container_mgr.hardware.gpus import Gpus
from controller.telemetry.stalls import History, judge
from tests.contract.partition import run_once
from tests.nvml import mock

ENGINE_DEADLINE_S = 2
UUIDS = ("GPU-a", "GPU-b")
LOOK_S = 1.0
TORCH_WATCHDOG_S = 1800.0
"""Default timeout of torch.distributed, which detects a stalled job without lightloom."""


def gpu(told: Path, state: str, runs: int) -> dict[str, Any]:
    """Return the seconds from a GPU's fault to its report, and the other affected GPUs."""
    took, neighbours = [], 0
    for _ in range(runs):
        mock.behave(told, dict.fromkeys(UUIDS, "ok"))
        gpus = Gpus(UUIDS, library=mock.library())
        gpus.start()
        gpus.wait_until_settled(10)
        mock.behave(told, {UUIDS[0]: state, UUIDS[1]: "ok"})
        begun = time.monotonic()
        while not gpus.why_unfit(UUIDS[0]):
            time.sleep(LOOK_S)
        took.append(time.monotonic() - begun)
        neighbours += bool(gpus.why_unfit(UUIDS[1]))
        gpus.stop()
    mock.behave(told, dict.fromkeys(UUIDS, "ok"))
    return {
        "runs": runs,
        "detect_s_median": round(statistics.median(took), 2),
        "detect_s_max": round(max(took), 2),
        "neighbours_unplaceable": neighbours,
    }


def stall() -> dict[str, Any]:
    """Return the seconds of silence until a job with a minute of traffic counts as stalled."""
    history: History | None = None
    found, second = None, 0
    while found is None:
        rates = [2e8] * 4 if second < 60 else [0.0, 400.0, 0.0, 0.0]
        history, found = judge(history, rates, float(second))
        second += 1
    detect_s = found.silent_s + LOOK_S
    return {"detect_s": detect_s, "torch_watchdog_s": TORCH_WATCHDOG_S}


async def hung_engine(runs: int, directory: Path) -> dict[str, Any]:
    """Return the duration of calls to a Docker Engine that accepts calls and never responds."""
    path = directory / "hung.sock"
    server = await asyncio.start_unix_server(lambda reader, writer: None, path)
    host = DockerHost(f"unix://{path}", timeout_s=ENGINE_DEADLINE_S)
    took, longest_gap = [], 0.0

    async def heartbeat() -> None:
        nonlocal longest_gap
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.01)
            longest_gap = max(longest_gap, time.monotonic() - begun - 0.01)

    beat = asyncio.create_task(heartbeat())
    for _ in range(runs):
        begun = time.monotonic()
        try:
            await host.inspect("x")
        except EngineFailure:
            took.append(time.monotonic() - begun)
    beat.cancel()
    host.close()
    server.close()
    return {
        "runs": len(took),
        "deadline_s": ENGINE_DEADLINE_S,
        "longest_call_s": round(max(took), 2),
        "loop_blocked_ms": round(1e3 * longest_gap, 1),
    }


async def partitions(runs: int, directory: Path) -> dict[str, Any]:
    """Run random partitions; ``double`` counts endpoints that two containers held."""
    counted: Counter[str] = Counter()
    for seed in range(runs):
        (directory / str(seed)).mkdir()
        counted += await run_once(seed, directory / str(seed))
    return {name: counted[name] for name in ("runs", "started", "refused", "double", "stolen")}


def main(runs: int, stories: int) -> dict[str, Any]:
    """Run all faults."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory(prefix="ll-faults-") as text:
        told = Path(text) / "gpus"
        mock.look_at(told)
        return {
            "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
            "gpu_lost": gpu(told, "lost", runs),
            "gpu_hangs": gpu(told, "hang", runs),
            "stall": stall(),
            "engine_hangs": asyncio.run(hung_engine(runs, Path(text))),
            "partition": asyncio.run(partitions(stories, Path(text))),
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--stories", type=int, default=10_000)
    given = parser.parse_args()
    print(json.dumps(main(given.runs, given.stories), indent=2))
