"""How much memory the communication of each job may take. Pure.

Ranks write their recorders' files themselves, so one job could report millions of rows. The jobs of
one project share a budget, and so do those of one user; the ranks of a job share the job's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agentlink.values import Record
from controller.comms.ledger import MOST_SKEWED
from controller.devices.engine import RecordingLimit
from controller.state.records import JobRecord
from measure.comms.facts import MOST_RANKS

RUNNING_BYTES = 16 * 2**20
"""Of all jobs of one project, and of one user, that have not ended."""
ENDED_RANKS = 256
"""Of jobs of one project that have ended, the newest; they are read until their record is made."""
ENDED_S = 1000.0
"""Servers forget ranks that ended longer ago."""
LEAST_ROWS = 16
"""Of a rank."""
LEAST_CALLED = 2
"""Ranks of a job whose calls are taken."""
LEAST_ANSWER = 20 * 1024
"""Bytes that a server is asked for, for a rank: some rows, and all of its calls."""
ROW_BYTES = 1536
"""What a row takes at most, with a full histogram."""
CALLS_BYTES = 100 * 1024
"""What the latest calls of a rank take at most."""


def shares(jobs: Iterable[JobRecord], now: float) -> dict[str, int]:
    """Return the bytes that each job may take; what is not recorded, or forgotten, has none."""
    recorded = [job for job in jobs if job.endpoints and job.request.record is not Record.OFF]
    running = [job for job in recorded if not job.ended]
    projects = Counter(job.request.project for job in running)
    users = Counter(job.user for job in running)
    found = {
        job.name: RUNNING_BYTES // max(projects[job.request.project], users[job.user])
        for job in running
    }
    ranks: Counter[str] = Counter()
    for job in sorted(recorded, key=lambda job: -(job.finished_at or 0.0)):
        project, late = job.request.project, now - (job.finished_at or 0.0)
        if not job.ended or late > ENDED_S:
            continue
        if not ranks[project] or ranks[project] + len(job.endpoints) <= ENDED_RANKS:
            found[job.name] = 0  # the least
            ranks[project] += len(job.endpoints)
    return found


def limit_of(ranks: int, share: int) -> RecordingLimit:
    """Return how much of a job's recordings is taken: half of its share is for rows.

    The calls are those of ranks that are compared, as far as they have room.
    """
    every = -(-ranks // MOST_RANKS) or 1
    compared = dict.fromkeys((*range(0, ranks, every), *range(min(ranks, MOST_SKEWED))))
    called = list(compared)[: max(LEAST_CALLED, share // 4 // CALLS_BYTES)]
    rows = max(LEAST_ROWS, share // 2 // ranks // ROW_BYTES)
    return RecordingLimit(rows, frozenset(called))
