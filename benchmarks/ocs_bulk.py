"""Measures bulk time beyond physics per dialect.

``python -m benchmarks.ocs_bulk`` prints one JSON document. The emulator runs in its own
process, with a mirror time of 25 ms and a bulk time of 200 ms (Calient S320 hardware
guide). ``physics_s`` is the time of its optics for the bulk, ``overhead_s`` the rest: the
diff, the wire, the emulator's own work, the read-back and the proof of light. The CPU time of
driver and emulator is reported separately; most of it passes while mirrors move.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ocs_driver
from ocs_driver import CircuitRequest, OcsDriver
from testbed.ocs_emulator.personality import load_personality

MIRROR_S, BULK_S = 0.025, 0.2
GOAL_S = 0.010
DIALECTS = (
    ("calient+tl1", "calient-s320", 0),
    ("polatis+tl1", "polatis-48xCC", 0),
    ("polatis+scpi", "polatis-48xCC", 1),
    ("polatis+netconf", "polatis-48xCC", 2),
    ("glimmerglass+tl1", "glimmerglass-48", 0),
)


@dataclass(slots=True, frozen=True)
class Bench:
    """A connected driver and the emulator in its own process."""

    driver: OcsDriver
    ports: list[str]
    pid: int

    def emulator_cpu_s(self) -> float:
        """Return the emulator's CPU time so far, over all its threads."""
        return time.clock_gettime((~self.pid << 3) | 2)  # as clock_getcpuclockid(3) computes it


@contextlib.asynccontextmanager
async def switch(scheme: str, name: str, front_end: int, ports: int) -> AsyncIterator[Bench]:
    """Start an emulator with at least ``ports`` ports and connect to it."""
    with tempfile.TemporaryDirectory() as folder:
        personality = Path(folder) / "switch.json"
        known = load_personality(name)
        shape = dict(known.shape)
        if "any" in shape:
            shape["any"] = ports
        elif "inputs" in shape:
            shape |= {"inputs": ports, "outputs": ports}
        personality.write_text(json.dumps(_document(known, shape)))
        command = [sys.executable, "-m", "testbed.ocs_emulator", "--personality", str(personality)]
        listen = ",".join(["127.0.0.1:0"] * len(known.front_ends))
        emulator = await asyncio.to_thread(
            lambda: subprocess.Popen(
                [*command, "--listen", listen], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        )
        try:
            assert emulator.stdout is not None
            ready = json.loads(await asyncio.to_thread(emulator.stdout.readline))
            address = list(ready["listen"].values())[front_end]
            url = f"{scheme}://admin@{address}"
            async with ocs_driver.open(url, password="x", state_dir=Path(folder)) as driver:  # noqa: S106
                listed = [p.port for p in await driver.inventory()]
                usable = [p for p in listed if p not in known.partner][:ports]
                yield Bench(driver, usable, emulator.pid)
        finally:
            emulator.terminate()
            emulator.wait(10)


def _document(known: Any, shape: dict[str, int]) -> dict[str, Any]:
    model = known.model
    if "any" in shape:
        model = model.replace("48xCC", f"{shape['any']}xCC")
    return {
        "vendor": known.vendor,
        "model": model,
        "front_ends": list(known.front_ends),
        "sid": known.sid,
        "serial": known.serial,
        "firmware": known.firmware,
        "platform": known.platform,
        "ports": shape,
        # Commands take no time: the rest beyond the optics is the driver's and the wire's.
        "timing": {"command_s": 0.0, "mirror_s": MIRROR_S, "bulk_s": BULK_S},
        "light": {
            "launch_dbm": -1.0,
            "floor_dbm": -60.0,
            "loss_mean_db": 1.5,
            "loss_spread_db": 0.1,
        },
    }


async def measure(bench: Bench, count: int, rounds: int) -> dict[str, float]:
    """Time bulks of ``count`` circuits."""
    driver, ports = bench.driver, bench.ports
    half = len(ports) // 2
    wanted = [CircuitRequest(ports[i], ports[half + i]) for i in range(count)]
    makes, deletes, ours, theirs = [], [], [], []
    for _ in range(rounds):
        cpu = time.process_time(), bench.emulator_cpu_s()
        began = time.perf_counter()
        done = await driver.apply([], wanted, deadline_s=60.0)
        makes.append(time.perf_counter() - began)
        ours.append(time.process_time() - cpu[0])
        theirs.append(bench.emulator_cpu_s() - cpu[1])
        assert done.ok, [r for r in done.results if r.code][:3]
        began = time.perf_counter()
        await driver.apply(wanted, [], deadline_s=60.0)
        deletes.append(time.perf_counter() - began)
    paths = count if (await driver.capabilities()).duplex else 2 * count
    physics = min(paths * MIRROR_S, BULK_S)
    median = statistics.median(makes)
    return {
        "circuits": count,
        "physics_s": round(physics, 4),
        "bulk_s": round(median, 4),
        "overhead_s": round(median - physics, 4),
        "overhead_best_s": round(min(makes) - physics, 4),
        "driver_cpu_s": round(statistics.median(ours), 4),
        "emulator_cpu_s": round(statistics.median(theirs), 4),
        "delete_s": round(statistics.median(deletes), 4),
        "connects_per_s": round(count / median, 1),
    }


async def main() -> None:
    """Measure all dialects and print the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--circuits", default="1,16,160")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dialect", default="", help="only schemes that contain this")
    options = parser.parse_args()
    counts = [int(n) for n in options.circuits.split(",")]
    results = []
    for scheme, name, front_end in DIALECTS:
        if options.dialect not in scheme:
            continue
        async with switch(scheme, name, front_end, 2 * max(counts)) as bench:
            for count in counts:
                figures = await measure(bench, count, options.rounds)
                results.append({"dialect": scheme, **figures})
                sys.stderr.write(f"{results[-1]}\n")
    document = {
        "machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        "mirror_s": MIRROR_S,
        "bulk_limit_s": BULK_S,
        "goal_overhead_s": GOAL_S,
        "within_goal": all(r["overhead_s"] <= GOAL_S for r in results),
        "results": results,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    asyncio.run(main())
