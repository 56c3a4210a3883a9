"""Measures the recovery after the controller dies in the middle of a regroup.

``python -m benchmarks.reconfig_recovery`` prints one JSON document; ``--rack`` (root) adds the
emulated rack. Over simulated devices (``benchmarks.reconfig_sim``) the controller dies right after
the light has moved, which is the worst moment: its successor reads the store and all devices, moves
the light of every second endpoint back, and thaws the jobs. ``recovery_s`` excludes the start of
the process (``import_s``) and the mirror time of the switches (``physical_s``); ``cpu_s`` is its
CPU time, which does not depend on the machine's load. On the rack a real process is killed:
``kept_s`` under its keeper, which starts the next one; ``idle_s`` and ``in_a_regroup_s`` without a
keeper, with a new start of the program. The rack's times include everything.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from benchmarks.reconfig_overhead import scattered
from benchmarks.reconfig_sim import World, make_site
from controller.base import failpoints

SIZES = (6, 4096)
SETTLED_S = 4.0
"""Before a death: the keeper is as it is most of the time."""
DEATHS = ("switch.after", "log-proven.after")

Document = dict[str, Any]


class Reaper:
    """Blocks all tasks at failpoints from the first pass of ``name`` on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.died = asyncio.Event()

    async def __call__(self, point: str) -> None:
        """Handle one failpoint."""
        if point == self._name:
            self.died.set()
        if self.died.is_set():
            await asyncio.Event().wait()


async def recovered(endpoints: int, death: str) -> Document:
    """Let the controller die at ``death`` in a regroup of the whole site, and recover."""
    with tempfile.TemporaryDirectory() as folder:
        world = World(make_site(endpoints), Path(folder))
        await scattered(world, "pause")
        plan = await world.together()
        reaper = Reaper(death)
        with failpoints.hooked(reaper):
            await world.service.desks.plans.apply(plan, wait_s=0)
            await asyncio.wait_for(reaper.died.wait(), 60)
            await world.crash()
        began, cpu = time.monotonic(), time.process_time()
        took_s = await world.up()
        cpu_s = time.process_time() - cpu
        physical_s = world.clock.busy_s(began)
        await world.down()
        return {
            "death": death,
            "recovery_s": round(took_s - physical_s, 3),
            "physical_s": round(physical_s, 3),
            "cpu_s": round(cpu_s, 3),
        }


def import_s() -> float:
    """Return the time in which a new process loads the controller."""
    took = []
    for _ in range(3):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import controller.daemon.compose"], check=True)
        took.append(time.monotonic() - began)
    return round(statistics.median(took), 3)


def on_the_rack(rounds: int) -> Document:
    """Kill the rack's controller: under its keeper, and with it; idle, and in a regroup."""
    import httpx  # noqa: PLC0415 - only the rack needs it

    import testbed  # noqa: PLC0415
    from testbed import ring  # noqa: PLC0415
    from testbed.mortal import Mortal  # noqa: PLC0415
    from testbed.rack import down, up  # noqa: PLC0415

    run_dir = Path(f"/run/lightloom/recovery-{os.getpid()}")
    site = Path(testbed.__file__).parent / "sites" / "paper.yaml"
    idle, busy = [], []
    try:
        rack = up(site, run_dir, progress=lambda _: None)
        keeper = next(part.pid for part in rack.parts if part.name == "controller")
        kept = under_its_keeper(rack.url, run_dir, keeper, rounds)
        mortal = Mortal(rack, run_dir)
        mortal.start()
        for name, ends in {"red": ["gpu0", "gpu2"], "blue": ["gpu1", "gpu3"]}.items():
            mortal.post("/jobs", ring.request(name, ends))
        mortal.until(lambda: all(j["state"] == "running" for j in mortal.get("/jobs")["items"]))
        for _ in range(rounds):
            mortal.kill()
            idle.append(round(mortal.start(), 3))
            plan = mortal.post("/plans", {})
            mortal.die_at("switch.after")
            with contextlib.suppress(httpx.TransportError):
                mortal.http.post("/transactions", json={"plan": plan})
            mortal.died()
            busy.append(round(mortal.start(), 3))
        mortal.stop()
    finally:
        down(run_dir, progress=lambda _: None)
    return {"endpoints": 6, "kept_s": kept, "idle_s": idle, "in_a_regroup_s": busy}


def under_its_keeper(url: str, run_dir: Path, keeper: int, rounds: int) -> list[float]:
    """Kill the keeper's child; return the seconds until its successor reaches all devices."""
    import httpx  # noqa: PLC0415

    from testbed.token import rack_token  # noqa: PLC0415

    took = []
    for _ in range(rounds):
        time.sleep(SETTLED_S)
        children = Path(f"/proc/{keeper}/task/{keeper}/children").read_text(encoding="utf-8")
        began = time.monotonic()
        os.kill(int(children), signal.SIGKILL)
        whole = False
        while not whole:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.get(
                    f"{url}/api/v1/health",
                    headers={"Authorization": f"Bearer {rack_token(run_dir)}"},
                    timeout=10,
                    trust_env=False,
                )
                whole = answer.is_success and answer.json()["status"] == "ok"
        took.append(round(time.monotonic() - began, 3))
    return took


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--rack", action="store_true", help="also run on the emulated rack; root")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    found: Document = {"machine": {"cores": os.cpu_count()}, "import_s": import_s()}
    found["simulated"] = {
        size: [asyncio.run(recovered(size, death)) for death in DEATHS] for size in options.sizes
    }
    if options.rack:
        found["rack"] = on_the_rack(options.rounds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
