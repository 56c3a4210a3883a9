"""The promises to waiting jobs for which others were stopped. Part of the state."""

from __future__ import annotations

import json
from collections.abc import Mapping

from controller.state.records import JobRecord
from scheduler.queue.model import Promise

FACT = "promises"


class Promises:
    """By waiting job. They are durable: a restart in between takes no job's precedence."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, Promise]] = {}
        """With the job's submission time: another one may get its name."""

    @property
    def all(self) -> Mapping[str, Promise]:
        """The promise of each job that has one."""
        return {name: promise for name, (_, promise) in self._kept.items()}

    def give(self, job: JobRecord, promise: Promise) -> None:
        """Remember that others are stopped for a job."""
        self._kept[job.name] = job.submitted_at, promise

    def trim(self, jobs: Mapping[str, JobRecord]) -> bool:
        """Drop the promises to jobs that started or left the queue; return whether any went."""
        before = len(self._kept)
        self._kept = {
            name: kept
            for name, kept in self._kept.items()
            if (job := jobs.get(name)) is not None
            and (job.state, job.submitted_at) == ("pending", kept[0])
        }
        return len(self._kept) != before

    def facts(self) -> Mapping[str, str]:
        """Return them for a durable write."""
        rows = [
            [name, submitted_at, promise.since, sorted(promise.stopped)]
            for name, (submitted_at, promise) in self._kept.items()
        ]
        return {FACT: json.dumps(rows)}

    def restore(self, facts: Mapping[str, str]) -> None:
        """Take over the stored ones; older stores have none."""
        self._kept = {
            name: (submitted_at, Promise(since, frozenset(stopped)))
            for name, submitted_at, since, stopped in json.loads(facts.get(FACT, "[]"))
        }
