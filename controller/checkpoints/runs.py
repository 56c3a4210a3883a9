"""What is kept of a job's runs: which ones, how each ended, and which steps killed them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from checkpoints.ledger import NOTHING, Began, Key, Ledger, Report, Spoiled
from checkpoints.restore import Attempt, spoiled
from controller.state.kept.checkpoints import KEPT_RUNS, CheckpointRecord, CheckpointRun, RunEnd

MOST_PLACES = 1 << 17
"""Ranks of all kept runs of a job together: a record is written with every start."""
LEAST_RUNS = 8
MOST_SPOILED = 256
SPOILED = "two runs that loaded it died before their first step"


def reports(record: CheckpointRecord) -> list[Report]:
    """Return what begins a ledger: the runs, oldest first, then the spoiled steps."""
    began: list[Report] = [Began(one.epoch, one.run) for one in record.runs]
    return began + [Spoiled(one.key, one.why) for one in record.spoiled]


def added(record: CheckpointRecord, run: CheckpointRun, ledger: Ledger) -> CheckpointRecord:
    """Return the record with a run that begins, without those that nothing needs any more."""
    needed = {key.epoch for key in ledger.steps}
    runs = trimmed((*record.runs, run), needed)
    epochs = {one.epoch for one in runs}
    kept = tuple(one for one in record.spoiled if one.epoch in epochs)
    return replace(record, runs=runs, spoiled=kept[-MOST_SPOILED:])


def trimmed(runs: Sequence[CheckpointRun], needed: Collection[int]) -> tuple[CheckpointRun, ...]:
    """Return the runs that are kept, oldest first; ``needed`` are epochs with steps.

    A run without steps goes only when a later one gave up as much: its end of the older runs'
    time lines must not come back.
    """
    kept = list(runs)
    ranks = max((len(run.endpoints) for run in kept), default=1)
    most = max(LEAST_RUNS, min(KEPT_RUNS, MOST_PLACES // max(1, ranks)))
    while len(kept) > most:
        del kept[_spare(kept, needed)]
    return tuple(kept)


def _spare(runs: Sequence[CheckpointRun], needed: Collection[int]) -> int:
    """Return the index of the run that is missed least: never the newest."""
    least: Key | None = None
    free = []
    for index in range(len(runs) - 1, -1, -1):
        run = runs[index]
        resumed = run.run.resumed or NOTHING
        first = not any(one.epoch in needed for one in runs[:index])
        if run.epoch not in needed and least is not None and (first or least <= resumed):
            free.append(index)
        least = resumed if least is None else min(least, resumed)
    return min(free, default=0)


def marked(
    record: CheckpointRecord, epoch: int, *, stepped: bool = False, end: RunEnd = ""
) -> CheckpointRecord:
    """Return the record with what is new of one run; a run ends once, the first end counts."""
    return replace(
        record,
        runs=tuple(
            replace(run, stepped=run.stepped or stepped, end=run.end or end)
            if run.epoch == epoch
            else run
            for run in record.runs
        ),
    )


def killer(record: CheckpointRecord) -> Key | None:
    """Return the step that the last own deaths all loaded and none outlived; None without one.

    A run that was stopped, or whose end nothing saw, counts as little as one that lost hardware.
    """
    attempts = [
        Attempt(run.run.resumed, run.stepped, unfit=run.end != "own") for run in record.runs
    ]
    key = spoiled(attempts)
    return None if key in {one.key for one in record.spoiled} else key
