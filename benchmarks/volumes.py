"""Measures volumes: what they add to a start, and reads through one against the bare path.

``python -m benchmarks.volumes`` (root, fio) prints one JSON document. Starts of one rank with 0, 1
and 4 volumes alternate in one run on one agent. Reads are fio's, sequential, 1 MiB, past the page
cache; the same file is read in a rank, through its volume, and on this machine, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentlink.values import VolumeMount
from benchmarks.agent_containers import SLEEP, agent, nics, spec
from controller.devices.agents.engine import AgentEngine
from tests.integration.agent_parts import PrivateEngine, private_engine
from tests.integration.tiny_image import PROGRAMS, tiny_image_tar

VOLUMES = 4
FIO_IMAGE = "ll-fio:bench"
FILE, FILE_BYTES = "data", 512 * 2**20
READ_S = 4


def fio(path: Path) -> tuple[str, ...]:
    """Return the command that reads a file for a while and prints a JSON document."""
    return (
        *("fio", "--name=read", f"--filename={path}", "--rw=read", "--bs=1M", "--direct=1"),
        *("--ioengine=psync", f"--runtime={READ_S}", "--time_based", "--readonly"),
        *("--output-format=json", f"--size={FILE_BYTES}"),
    )


def rate(output: str) -> float:
    """Return the bytes per second of fio's document."""
    document = json.loads(output[output.index("{") :])
    return float(document["jobs"][0]["read"]["bw_bytes"])


def mounts(count: int) -> tuple[VolumeMount, ...]:
    """Return ``count`` volumes, each at a path of its own."""
    return tuple(VolumeMount(f"v{n}", f"/v{n}", read_only=True) for n in range(count))


async def start(engine: AgentEngine, count: int, epoch: int) -> float:
    """Start a rank with ``count`` volumes and remove it; return the seconds of the start."""
    one = replace(spec(0, epoch), command=SLEEP, volumes=mounts(count))
    begun = time.perf_counter()
    await engine.start([one], 300)
    took = time.perf_counter() - begun
    await engine.stop("bench", 0)
    return took


async def starts(engine: AgentEngine, runs: int) -> dict[str, Any]:
    """Alternate the numbers of volumes, so that all run under the same conditions."""
    seconds: dict[int, list[float]] = {0: [], 1: [], VOLUMES: []}
    epoch = 0
    for _ in range(runs):
        for count, took in seconds.items():
            epoch += 1
            took.append(await start(engine, count, epoch))
    return {
        "runs": runs,
        "median_ms": {n: round(1e3 * statistics.median(took), 1) for n, took in seconds.items()},
    }


async def in_rank(engine: AgentEngine, epoch: int) -> float:
    """Read through a volume in a rank; return bytes per second."""
    one = replace(
        spec(0, epoch),
        image=FIO_IMAGE,
        command=fio(Path("/v0") / FILE),
        volumes=mounts(1),
        emulated_share=None,
    )
    await engine.start([one], 300)
    lines = [line.text async for line in engine.logs("bench", 0, None, True, {0: "srv0"})]
    await engine.stop("bench", 0)
    return rate("\n".join(lines))


async def on_machine(path: Path) -> float:
    """Read the bare path; return bytes per second."""
    done = await asyncio.to_thread(
        subprocess.run, fio(path), capture_output=True, text=True, check=True, timeout=120
    )
    return rate(done.stdout)


async def reads(engine: AgentEngine, path: Path, runs: int) -> dict[str, Any]:
    """Take turns: bare, through the volume, and again."""
    bare, through = [], []
    for run in range(runs):
        bare.append(await on_machine(path))
        through.append(await in_rank(engine, 1000 + run))
    pairs = [v / b for v, b in zip(through, bare, strict=True)]
    return {
        "runs": runs,
        "bare_mib_s": round(statistics.median(bare) / 2**20, 1),
        "volume_mib_s": round(statistics.median(through) / 2**20, 1),
        "ratio": round(statistics.median(pairs), 3),
        "ratios": [round(pair, 3) for pair in sorted(pairs)],
    }


def make_folders(disk: Path) -> list[Path]:
    """Make the volumes' directories, the first one with a file that any user may read."""
    disk.chmod(0o755)
    folders = [disk / f"v{n}" for n in range(VOLUMES)]
    for folder in folders:
        folder.mkdir(mode=0o755)
    data = folders[0] / FILE
    data.write_bytes(os.urandom(FILE_BYTES))
    data.chmod(0o644)
    return folders


def load_image(private: PrivateEngine) -> None:
    """Give the engine an image with fio."""
    name, _, tag = FIO_IMAGE.partition(":")
    with private.api() as api:
        api.import_image_from_data(
            tiny_image_tar(programs=(*PROGRAMS, "fio")), repository=name, tag=tag
        )


async def main(runs: int, reading: int, where: Path) -> dict[str, Any]:
    """Run all measurements on one engine and one agent."""
    with (
        private_engine() as private,
        nics(1),
        tempfile.TemporaryDirectory(prefix="ll-bench-") as text,
        tempfile.TemporaryDirectory(prefix="ll-volumes-", dir=where) as disk,
    ):
        await asyncio.to_thread(load_image, private)
        folders = await asyncio.to_thread(make_folders, Path(disk))
        options = [w for f in folders for w in ("--volume", f"{f.name}={f}:ro")]
        async with agent(private, Path(text), *options) as (engine, _):
            await start(engine, VOLUMES, 10_000)  # caches are warm on all sides
            return {
                "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}",
                "start": await starts(engine, runs),
                "read": await reads(engine, folders[0] / FILE, reading),
            }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--reads", type=int, default=5)
    parser.add_argument("--where", type=Path, default=Path("/var/lib"), help="disk of the volumes")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(main(given.runs, given.reads, given.where)), indent=2))
