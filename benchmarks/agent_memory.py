"""Measures the agent's memory under the worst that one rank may write for each of its readers.

``python -m benchmarks.agent_memory`` prints one JSON document: for each input the growth of the
resident memory of a process of its own, at its highest and at the end, in MiB. The code is the
agent's; programs are files, as a hostile rank leaves them, beside seven ranks that behave. The goal
is 64 MiB each.

* ``recorder``: four full recorders' files, and those of the runs of the last 15 minutes.
* ``checkpoints``: folders of 16,384 long names, and one step of as many files after the other until
  the rank is ended for it.
* ``logs``: 64 MiB of escaped lines, read to the longest tail by eight readers at once.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import structlog

from agentlink.ranks import RankKey
from base import clock
from container_mgr.checkpoints.holder import DiskHolder
from container_mgr.ranks import logs
from container_mgr.recordings.recordings import MOST_ENDED, Recordings
from recorder.python import lightloom_writer as writer
from tests.unit.container_mgr.checkpoints.agent_parts import ME, PlainSpace, container, rank
from tests.unit.container_mgr.recordings.parts import FakeRank

RANKS = 8
GOAL_MIB = 64.0
RUNS = min(40, MOST_ENDED)
"""Runs of the hostile rank that ended within the time that they are kept."""
FILES = 16_000
PROGRAM = """
import os, shutil, sys
folder, step, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.chdir(folder)
if step > 1:
    os.rename(f"files/step-{step - 1}", "old")
    shutil.rmtree("old")
os.mkdir("new")
first = "new/" + "0" * 110
open(first, "w").write("x")
for number in range(1, files):
    os.link(first, f"new/{number:0110}")
os.rename("new", f"files/step-{step}")
"""
"""What a hostile rank runs, in the folder above its own: a new step in place of the last one. Its
arguments are the folder, the step and the number of files."""
PATIENCE_S = 120.0
"""For one step to be held."""
LOG_BYTES = 64 << 20
TEMPORARY = "/dev/shm"  # noqa: S108 - every case makes a directory of its own there


def memory_mib(name: str) -> float:
    """Return VmRSS or VmHWM of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(name)


def full_file() -> bytes:
    """Return a recorder's file with every row, bin and call in use, and all figures different."""
    data = bytearray(writer.SIZE)
    started = 1.0
    header = (writer.MAGIC, writer.VERSION, 4711, 1, writer.ROWS, writer.SIZES)
    writer.HEADER.pack_into(data, 0, *header, 0, 0, writer.CALLS, 0)
    struct.pack_into("<dd", data, 48, started, started)
    row = struct.Struct(f"<QQQQQQddd24x{writer.BINS}I24xQ")
    call = struct.Struct("<QQddQII")
    for number in range(writer.ROWS):
        bins = [1_000_000 + number * 96 + at for at in range(writer.BINS)]
        names = 1 << 32 | (number % len(writer.OPERATIONS)) | 1 << 16
        values = (2, names, 1 << 40 | number, 0, 1 << 40 | number, sum(bins))
        times = (float(sum(bins)), 0.5, 2.0)
        row.pack_into(data, writer.ROWS_AT + number * writer.ROW_SIZE, *values, *times, *bins, 2)
    for ticket in range(writer.CALLS):
        at = writer.CALLS_AT + ticket * writer.CALL_SIZE
        begin = ticket + 1
        place = 1 + ticket % (writer.ROWS - 1)
        call.pack_into(data, at, begin, 1 << 40 | ticket, 1e5 + ticket, 1e5 + ticket + 0.5,
                       1 << 60 | ticket, place, begin)  # fmt: skip
    return bytes(data)


