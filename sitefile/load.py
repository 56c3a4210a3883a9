"""Loads site files (full form) and state files (with a site in full or short form)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from scheduler.model import (
    Aggregator,
    Endpoint,
    Fabric,
    Job,
    Limits,
    Objective,
    Policy,
    Site,
    Spread,
    SpreadBy,
)
from sitefile.cabling import cable
from sitefile.errors import FileProblem, SiteFileError
from sitefile.model import CabledSite
from sitefile.schema import JobModel, LimitsModel, ShortSiteModel, SiteModel, StateModel
from sitefile.wording import known_keys, meant, plain_words
from sitefile.words import Unclear
from sitefile.yaml_io import load_mapping


def load_site(path: str | Path) -> CabledSite:
    """Load and check a full site file; SiteFileError lists every problem."""
    file = Path(path)
    document = load_mapping(file)
    try:
        model = SiteModel.model_validate(document)
    except ValidationError as error:
        raise SiteFileError(str(file), problems_of(error, SiteModel)) from error
    site, problems = cable(model)
    if site is None:
        raise SiteFileError(str(file), problems)
    return site


def load_planner_site(path: str | Path) -> Site:
    """Load a site for planning: a full site file or a state file's short form."""
    file = Path(path)
    document = load_mapping(file)
    if "fibers" in document:
        return load_site(file).scheduler_site()
    document = document.get("site", document) if set(document) == {"site"} else document
    try:
        return _short_site(str(file), ShortSiteModel.model_validate(document))
    except ValidationError as error:
        raise SiteFileError(str(file), problems_of(error, ShortSiteModel)) from error


def load_state(path: str | Path) -> tuple[Fabric, Limits]:
    """Load a state file, the planner's offline input (design §6)."""
    file = Path(path)
    document = load_mapping(file)
    try:
        model = StateModel.model_validate(document)
    except ValidationError as error:
        raise SiteFileError(str(file), problems_of(error, StateModel)) from error
    if isinstance(model.site, str):
        site = load_planner_site(file.parent / model.site)
    else:
        site = _short_site(str(file), model.site)
    problems = list(_state_problems(model, site))
    if problems:
        raise SiteFileError(str(file), problems)
    fixed = {e.name: e.fixed for e in site.endpoints if e.fixed is not None}
    homes = {e.name: fixed.get(e.name, model.homes.get(e.name)) for e in site.endpoints}
    jobs = tuple(
        Job(
            j.name,
            tuple(j.endpoints),
            Policy(j.policy),
            j.pinned,
            j.weight,
            None if j.spread is None else Spread(SpreadBy(j.spread.by), j.spread.most),
            tuple(j.spares),
        )
        for j in model.jobs
    )
    reserved = frozenset(name for job in jobs for name in job.spares)
    return Fabric(site, homes, jobs, reserved), _limits(model.limits)


def problems_of(
    error: ValidationError, model: type[BaseModel], *, schema: str = "lightloom schema"
) -> list[FileProblem]:
    """Turn the errors of a document of ``model`` into problems with a path and a fix.

    ``schema`` is the command that prints the file's schema.
    """
    problems = []
    for item in error.errors(include_url=False):
        path = ""
        for part in item["loc"]:
            path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else str(part))
        if isinstance(item["input"], Unclear):
            problems.append(FileProblem(path, item["input"].problem, item["input"].fix))
        elif item["type"] == "extra_forbidden":
            name = str(item["loc"][-1])
            guess = meant(name, known_keys(model, item["loc"]))
            fix = "remove it or correct its name"
            problems.append(FileProblem(path, f"unknown key {name!r}{guess}", fix))
        elif item["type"] == "missing":
            problems.append(FileProblem(path, "missing", f"add it; see `{schema}`"))
        else:
            problems.append(
                FileProblem(
                    path, f"{plain_words(item)}; got {item['input']!r:.80}", f"see `{schema}`"
                )
            )
    return problems


def _limits(model: LimitsModel) -> Limits:
    return Limits(
        objective=Objective(model.objective),
        max_jobs_paused=model.max_jobs_paused,
        max_moves=model.max_moves,
        time_limit_s=model.time_limit_s,
    )


