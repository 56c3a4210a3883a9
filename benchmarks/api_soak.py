"""Measures the controller's memory during ten minutes of load: its growth and its composition.

``python -m benchmarks.api_soak --minutes 10`` prints one JSON document. The controller is the real
one over simulated devices, in its own process; 200 readers follow its stream in a second process;
this process submits, cancels, moves light, regroups and reads the lists. The controller's history
is bounded (2,000 ended jobs, 10,000 events, 200 transactions, 2,048 frames), so the first
``--warm-up-share`` of the time fills it. The reference of the later growth is the size at that
time: ``growth_trimmed_ratio`` compares both, after the C library has returned freed memory. Counts
of objects and blocks are independent of that. ``late`` counts garbage in cycles that had been
frozen (``controller.daemon.garbage``) since the count before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.api import followed, machine, serve_rack, served
from controller.state.events import KEPT as KEPT_EVENTS
from controller.state.jobs import KEPT_JOBS
from tests.parts.controller.rack import Rack

ENDPOINTS = [f"gpu{n}" for n in range(6)]
SAMPLE_S = 5.0
SUBMITS_PER_S = 20.0
WORKERS = 4
KEPT_BUSY = 3
"""Waiting or running jobs of each worker; older jobs are cancelled."""


def serve(directory: str, tell: Connection) -> None:
    """Run a controller until killed; send its address and a token, then its size on request."""
    import structlog  # noqa: PLC0415 - only here: the load process keeps its own configuration

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.run(_serve(Path(directory), tell))


async def _serve(directory: Path, tell: Connection) -> None:
    rack = Rack(directory)
    for number in range(len(ENDPOINTS)):
        rack.switch.add(f"1.1.{number + 1}", f"2.{1 + number // 3}.{1 + number % 3}")
    server = asyncio.create_task(serve_rack(rack, directory, tell))
    loop = asyncio.get_running_loop()
    while True:
        asked = await loop.run_in_executor(None, tell.recv)
        # The simulated devices record every call, which is not the controller's memory.
        rack.engine.calls.clear()
        rack.switch.applied.clear()
        rack.aggregators.history.clear()
        rack.aggregators.probes.clear()
        tell.send(_size(rack, count=asked == "count"))
        if server.done():
            await server


def _size(rack: Rack, *, count: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"rss_bytes": _rss_bytes()}
    if count:
        gc.unfreeze()
        found["late"] = gc.collect()
        state = rack.service.features.core.state
        kinds = Counter(type(thing).__name__ for thing in gc.get_objects())
        found["objects"] = sum(kinds.values())
        # Blocks include strings and numbers, which the garbage collector does not track.
        found["blocks"] = sys.getallocatedblocks()
        # RSS includes freed memory that the C library keeps; malloc_trim returns it.
        ctypes.CDLL(None).malloc_trim(0)
        found["rss_trimmed_bytes"] = _rss_bytes()
        found["commonest"] = dict(kinds.most_common(12))
        found["jobs"] = len(state.jobs)
        found["transactions"] = len(state.transactions.finished)
        found["events"] = state.events.last_id
        found["tasks"] = len(asyncio.all_tasks())
        gc.freeze()
    return found


def _rss_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def work(client: httpx.AsyncClient, who: int, end: float, done: Counter[str]) -> None:
    """Submit, cancel, move and regroup until ``end``; refused requests count as well."""
    dice = random.Random(who)
    number = 0

    async def ask(what: str, method: str, path: str, body: Any = None) -> None:
        reply = await client.request(method, path, json=body)
        done[f"{what} {reply.status_code}"] += 1

    while time.monotonic() < end:
        began = time.monotonic()
        number += 1
        name = f"soak-{who}-{number}"
        body: dict[str, Any] = {"name": name, "count": dice.randint(1, 3), "policy": "live"}
        await ask("submit", "POST", "/jobs", body)
        if number > KEPT_BUSY:
            await ask("cancel", "POST", f"/jobs/soak-{who}-{number - KEPT_BUSY}/cancel")
        if number % 20 == 0:
            target = {"aggregator": dice.choice(["as0", "as1"])}
            path = f"/endpoints/{dice.choice(ENDPOINTS)}/attachment?wait_s=5"
            await ask("attach", "POST", path, target)
        if number % 50 == 0:
            plan = await client.post("/plans", json={})
            done[f"plan {plan.status_code}"] += 1
            if plan.status_code < 300 and plan.json()["moves"]:
                body = {"plan": plan.json()}
                await ask("apply", "POST", "/transactions?wait_s=5", body)
        if number % 10 == 0:
            for path in ("/jobs?limit=100", "/endpoints", "/top", "/series", "/events"):
                await ask("read", "GET", path)
        if number % 100 == 0:
            await ask("read", "GET", "/jobs")
        await asyncio.sleep(max(0.0, began + WORKERS / SUBMITS_PER_S - time.monotonic()))


async def soak(url: str, token: str, here: Connection, given: argparse.Namespace) -> dict[str, Any]:
    """Apply the load for the whole time and sample the controller's size meanwhile."""
    seconds, done = given.minutes * 60, Counter[str]()
    began = time.monotonic()
    sizes: list[tuple[float, int]] = []
    warm: dict[str, Any] = {}
    loop = asyncio.get_running_loop()

    async def size(what: str) -> dict[str, Any]:
        here.send(what)
        return dict(await loop.run_in_executor(None, here.recv))

    async with httpx.AsyncClient(
        base_url=f"{url}/api/v1",
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=60,
    ) as client:
        start = await size("count")
        storm = (work(client, who, began + seconds, done) for who in range(WORKERS))
        working = asyncio.ensure_future(asyncio.gather(*storm))
        while not working.done():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(working), SAMPLE_S)
            at = time.monotonic() - began
            if not warm and at >= seconds * given.warm_up_share:
                warm = {"at_s": round(at, 1), **await size("count")}
            sizes.append((at, (await size("size"))["rss_bytes"]))
        await working
        last = await size("count")
    after = [(at, rss) for at, rss in sizes if at >= warm["at_s"]]
    slope = float(np.polyfit([at for at, _ in after], [rss for _, rss in after], 1)[0])
    return {
        "seconds": seconds,
        "requests": dict(sorted(done.items())),
        "start": start,
        "after_warm_up": warm,
        "end": last,
        "warm_up_filled_everything": warm["jobs"] >= KEPT_JOBS and warm["events"] >= KEPT_EVENTS,
        "growth_trimmed_bytes": last["rss_trimmed_bytes"] - warm["rss_trimmed_bytes"],
        "growth_trimmed_ratio": round(last["rss_trimmed_bytes"] / warm["rss_trimmed_bytes"] - 1, 4),
        "rss_slope_bytes_per_minute": round(slope * 60),
        "objects_growth": last["objects"] - warm["objects"],
        "blocks_growth_ratio": round(last["blocks"] / warm["blocks"] - 1, 4),
    }


def main() -> None:
    """Run the soak and print one JSON document."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=10.0)
    options.add_argument("--watchers", type=int, default=200)
    options.add_argument("--warm-up-share", type=float, default=0.5)
    given = options.parse_args()
    with served(serve) as (url, token, line):
        end = followed(url, [token], given.watchers)
        found = asyncio.run(soak(url, token, line, given))
        events = end()
    found = {
        "benchmark": "api_soak",
        "machine": machine(),
        "watchers": given.watchers,
        "events_received": events,
        **found,
    }
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
