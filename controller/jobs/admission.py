"""Admission: refuses jobs that the site, its agents or its quotas can never run. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from functools import cached_property, lru_cache

from agentlink.bounds import JOB, JOB_RULE, MAX_JOB_NAME
from agentlink.values import Record
from base.figures import figure
from checkpoints.values import Scheme
from container_mgr.ranks import images, policy
from container_mgr.values import AgentError
from controller.base.errors import ServiceError
from controller.base.texts import clipped
from controller.ranks.environment import ADJUSTABLE, RefusedVariable, environment, refusals
from controller.ranks.nccl import Network
from controller.schema.submit.request import CheckpointRequest, JobRequest
from controller.state.records import CheckpointSpec, CopiesSpec, JobSpec, JobVolume
from scheduler.model import Fabric, Locality, Placement, Request, TimeLimitAction, Wait
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.queue.model import ProjectShare
from sitefile import CabledSite, EndpointCable

MAX_JOB_BYTES = 128 * 1024
WAITING_BYTES = 160 * 1024
"""Of memory for the texts of each job that may wait; the jobs of a project share that."""
"""Limit of a job's command and own variables together: all ranks receive them, the store keeps
them."""
_MEASURED = re.compile(r"measure-m[0-9]+(-[0-9]+)?")
_NAMED = 10
"""Most objects that one message lists."""
_NEVER = frozenset({"no_match", "not_enough_endpoints", "unavailable", "never_spread", "spares"})
"""Codes of waits that do not end by themselves when nothing runs."""
_RANK_BYTES = 4096
"""Allowance for a rank's other fields and for the encoding of its message."""
_ALONE = 128
"""Different requests whose place on the empty site is kept: jobs of one storm ask alike."""


def spec_of(
    request: JobRequest, volumes: tuple[JobVolume, ...] = (), *, probe: bool = False
) -> JobSpec:
    """Return what the state keeps of a request: nothing in it is left open."""
    said = {name: getattr(request, name) for name in JobRequest.__slots__}
    said |= {name: tuple(said[name]) for name in ("command", "endpoints")}
    said |= {
        "env": request.plain_env,
        "secrets": request.secrets,
        "time_limit_action": request.time_limit_action or TimeLimitAction.IGNORE,
        "record": request.record or Record.COUNTS,
        "checkpoint": _checkpoint(request),
        "volumes": volumes,
        "probe": probe,
    }
    return JobSpec(**said)


def _checkpoint(request: JobRequest) -> CheckpointSpec | None:
    if (asked := request.checkpoint) is None:
        return None
    said = {name: getattr(asked, name) for name in CheckpointRequest.__slots__}
    copies = asked.copies
    scheme = copies.scheme or (Scheme.PARTNER if request.count > 1 else Scheme.SINGLE)
    return CheckpointSpec(**said | {"copies": CopiesSpec(**asdict(copies) | {"scheme": scheme})})


def with_site_defaults(site: CabledSite, request: JobRequest) -> JobRequest:
    """Return the request with what the site chooses for jobs that leave it open."""
    action, record = request.time_limit_action, request.record
    if request.time_limit_s is not None and action is None:
        action = site.scheduling.time_limit_action
    return replace(
        request,
        time_limit_action=action,
        record=Record(site.recording) if record is None else record,
    )