def _short_site(file: str, model: ShortSiteModel) -> Site:
    fixed: dict[str, int] = {}
    problems = []
    aggregators = {a.name for a in model.aggregators}
    optical = {ocs for a in model.aggregators for ocs in a.ports}
    seen: set[str] = set()
    for i, e in enumerate(model.endpoints):
        path = f"site.endpoints[{i}]"
        if e.name in seen:
            problems.append(FileProblem(path, f"endpoint {e.name!r} is listed twice", "rename one"))
        seen.add(e.name)
        if e.fixed is not None:
            if e.fixed not in aggregators:
                problems.append(
                    FileProblem(path, f"unknown aggregator {e.fixed!r}", "correct the name")
                )
            fixed[e.fixed] = fixed.get(e.fixed, 0) + 1
        elif e.ocs not in optical:
            problems.append(
                FileProblem(
                    path,
                    f"no aggregator has a port on {e.ocs!r}",
                    "add it to an aggregator's ports",
                )
            )
    if len(aggregators) < len(model.aggregators):
        problems.append(FileProblem("site.aggregators", "a name is listed twice", "rename one"))
    if problems:
        raise SiteFileError(file, problems)
    return Site(
        name=model.name,
        endpoints=tuple(
            Endpoint(e.name, ocs=e.ocs, fixed=e.fixed, server=e.server, model=e.model)
            for e in model.endpoints
        ),
        aggregators=tuple(
            Aggregator(a.name, dict(a.ports), fixed.get(a.name, 0)) for a in model.aggregators
        ),
    )


def _state_problems(model: StateModel, site: Site) -> list[FileProblem]:
    """Return problems of references and capacities across the whole state."""
    return _home_problems(model.homes, site) + _job_problems(model.jobs, site)


def _home_problems(homes: Mapping[str, str | None], site: Site) -> list[FileProblem]:
    problems = []
    endpoints = {e.name: e for e in site.endpoints}
    aggregators = {a.name: a for a in site.aggregators}
    used: dict[tuple[str, str], int] = {}
    for name, home in homes.items():
        path = f"homes.{name}"
        if name not in endpoints:
            problems.append(FileProblem(path, f"unknown endpoint {name!r}", "correct the name"))
        elif home is None:
            continue
        elif home not in aggregators:
            problems.append(FileProblem(path, f"unknown aggregator {home!r}", "correct the name"))
        elif (fixed := endpoints[name].fixed) is not None:
            if fixed != home:
                problems.append(
                    FileProblem(path, f"{name} is hard-wired to {fixed}", "remove the line")
                )
        else:
            ocs = endpoints[name].ocs or ""
            used[home, ocs] = used.get((home, ocs), 0) + 1
            ports = aggregators[home].ports.get(ocs, 0)
            if used[home, ocs] > ports:
                problems.append(
                    FileProblem(path, f"{home} has {ports} ports on {ocs}", "give it another home")
                )
    return problems


def _job_problems(jobs: Sequence[JobModel], site: Site) -> list[FileProblem]:
    problems = []
    endpoints = {e.name for e in site.endpoints}
    holder: dict[str, str] = {}
    names: set[str] = set()
    for i, job in enumerate(jobs):
        if len(job.endpoints) + len(job.spares) > len(endpoints):
            problems.append(
                FileProblem(
                    f"jobs[{i}].endpoints",
                    f"job {job.name!r} holds {len(job.endpoints) + len(job.spares)} endpoints,"
                    f" the site has {len(endpoints)}",
                    "correct the list",
                )
            )
            continue
        if job.name in names:
            path = f"jobs[{i}].name"
            problems.append(FileProblem(path, f"job {job.name!r} is listed twice", "rename one"))
        names.add(job.name)
        places = [(f"endpoints[{k}]", name) for k, name in enumerate(job.endpoints)]
        places += [(f"spares[{k}]", name) for k, name in enumerate(job.spares)]
        for place, name in places:
            path = f"jobs[{i}].{place}"
            if name not in endpoints:
                problems.append(FileProblem(path, f"unknown endpoint {name!r}", "correct the name"))
            elif name in holder:
                problems.append(
                    FileProblem(path, f"{name} already belongs to {holder[name]}", "choose another")
                )
            else:
                holder[name] = job.name
    return problems
