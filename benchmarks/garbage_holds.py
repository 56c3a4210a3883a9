"""Measures how long garbage collections hold the loop of a controller that has grown.

``python -m benchmarks.garbage_holds`` (three minutes) prints one JSON document. The controller
freezes what it has while its store is empty. Then it gets 4,096 endpoints, 2,000 kept and 256
running jobs and 10,000 events, and clients submit 40,000 jobs and read lists.
``usual`` lets Python start full collections as it does by itself, ``ours`` is what the daemon does
(``controller.daemon.garbage``); each has a process of its own, in the same run. Collections are
timed by ``gc.callbacks`` in processor time of the loop's thread. ``late`` is what a collection of
everything finds afterwards: garbage in cycles that was frozen, in objects. The goal is 50 ms for
the longest, because the loop also controls the fabric.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing as mp
import tempfile
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import structlog

from benchmarks.api_holds import BULK, ENDPOINTS, GOAL_S, PLENTY, bulk, service_of
from controller.api.app import create_app
from controller.api.gate.access import Access
from controller.api.gate.pace import RateLimit
from controller.daemon.garbage import Garbage, OwnMemory
from controller.people.accounts import Accounts, StoredProject
from controller.people.authz import Role
from controller.state.jobs import KEPT_JOBS

SUBMISSIONS = 40
READS = ("/jobs?limit=50", "/endpoints", "/top", "/events", "/series?since_s=900", "/site")
REGIMES = ("usual", "ours")


@dataclass(slots=True)
class Stopwatch:
    """Times the collections of each generation."""

    took_s: tuple[list[float], ...] = field(default_factory=lambda: ([], [], []))
    _began: float = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Take one event of ``gc.callbacks``."""
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.took_s[info["generation"]].append(time.thread_time() - self._began)

    def longest(self) -> dict[str, Any]:
        """Return how many collections there were of each generation, their sum and the longest."""
        named = zip(("young", "middle", "full"), self.took_s, strict=True)
        return {
            name: {
                "number": len(took),
                "sum_s": round(sum(took), 2),
                "longest_s": round(max(took, default=0.0), 4),
            }
            for name, took in named
        }


async def grown(folder: Path, regime: str) -> dict[str, Any]:
    """Grow a controller under load and return what its collections took."""
    keeping = None
    if regime == "ours":
        garbage = Garbage(gc, OwnMemory(), lambda: False)
        keeping = asyncio.create_task(garbage.keep())
    else:
        gc.freeze()
        gc.enable()
    watch = Stopwatch()
    gc.callbacks.append(watch)
    before = OwnMemory().used()
    service = service_of(folder)
    await service.features.core.state.store.load()
    accounts = Accounts(folder / "accounts.sqlite", time.time)
    await accounts.open()
    for project in ("alpha", "beta"):
        await accounts.put_project(StoredProject(project))
    _, secret = await accounts.create("bench", Role.ADMIN, [])
    limit = RateLimit(changes=PLENTY, reads=PLENTY)
    app = create_app(service.desks, Access(accounts), rate_limit=limit)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url="http://127.0.0.1/api/v1",
        headers={"Authorization": f"Bearer {secret}"},
        timeout=120,
    ) as client:
        for number in range(SUBMISSIONS):
            reply = await client.post("/submissions", json=bulk("bench", number))
            reply.raise_for_status()
            for path in READS:
                (await client.get(path)).raise_for_status()
    gc.callbacks.remove(watch)
    if keeping is not None:
        keeping.cancel()
    await accounts.close()
    found = {
        "collections": watch.longest(),
        "memory_ratio": round(OwnMemory().used() / before, 2),
    }
    gc.collect()
    gc.unfreeze()
    return found | {"late": gc.collect()}


def serve(regime: str, tell: Connection) -> None:
    """Send what one regime's collections took to ``tell``."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    gc.disable()  # as the daemon does until it has recovered
    with tempfile.TemporaryDirectory() as folder:
        tell.send(asyncio.run(grown(Path(folder), regime)))


def holds() -> dict[str, Any]:
    """Return the document of this benchmark."""
    context = mp.get_context("spawn")
    found: dict[str, Any] = {}
    for regime in REGIMES:
        here, there = mp.Pipe()
        process = context.Process(target=serve, args=(regime, there))
        process.start()
        there.close()
        found[regime] = here.recv()
        process.join()
    usual, ours = (
        max(kind["longest_s"] for kind in found[regime]["collections"].values())
        for regime in REGIMES
    )
    return {
        "benchmark": "garbage_holds",
        "endpoints": ENDPOINTS,
        "kept_jobs": KEPT_JOBS,
        "submitted": SUBMISSIONS * BULK,
        **found,
        "longest_s": {"usual": usual, "ours": ours},
        "ratio": round(ours / usual, 3),
        "goal_s": GOAL_S,
        "met": ours <= GOAL_S,
    }


def main() -> None:
    """Print one JSON document."""
    print(json.dumps(holds(), indent=2))


if __name__ == "__main__":
    main()