class Admission:
    """What one site, and its agents, can run."""

    def __init__(self, site: CabledSite) -> None:
        self.site = site
        self._known = {e.name for e in site.endpoints}
        self._theirs = site.engine_endpoints
        self._kept = frozenset(site.recovery.spares)
        """Endpoints that no job gets from the queue."""
        self._ours = [e for e in site.endpoints if e.name not in self._theirs | self._kept]
        self._addresses = _longest_first(site.endpoints)
        self._together = max(Counter(e.server for e in site.endpoints).values(), default=0)
        """Most endpoints of one server."""
        self._alone = lru_cache(_ALONE)(self._placed_alone)

    def check(self, request: JobRequest) -> None:
        """Refuse (ServiceError ``invalid``) a job that can never run."""
        site = self.site
        _check_name(site, request)
        _check_environment(request)
        _check_program(request)
        _check_time_limit(request)
        unknown = next((name for name in request.endpoints if name not in self._known), None)
        other = next((name for name in request.endpoints if name in self._theirs), None)
        kept = next((name for name in request.endpoints if name in self._kept), None)
        fitting, spares = self._fitting(request), request.spares if request.spares_needed else 0
        named = len(request.endpoints)
        if unknown is not None:
            problem = f"site {site.name} has no endpoint {clipped(unknown)}"
            hint = f"it has {_some(e.name for e in site.endpoints)}"
        elif other is not None and site.engine is not None:
            problem = f"{other} belongs to {site.engine.kind}, which starts its jobs itself"
            hint = f"submit the job to {site.engine.kind}, or name other endpoints"
        elif named and (named != request.count or len(set(request.endpoints)) != named):
            different = len(set(request.endpoints))
            problem = f"{request.count} endpoints requested, {different} different ones named"
            hint = "name as many different endpoints as the job's count"
        elif kept is not None:
            problem = f"{kept} is kept as a spare of the site"
            hint = "name other endpoints; the site file's recovery section lists its spares"
        elif request.count + spares > fitting:
            what = f"{clipped(request.model)} endpoints" if request.model else "endpoints"
            if request.min_memory_bytes:
                what += f" of {figure(request.min_memory_bytes / 2**30, 6)} GiB or more"
            kept_too = f" beside {len(self._kept)} that it keeps as spares" if self._kept else ""
            problem = (
                f"{request.count} {what}{_beside(spares)} requested,"
                f" site {site.name} has {fitting}{kept_too}"
            )
            hint = f"request at most {fitting}"
            if spares and request.count <= fitting:
                hint = f"request at most {fitting - request.count} spares, or spares_needed: false"
        else:
            self._check_ranks(request)
            return
        raise ServiceError("invalid", problem, object=f"job/{request.name}", hint=hint)

    @cached_property
    def _empty(self) -> FabricIndex:
        """The site without jobs; all endpoints are dark that are not hard-wired."""
        taken = frozenset(self._theirs) | self._kept
        return FabricIndex(Fabric(self.site.scheduler_site(), {}, unavailable=taken))

    def check_place(self, request: Request) -> None:
        """Refuse (ServiceError ``invalid``) a job that would not fit if no other one ran.

        Volumes do not count: a server may offer them later.
        """
        asked = replace(request, job="", locality=Locality.REGROUP, volumes=frozenset())
        placed = self._alone(asked)
        if isinstance(placed, Wait) and placed.code in _NEVER:
            raise ServiceError(
                "invalid",
                f"it can never start: {placed.reason}",
                object=f"job/{request.job}",
                hint="submit it with a request that the site can meet when nothing else runs",
            )

    def _placed_alone(self, request: Request) -> Placement | Wait:
        return place(self._empty, request)

    def _fitting(self, request: JobRequest) -> int:
        """Return how many endpoints a job could have."""
        if request.model is None and not request.min_memory_bytes:
            return len(self._ours)
        return sum(
            request.model in (None, e.model) and e.memory_bytes >= request.min_memory_bytes
            for e in self._ours
        )

    def _check_ranks(self, request: JobRequest) -> None:
        """Refuse a job whose ranks need more variables than an agent accepts: they grow with it."""
        what = f"job/{request.name}"
        addresses = self._addresses
        if request.endpoints:
            chosen = set(request.endpoints)
            addresses = _longest_first(e for e in self.site.endpoints if e.name in chosen)
        env = environment(
            request.name or "",
            request.count - 1,
            addresses[: request.count],
            request.plain_env,
            dark_s=request.dark_tolerance_s or 1.0,
            network=Network(),
        )
        reason = ""
        try:
            policy.check_env(what, env)
        except AgentError as error:
            ranks = request.count
            reason = f"an agent would refuse the variables of {ranks} ranks: {error.message}"
        together = min(request.count, self._together)
        rank = _size(request.command) + _size(env) + _size(env.values()) + _RANK_BYTES
        rank += policy.MAX_SECRETS_BYTES if request.secrets else 0
        size = together * rank
        if not reason and size > policy.MAX_START_BYTES:
            reason = (
                f"up to {together} ranks on one server take {size} bytes to start,"
                f" the limit is {policy.MAX_START_BYTES}"
            )
        if reason:
            raise ServiceError(
                "invalid",
                reason,
                object=what,
                hint="request fewer endpoints, or shorten the command and the variables",
            )


def _beside(spares: int) -> str:
    return f" and {spares} spare{'' if spares == 1 else 's'} beside them" if spares else ""


def _longest_first(endpoints: Iterable[EndpointCable]) -> list[str]:
    """Return the addresses, the longest first: what a job's variables can take at most."""
    return sorted((e.ip for e in endpoints), key=len, reverse=True)


def check_project(site: CabledSite, projects: Iterable[ProjectShare], request: JobRequest) -> None:
    """Refuse a project that the site file does not list, and a job that exceeds its quota.

    A site file without a list of projects accepts any project name.
    """
    known = {project.name: project for project in projects}
    project = known.get(request.project)
    what = f"job/{request.name}"
    if project is None and site.scheduling.named:
        raise ServiceError(
            "invalid",
            f"site {site.name} has no project {request.project}",
            object=what,
            hint=f"it has {_some(known)}; the site file's projects section lists them",
        )
    spares = request.spares if request.spares_needed else 0
    needed = request.count + spares
    if project is not None and project.quota is not None and needed > project.quota:
        raise ServiceError(
            "invalid",
            f"{request.count} endpoints{_beside(spares)} requested, the quota of project"
            f" {project.name} is {project.quota}",
            object=what,
            hint=f"request at most {project.quota}, or have the quota raised",
        )


