"""Whatever dies, a job goes on from its newest step, and nothing has two holders."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from checkpoints.ledger import Key
from controller.schema.jobs import read_job
from tests.parts.controller.losses import FakeCheckpoints, with_checkpoints
from tests.parts.controller.recoveries import (
    check,
    job_of,
    kill,
    mended,
    rows,
    settled,
)
from tests.stories.rack import StoryRack
from tests.stories.telling import Log, tell

RANKS = 3
JOB = {
    "name": "red",
    "count": RANKS,
    "restart": "on-failure:999",
    "checkpoint": {
        "complete": "dcp",
        "local": {"size_bytes": 2**20},
        "copies": {"scheme": "single"},
    },
}


@dataclass(frozen=True)
class Harm:
    """Something is lost, ``after_ms`` after the harm before."""

    what: Literal["rank", "gpu", "hung gpu", "server", "die", "die at", "repair"]
    """``die`` after ``count`` turns of the loop, ``die at`` the failpoint of that number. A
    ``repair`` waits until the job goes on, and repairs all."""
    after_ms: int = 0
    count: int = 0
    """Of the others: the rank that is hit."""


class Losses:
    """One job on a rack with two spares."""

    def __init__(self, folder: Path, log: Log, kept: FakeCheckpoints) -> None:
        self.rack = StoryRack(folder, log, spares=("gpu4", "gpu5"))
        self._kept = kept
        self._log = log
        self._step = 0
        self._written = Key(0, 0)
        self._known = 0
        """Recoveries before the last step was written."""

    async def run(self, harms: Sequence[Harm]) -> None:
        """Let all harm happen, repair, and check."""
        rack = self.rack
        async with rack.run():
            await rack.do(rack.desks.jobs.submit(read_job(JOB)))
            await rack.state("red", "running")
            self._write()
            for harm in [*harms, Harm("repair")]:
                await asyncio.sleep(harm.after_ms / 1000)
                self._log.note(f"{harm.what} {harm.count}")
                await self._harm(harm)

    def _write(self) -> None:
        self._known = len(rows(self.rack))
        self._step += 1
        self._written = Key(self._step, job_of(self.rack).epoch)
        self._kept.write("red", *self._written, ranks=RANKS)

    async def _harm(self, harm: Harm) -> None:
        rack = self.rack
        if harm.what == "repair":
            await self._repair()
            return
        if harm.what == "die":
            await rack.death(turns=harm.count)
            return
        if harm.what == "die at":
            await rack.death(points=harm.count)
            return
        endpoints = job_of(rack).endpoints
        if not endpoints:
            return
        victim = endpoints[harm.count % len(endpoints)]
        match harm.what:
            case "rank":
                if status := rack.engine.statuses.get(("red", harm.count % len(endpoints))):
                    rack.engine.exit(status.job, status.rank, 137)
            case "gpu":
                kill(rack, victim)
            case "hung gpu":
                kill(rack, victim, None)
            case "server":
                rack.engine.lost.add(rack.site.endpoint(victim).server)

    async def _repair(self) -> None:
        """Check that the job goes on from its newest step; repair all, and write another."""
        rack = self.rack
        await rack.do(settled(rack))
        check(rack)
        assert self._kept.newest("red") == self._written, "no step is lost"
        for row in rows(rack)[self._known :]:
            if row.how in ("swap", "shrink"):
                assert row.step_restored == self._step, "it goes on from the newest"
        await rack.do(mended(rack))
        self._write()


def story(harms: Sequence[Harm], seed: int) -> Log:
    """Tell a story of losses; AssertionError when the job does not go on as it should."""
    folder = Path(tempfile.mkdtemp(prefix="ll-story-"))
    kept = FakeCheckpoints()

    async def told(log: Log) -> None:
        await Losses(folder, log, kept).run(harms)

    try:
        with pytest.MonkeyPatch.context() as patch:
            with_checkpoints(patch, kept)
            return tell(told, seed)
    finally:
        shutil.rmtree(folder)
