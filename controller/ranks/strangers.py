"""Containers of jobs that the controller does not know, from a lost or an older store. Pure.

They are never stopped, their endpoints are not used, and their flows stay. A server that has not
reported yet may run such a container, so the rules of an endpoint stay until its server has
reported that none runs there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from controller.devices.engine import RankState, RankStatus
from sitefile import EndpointCable

_LIVE = (RankState.CREATED, RankState.RUNNING, RankState.PAUSED)


def strangers(statuses: Iterable[RankStatus], known: Callable[[str], bool]) -> dict[str, str]:
    """Return the job of every endpoint with a live container of a job that is not ``known``."""
    return {s.endpoint: s.job for s in statuses if s.state in _LIVE and not known(s.job)}


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
        f"containers of unknown jobs live: {jobs}. They keep running with their flows, and their"
        " endpoints are not used. Restore the store that knows them, or stop them on their servers"
    )