def check_not_reserved(request: JobRequest) -> None:
    """Refuse the name of a measurement's job: the measurement could not be made."""
    name = request.name or ""
    if _MEASURED.fullmatch(name):
        raise ServiceError(
            "invalid",
            f"{name} is a name of measurements' jobs (measure-mNUMBER)",
            object=f"job/{name}",
            hint="choose another name",
        )


def check_queue(site: CabledSite, waiting: int, held: int, request: JobRequest) -> None:
    """Refuse (ServiceError ``conflict``) a job whose project has too many waiting jobs already.

    ``held`` are the bytes that their texts take in memory.
    """
    most = site.scheduling.max_waiting
    if held >= most * WAITING_BYTES:
        raise ServiceError(
            "conflict",
            f"the commands and variables of the {waiting} waiting jobs of project"
            f" {request.project} take {held} bytes of memory,"
            f" the limit is {most * WAITING_BYTES}",
            object=f"project/{request.project}",
            hint="submit it when some have started, cancel some of them, or put large inputs into"
            " the image; a text with an emoji takes four bytes for each character",
        )
    if waiting >= most:
        raise ServiceError(
            "conflict",
            f"{waiting} jobs of project {request.project} are waiting already, the limit is {most}",
            object=f"project/{request.project}",  # another job name would not help
            hint="submit it when some have started, cancel some of them, or have the site file's"
            " queue.max_waiting raised",
        )


def _check_name(site: CabledSite, request: JobRequest) -> None:
    name = request.name or ""
    engine = site.engine.kind if site.engine else None
    if engine is not None and (name == engine or name.startswith(f"{engine}-")):
        raise ServiceError(
            "invalid",
            f"{name} would be taken for a job of {engine}",
            object=f"job/{name}",
            hint=f"choose a name that does not begin with {engine}-",
        )
    if JOB.fullmatch(name):
        return
    own = name.startswith(f"{request.project}-") and len(request.project) > MAX_JOB_NAME - 2
    raise ServiceError(
        "invalid",
        f"{name} cannot be a container's name: a job is named {JOB_RULE}",
        object=f"job/{name}",
        hint="the project's name is too long to prefix its jobs' names: use another project"
        if own
        else "choose another name",
    )


def _check_time_limit(request: JobRequest) -> None:
    if request.time_limit_action is TimeLimitAction.END and request.time_limit_s is None:
        raise ServiceError(
            "invalid",
            "it is to end at its time limit, and has none",
            object=f"job/{request.name}",
            hint="give time_limit_s (--time-limit), or leave time_limit_action out",
        )


def _check_program(request: JobRequest) -> None:
    """Apply the agents' own rules here, so that no job is placed that they would refuse."""
    what = f"job/{request.name}"
    image = request.image
    if image is not None and not images.IMAGE.fullmatch(image):
        raise ServiceError(
            "invalid",
            f"{clipped(image)} is not an image reference",
            object=what,
            hint="name@sha256:…, or the id that `docker image ls --no-trunc` shows",
        )
    try:
        policy.check_command(what, request.command)
        policy.check_env(what, {**request.plain_env, **dict.fromkeys(request.secrets, "")})
    except AgentError as error:
        raise ServiceError("invalid", error.message, object=what, hint=error.hint) from None
    own = request.plain_env
    size = _size(request.command) + _size(own) + _size(own.values())
    if size > MAX_JOB_BYTES:
        raise ServiceError(
            "invalid",
            f"its command and variables take {size} bytes, the limit is {MAX_JOB_BYTES}",
            object=what,
            hint="put large inputs into the image, and refer to them in the command",
        )


def _size(texts: Iterable[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    rest = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return ", ".join(listed[:_NAMED]) + rest


def _check_environment(request: JobRequest) -> None:
    refused = refusals(request.plain_env, dark_s=request.dark_tolerance_s)
    refused += refusals(dict.fromkeys(request.secrets.keys() - ADJUSTABLE.keys(), ""))
    refused += [
        RefusedVariable(name, "its value is checked, so it cannot be a secret", "state its value")
        for name in sorted(request.secrets.keys() & ADJUSTABLE.keys())
    ]
    if refused:
        raise ServiceError(
            "invalid",
            "; ".join(f"env {clipped(r.name)}: {clipped(r.reason)}" for r in refused[:_NAMED]),
            object=f"job/{request.name}",
            hint="; ".join(
                dict.fromkeys(f"{clipped(r.name)}: {clipped(r.fix)}" for r in refused[:_NAMED])
            ),
        )
