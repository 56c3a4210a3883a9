"""Homes to suppose for a job's endpoints: checks, ports, and the most compact ones. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from controller.base.errors import ServiceError
from scheduler.metrics import span
from scheduler.model import Endpoint, Fabric, Slot
from scheduler.occupancy import all_homes, capacities, occupied

Homes = Mapping[str, str | None]


def supposed(
    fabric: Fabric, job: str, endpoints: Sequence[str], wanted: Mapping[str, str]
) -> dict[str, str | None]:
    """Return all homes with the job's endpoints at ``wanted``.

    ServiceError ``invalid`` for an endpoint that is not the job's, an unknown aggregator, a fixed
    cable, or when nothing would move.
    """
    homes, cabled = all_homes(fabric), {e.name: e for e in fabric.site.endpoints}
    known = {aggregator.name for aggregator in fabric.site.aggregators}
    for name, home in wanted.items():
        if name not in endpoints:
            raise _refused(job, f"{name} is not an endpoint of job {job}", _listed(endpoints))
        if home not in known:
            raise _refused(job, f"the site has no aggregator {home}", _listed(sorted(known)))
        fixed = cabled[name].fixed
        if fixed is not None and fixed != home:
            raise _refused(job, f"{name} is wired to {fixed}: its light cannot move", "")
    after = homes | dict(wanted)
    if all(after[e] == homes[e] for e in endpoints):
        raise _refused(
            job,
            "its endpoints are there already",
            "name homes that differ from the present ones",
        )
    return after


def dark_members(endpoints: Sequence[str], homes: Homes) -> list[str]:
    """Return the endpoints without light."""
    return [e for e in endpoints if homes.get(e) is None]


def ports_suffice(fabric: Fabric, endpoints: Sequence[str], after: Homes) -> bool:
    """Whether ports are free for a job's endpoints; idle endpoints give way, other jobs do not."""
    movable = frozenset(endpoints)
    if any(e in fabric.unavailable for e in movable if after[e] != fabric.homes.get(e)):
        return False
    busy = movable | {e for job in fabric.jobs for e in job.endpoints} | fabric.unavailable
    used = occupied((e for e in fabric.site.endpoints if e.name in busy), after)
    ports = capacities(fabric)
    return all(count <= ports.get(slot, 0) for slot, count in used.items())


def compact_homes(fabric: Fabric, endpoints: Sequence[str]) -> dict[str, str | None] | None:
    """Return all homes with the endpoints under as few aggregators as their ports could hold.

    Other jobs' ports count only to choose among equals: a regroup may move those jobs. None when
    no homes have a smaller span than the present ones.
    """
    homes = all_homes(fabric)
    members = [e for e in fabric.site.endpoints if e.name in frozenset(endpoints)]
    ports, others = Counter(capacities(fabric)), _others(fabric, frozenset(endpoints))
    left = list(members)
    found: dict[str, str | None] = {}
    for _ in fabric.site.aggregators:
        if not left:
            break
        best = max(
            fabric.site.aggregators,
            key=lambda a: (
                len(fits := _fitting(left, a.name, ports)),
                len(_fitting(left, a.name, _less(ports, others))),
                sum(homes[e.name] == a.name for e in fits),
            ),
        )
        taken = _fitting(left, best.name, ports)
        if not taken:
            break
        found.update(dict.fromkeys((e.name for e in taken), best.name))
        ports.subtract((best.name, e.ocs) for e in taken if e.ocs is not None)
        left = [e for e in left if e not in taken]
    after = homes | found
    if left or span(endpoints, after) >= span(endpoints, homes):
        return None
    return after


def _fitting(
    members: Sequence[Endpoint], aggregator: str, ports: Mapping[Slot, int]
) -> list[Endpoint]:
    """Return the endpoints that one aggregator has ports for, in site order."""
    room: Counter[str] = Counter()
    found = []
    for endpoint in members:
        if endpoint.ocs is None:
            if endpoint.fixed == aggregator:
                found.append(endpoint)
        elif room[endpoint.ocs] < ports.get((aggregator, endpoint.ocs), 0):
            room[endpoint.ocs] += 1
            found.append(endpoint)
    return found


def _others(fabric: Fabric, members: frozenset[str]) -> Counter[Slot]:
    held = {e for job in fabric.jobs for e in job.endpoints} - members
    return occupied((e for e in fabric.site.endpoints if e.name in held), all_homes(fabric))


def _less(ports: Mapping[Slot, int], taken: Mapping[Slot, int]) -> dict[Slot, int]:
    return {slot: count - taken.get(slot, 0) for slot, count in ports.items()}


def _listed(names: Sequence[str]) -> str:
    return f"one of: {', '.join(names)}"


def _refused(job: str, message: str, hint: str) -> ServiceError:
    return ServiceError("invalid", message, object=f"job/{job}", hint=hint)
