"""Containers of jobs or runs that the controller does not know, from a lost or older store. Pure.

They are never stopped, their endpoints are not used, and their flows stay. A server that has not
reported yet may run such a container, so the rules of an endpoint stay until its server has
reported that none runs there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.devices.engine import RankState, RankStatus
from sitefile import EndpointCable

LIVE = (RankState.CREATED, RankState.RUNNING, RankState.PAUSED)


def strangers(
    statuses: Iterable[RankStatus], known: Callable[[RankStatus], bool]
) -> dict[str, str]:
    """Return the job of every endpoint with a live container of a run that is not ``known``."""
    return {s.endpoint: s.job for s in statuses if s.state in LIVE and not known(s)}


def later_run(
    statuses: Iterable[RankStatus], job: str, epoch: int
) -> tuple[int, tuple[RankStatus, ...]]:
    """Return the newest epoch after ``epoch`` with live ranks of the job, and its ranks in order.

    Zero and none without one.
    """
    later = [s for s in statuses if s.job == job and s.epoch > epoch]
    newest = max((s.epoch for s in later if s.state in LIVE), default=0)
    return newest, tuple(sorted((s for s in later if s.epoch == newest), key=lambda s: s.rank))


def is_whole(ranks: Sequence[RankStatus], free: Callable[[str], bool]) -> bool:
    """Whether all ranks from 0 on live, each on an endpoint of its own that is ``free`` for it."""
    endpoints = {s.endpoint for s in ranks}
    return (
        [s.rank for s in ranks] == list(range(len(ranks)))
        and all(s.state in LIVE for s in ranks)
        and len(endpoints) == len(ranks)
        and all(map(free, endpoints))
    )


def still_spared(
    spared: frozenset[str],
    strange: Mapping[str, str],
    cables: Mapping[str, EndpointCable],
    answering: Mapping[str, bool],
) -> frozenset[str]:
    """Return those of the ``spared`` endpoints that may still be held; the same set when all may.

    ``answering`` are the servers that answered this observation, ``strange`` what they reported.
    """
    left = frozenset(e for e in spared if e in strange or not answering.get(cables[e].server))
    return spared if left == spared else left


def describe_strangers(strange: Mapping[str, str]) -> str:
    """Describe which containers live where and what to do about them; empty for none."""
    if not strange:
        return ""
    by_job: dict[str, list[str]] = defaultdict(list)
    for endpoint, job in sorted(strange.items()):
        by_job[job].append(endpoint)
    jobs = "; ".join(f"{job} on {', '.join(ends)}" for job, ends in sorted(by_job.items()))
    return (
        f"containers of unknown runs live: {jobs}. They keep running with their flows, and their"
        " endpoints are not used. Restore the store that knows them, or stop them on their servers"
    )
