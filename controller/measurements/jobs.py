"""Builds the jobs of a measurement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from pydantic import ValidationError

from controller.base.errors import ServiceError
from controller.schema.jobs import read_job
from controller.schema.submit.request import JobRequest
from measure.kinds import Run
from scheduler.model import Locality, RankOrder, TimeLimitAction
from sitefile.wording import plain_words

MOST_RUNS = 1000
"""Jobs of one measurement."""


def request_of(name: str, run: Run, project: str) -> JobRequest:
    """Return the job of a run: on exactly its endpoints, in rank order, never moved.

    ServiceError ``invalid`` when the run's kind asks for what no job can have.
    """
    try:
        return read_job(
            {
                "name": name,
                "count": len(run.endpoints),
                "project": run.project or project,
                "time_limit_s": run.timeout_s,
                "time_limit_action": TimeLimitAction.END,
                "pinned": True,
                "locality": Locality.ANY,
                "rank_order": RankOrder.PLACED,
                "image": run.image or None,
                "command": list(run.command),
                "env": dict(run.env),
                "endpoints": list(run.endpoints),
                "cpu": run.cpu,
                "memory_bytes": run.memory_bytes,
                "io_bps": run.io_bps,
                "volumes": [
                    {"volume": volume, "path": path, "read_only": read_only}
                    for volume, path, read_only in run.volumes
                ],
                "record": run.record,
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ServiceError(
            "invalid",
            f"run {run.label or name} cannot be a job: {where}: {plain_words(first)}",
            object=f"job/{name}",
            hint="correct the settings",
        ) from None


def homed(runs: Sequence[Run], homes: Mapping[str, str]) -> list[Run]:
    """Return the runs with the homes that the caller asked for, where the kind asks for none."""
    return [
        run
        if run.homes
        else replace(run, homes={name: homes[name] for name in run.endpoints if name in homes})
        for run in runs
    ]


def groups(runs: Sequence[Run], first: int = 0) -> list[list[int]]:
    """Return the positions of the runs that run at once, in order; ``first`` is the first one."""
    marked = [(run.together or -number, number) for number, run in enumerate(runs, start=first + 1)]
    found = groupby(marked, key=lambda item: item[0])
    return [[number - 1 for _, number in group] for _, group in found]


def check_runs(runs: Sequence[Run], names: Sequence[str], *, some: bool = True) -> None:
    """Refuse (ServiceError ``invalid``) runs that no controller can carry out."""
    problem = ""
    if some and not runs:
        problem = "there is nothing to run"
    elif len(runs) > MOST_RUNS:
        problem = f"{len(runs)} runs, the limit is {MOST_RUNS}"
    known = set(names)
    for run in runs:
        if not run.endpoints or len(set(run.endpoints)) != len(run.endpoints):
            problem = f"run {run.label} names no endpoints, or one twice"
        elif strange := set(run.endpoints) - known:
            problem = f"run {run.label} names {min(strange)}, which is not measured"
    for group in groups(runs):
        used = [name for number in group for name in runs[number].endpoints]
        homes = [item for number in group for item in runs[number].homes.items()]
        if len(set(used)) != len(used):
            problem = "runs at the same time share an endpoint"
        elif len(set(homes)) != len(dict(homes)):
            problem = "runs at the same time want an endpoint in two places"
    if problem:
        raise ServiceError(
            "invalid", problem, object="measurement", hint="choose other settings or endpoints"
        )
