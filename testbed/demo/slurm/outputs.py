"""Reads what the jobs of the mixture print, and computes an arm's figures from it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.demo.api import Document
from testbed.demo.errors import DemoError
from testbed.demo.slurm.mixture import MixtureJob
from testbed.demo.trainer_log import TrainerLog

Homes = Mapping[str, str | None]
Timeline = Sequence[tuple[float, Homes]]
"""From which wall-clock time each endpoint's light was where; the first is before all jobs."""


@dataclass(slots=True, frozen=True)
class EndedJob:
    """A job that ended: wall-clock times in seconds, its endpoints, what it trained."""

    work: MixtureJob
    submitted_at: float
    began_at: float
    ended_at: float
    endpoints: tuple[str, ...]
    least_span: int
    final_loss: float
    step_s: float
    """Median of rank 0's steps."""


def began(text: str) -> float | None:
    """Return when a job's script began, None before."""
    for line in text.splitlines():
        if line.startswith("begin "):
            return float(line.split()[1])
    return None


def ended(text: str) -> tuple[int, float] | None:
    """Return exit status and time of a job's end, None before."""
    for line in reversed(text.splitlines()):
        words = line.split()
        if words[:1] == ["end"] and len(words) == 3:
            return int(words[1]), float(words[2])
    return None


def trained(work: MixtureJob, text: str) -> TrainerLog:
    """Return what the ranks printed. Raises DemoError(failed) for a training that failed."""
    log = TrainerLog(work.name, work.ranks)
    for line in text.splitlines():
        rank, colon, said = line.partition(": ")
        if colon and rank.strip().isdecimal():
            log.add(int(rank), said)
    finish = ended(text)
    if finish is None or finish[0] or not log.complete:
        raise DemoError(
            "failed",
            f"{len(log.ends)} of its {work.ranks} ranks have trained to the end",
            object=f"job/{work.name}",
        )
    return log


def local_share(done: Sequence[EndedJob], timeline: Timeline) -> float | None:
    """Return which part of the GPU-time was under the fewest aggregators possible.

    Jobs of one GPU do not count; None without others.
    """
    good = total = 0.0
    for job in done:
        if job.work.ranks < 2:
            continue
        for begin, end, local in pieces(job, timeline):
            gpu_s = (end - begin) * job.work.ranks
            total += gpu_s
            good += gpu_s * local
    return round(good / total, 4) if total else None


def pieces(job: EndedJob, timeline: Timeline) -> list[tuple[float, float, bool]]:
    """Return a job's time cut at every move: begin, end, under the fewest aggregators possible."""
    found = []
    for index, (at, homes) in enumerate(timeline):
        until = timeline[index + 1][0] if index + 1 < len(timeline) else job.ended_at
        begin, end = max(at, job.began_at), min(until, job.ended_at)
        if begin < end:
            span = len({homes.get(endpoint) for endpoint in job.endpoints})
            found.append((begin, end, span <= job.least_span))
    return found


def figures(done: Sequence[EndedJob], timeline: Timeline, pauses: int, moves: int) -> Document:
    """Return an arm's figures in seconds; ``pauses`` and ``moves`` are lightloom's."""
    first = min(job.submitted_at for job in done)
    last = max(job.ended_at for job in done)
    waits = [job.began_at - job.submitted_at for job in done]
    return {
        "jobs": len(done),
        "makespan_s": round(last - first, 3),
        "completion_s_mean": _mean([job.ended_at - job.submitted_at for job in done]),
        "run_s_mean": _mean([job.ended_at - job.began_at for job in done]),
        "wait_s_mean": _mean(waits),
        "wait_s_worst": round(max(waits), 3),
        "local": local_share(done, timeline),
        "pauses": pauses,
        "moves": moves,
        "losses": {job.work.name: job.final_loss for job in done},
    }


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 3)