async def recorder(root: Path) -> None:
    """Read the files of a rank that writes all that it may, and of its last runs."""
    recordings = Recordings(proc=root)
    data = full_file()
    ranks = [FakeRank(root, RankKey("red", number, RUNS + 1)) for number in range(RANKS)]
    try:
        for epoch in range(1, RUNS + 1):
            one = FakeRank(root, RankKey("red", 0, epoch))
            _fill(one, data)
            recordings.begin(one.container)
            await recordings.read()
            one.end()
            recordings.end(one.container.key.container)
            await asyncio.sleep(0.01)
        _fill(ranks[0], data)
        for one in ranks[1:]:
            one.write()
        for one in ranks:
            recordings.begin(one.container)
        await recordings.read()
        if not any(len(known.read.operations) > 1000 for known in recordings.of()):
            raise RuntimeError("the full files were refused: the benchmark measures nothing")
    finally:
        for one in ranks:
            one.end()
        await recordings.close()


def _fill(one: FakeRank, data: bytes) -> None:
    for number in range(4):
        (one.directory / f"torch-{100 + number}.rec").write_bytes(data)


async def checkpoints(root: Path) -> None:
    """Hold what a rank writes until it is to be ended."""
    held = DiskHolder(root / "checkpoints", space=PlainSpace())
    await held.recover()
    told = asyncio.create_task(_drain(held))
    specs = [rank(number, ranks=RANKS) for number in range(RANKS)]
    lives = []
    for spec in specs:
        with held.reserved(spec):
            begun = await held.begin(spec, ME)
        if begun is None:
            raise RuntimeError("the rank has no folder")
        held.watch(container(spec))
        lives.append(begun.live)
    evil = lives[0]
    try:
        for step in count(1):
            await _run(sys.executable, "-c", PROGRAM, str(evil.parent), str(step), str(FILES))
            until = clock.monotonic() + PATIENCE_S
            while not (evil.parent.parent / "held" / f"{step}.1").exists():
                if held.excesses():
                    return
                if clock.monotonic() > until:
                    raise RuntimeError(f"step {step} was not held: the benchmark measures less")
                await asyncio.sleep(0.2)
    finally:
        told.cancel()
        await held.close()


async def _run(*command: str) -> None:
    """Run what the rank does in a process of its own, whose memory is not the agent's."""
    process = await asyncio.create_subprocess_exec(*command)
    if await process.wait():
        raise RuntimeError(f"{command[0]} failed")


async def _drain(held: DiskHolder) -> None:
    async for _ in held.news():
        pass


async def log_readers(root: Path) -> None:
    """Read the longest tail of a log whose every character takes six in the engine's file."""
    log = root / "id-json.log"
    text = json.dumps({"log": "\x01" * 40 + "\n", "stream": "stdout",
                       "time": "2026-01-01T00:00:00.000000000Z"}) + "\n"  # fmt: skip
    with log.open("w", encoding="ascii") as file:
        for _ in range(LOG_BYTES // len(text)):
            file.write(text)

    async def one() -> None:
        lines = logs.read(log, tail=logs.MAX_TAIL_LINES, follow=False, alive=_over)
        async for _ in lines:
            await asyncio.sleep(0)

    await asyncio.gather(*(one() for _ in range(RANKS)))


async def _over() -> bool:
    return False


CASES: Mapping[str, Callable[[Path], Coroutine[Any, Any, None]]] = {
    "recorder": recorder,
    "checkpoints": checkpoints,
    "logs": log_readers,
}


def measure(case: str) -> dict[str, float]:
    """Run one case in this process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory(dir=TEMPORARY) as folder:
        before = memory_mib("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        asyncio.run(CASES[case](Path(folder)))
        highest, end = memory_mib("VmHWM"), memory_mib("VmRSS")
    return {"highest_mib": round(highest - before, 1), "end_mib": round(end - before, 1)}


def main() -> None:
    """Print the document."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    found = {}
    for case in CASES:
        command = (sys.executable, "-m", "benchmarks.agent_memory", case)
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found[case] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps({"goal_mib": GOAL_MIB, "growth": found}, indent=2))


if __name__ == "__main__":
    main()
