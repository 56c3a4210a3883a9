"""What a job asks for, in the words of the scheduler and of the execution engine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.engine import RankLimits, RankSpec
from controller.errors import ServiceError
from controller.frameworks import environment, refusals
from controller.frameworks_nccl import Network
from controller.records import JobRecord
from controller.tolerance import awake_tolerance
from controller.views import JobRequest
from scheduler.model import Request
from scheduler.queue_model import Project
from sitefile import CabledSite, EndpointCable


def check_possible(site: CabledSite, request: JobRequest) -> None:
    """Refuse at once (ServiceError ``invalid``) what this site can never run."""
    _check_environment(request)
    known = {e.name: e for e in site.endpoints}
    unknown = [name for name in request.endpoints if name not in known]
    fitting = [
        e
        for e in site.endpoints
        if request.model in (None, e.model) and e.memory_bytes >= request.min_memory_bytes
    ]
    if unknown:
        problem = f"site {site.name} has no endpoint {unknown[0]}"
        hint = f"it has {', '.join(known)}"
    elif request.endpoints and len(set(request.endpoints)) != request.count:
        problem = f"{request.count} endpoints asked for, {len(set(request.endpoints))} named"
        hint = "name as many different endpoints as the job's count"
    elif request.count > len(fitting):
        what = f"{request.model} endpoints" if request.model else "endpoints"
        if request.min_memory_bytes:
            what += f" of {request.min_memory_bytes / 2**30:g} GiB or more"
        problem = f"{request.count} {what} asked for, site {site.name} has {len(fitting)}"
        hint = f"ask for at most {len(fitting)}"
    else:
        return
    raise ServiceError("invalid", problem, object=f"job/{request.name}", hint=hint)


def check_project(site: CabledSite, projects: Iterable[Project], request: JobRequest) -> None:
    """Refuse a project that a list of projects does not name, and what its quota never allows.

    A site file that lists none leaves it to everybody what they call theirs.
    """
    known = {project.name: project for project in projects}
    project = known.get(request.project)
    what = f"job/{request.name}"
    if project is None and site.scheduling.named:
        raise ServiceError(
            "invalid",
            f"site {site.name} has no project {request.project}",
            object=what,
            hint=f"it has {', '.join(known)}; the site file's projects section lists them",
        )
    if project is not None and project.quota is not None and request.count > project.quota:
        raise ServiceError(
            "invalid",
            f"{request.count} endpoints asked for, the quota of project {project.name} is"
            f" {project.quota}",
            object=what,
            hint=f"ask for at most {project.quota}, or have the quota raised",
        )


def _check_environment(request: JobRequest) -> None:
    refused = refusals(request.env, dark_s=request.dark_tolerance_s)
    if refused:
        raise ServiceError(
            "invalid",
            "; ".join(f"env {r.name}: {r.reason}" for r in refused),
            object=f"job/{request.name}",
            hint="; ".join(dict.fromkeys(f"{r.name}: {r.fix}" for r in refused)),
        )


def scheduler_request(job: JobRecord) -> Request:
    """Return what the scheduler needs to place a job."""
    request = job.request
    return Request(
        job=job.name,
        count=request.count,
        locality=request.locality,
        rank_order=request.rank_order,
        model=request.model,
        min_memory_bytes=request.min_memory_bytes,
        endpoints=tuple(request.endpoints),
    )


def rank_specs(
    site: CabledSite, cables: Mapping[str, EndpointCable], job: JobRecord
) -> list[RankSpec]:
    """Return everything the engine needs to start each rank of a placed job."""
    placed = [cables[name] for name in job.endpoints]
    addresses = [cable.ip for cable in placed]
    share = site.emulation.gpu_share if site.emulation else None
    dark_s, _ = awake_tolerance(job)
    return [
        RankSpec(
            job=job.name,
            rank=rank,
            epoch=job.epoch,
            endpoint=cable.name,
            server=cable.server,
            image=job.image,
            command=tuple(job.request.command),
            ip=cable.ip,
            prefix_len=cable.prefix_len,
            mac=cable.mac,
            nic=cable.nic,
            env=environment(
                job.name,
                rank,
                addresses,
                job.request.env,
                dark_s=dark_s,
                network=network(site, cable),
            ),
            gpu_uuid=cable.gpu_uuid,
            emulated_share=share if cable.emulated else None,
            mtu=site.mtu,
            dscp=site.dscp,
            pull=job.request.pull,
            limits=RankLimits(
                cores=job.request.cpu,
                memory_bytes=job.request.memory_bytes,
                read_bps=job.request.io_bps,
                write_bps=job.request.io_bps,
            ),
        )
        for rank, cable in enumerate(placed)
    ]


def network(site: CabledSite, cable: EndpointCable) -> Network:
    """Return the data network of an endpoint as its container will see it."""
    found = Network(rdma="" if cable.emulated else None)
    return found if site.dscp is None else replace(found, dscp=site.dscp)
