"""Builds what the execution engine needs to start the ranks of a job. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from agentlink.ranks import GPU, RankCheckpoint, RankKey, RankSpec
from agentlink.values import Device, NicSpec, RankLimits, Scope, VolumeMount
from controller.devices.engine import EngineError, EngineFault
from controller.ranks.environment import environment
from controller.ranks.nccl import Network
from controller.ranks.tolerance import awake_tolerance
from controller.state.offers import denial, owner_of
from controller.state.records import JobRecord
from sitefile import CabledSite, EndpointCable


def rank_specs(
    site: CabledSite,
    cables: Mapping[str, EndpointCable],
    job: JobRecord,
    secrets: Mapping[str, str] = MappingProxyType({}),
    checkpoints: Mapping[int, RankCheckpoint] = MappingProxyType({}),
) -> list[RankSpec]:
    """Return everything the engine needs to start each rank of a placed job.

    ``secrets`` are the values of its secret variables, ``checkpoints`` what ranks need for theirs.

    EngineError when the site file no longer has one of its endpoints or volumes.
    """
    for name in job.endpoints:
        if name not in cables:
            text = "the site file no longer names it"
            raise EngineError([EngineFault("not_found", f"endpoint/{name}", text)])
    placed = [cables[name] for name in job.endpoints]
    addresses = [cable.ip for cable in placed]
    share = site.emulation.gpu_share if site.emulation else None
    dark_s, _ = awake_tolerance(job)
    user = site.users.of(job.request.project)
    volumes = mounts(site, job)
    return [
        RankSpec(
            key=RankKey(job.name, rank, job.epoch),
            endpoint=cable.name,
            server=cable.server,
            image=job.image_digest or job.image,
            command=tuple(job.request.command),
            nic=_nics(site, cable)[0],
            further_nics=_nics(site, cable)[1:],
            env=environment(
                job.name,
                rank,
                addresses,
                job.request.env,
                dark_s=dark_s,
                network=network(site, cable),
            ),
            secrets=secrets,
            devices=_devices(cable),
            emulated_share=share if cable.emulated else None,
            limits=RankLimits(
                cores=job.request.cpu,
                memory_bytes=job.request.memory_bytes,
                read_bps=job.request.io_bps,
                write_bps=job.request.io_bps,
            ),
            volumes=volumes,
            uid=user.uid,
            gid=user.gid,
            record=job.request.record,
            probe=job.request.probe,
            checkpoint=checkpoints.get(rank),
        )
        for rank, cable in enumerate(placed)
    ]


def mounts(site: CabledSite, job: JobRecord) -> tuple[VolumeMount, ...]:
    """Return a job's volumes as the site file offers them now. EngineError when it does not."""
    found = []
    for asked in job.request.volumes:
        if (why := denial(site, job.request.project, asked)) is not None:
            fault = EngineFault("invalid", f"volume/{asked.volume}", why.message, why.hint)
            raise EngineError([fault])
        volume = site.volumes[asked.volume]
        found.append(
            VolumeMount(
                volume=volume.name,
                path=asked.path,
                read_only=asked.read_only,
                scope=Scope(volume.per),
                owner=owner_of(volume, job.request.project, job.name),
                quota_bytes=volume.quota_bytes,
                read_bps=volume.read_bps,
                write_bps=volume.write_bps,
            )
        )
    return tuple(found)


def _nics(site: CabledSite, cable: EndpointCable) -> tuple[NicSpec, ...]:
    ip, length = cable.ip, cable.prefix_len
    return tuple(NicSpec(f.nic, ip, length, f.mac, site.mtu, site.dscp) for f in cable.fibers)


def _devices(cable: EndpointCable) -> tuple[Device, ...]:
    return () if cable.emulated or not cable.gpu_uuid else (Device(GPU, cable.gpu_uuid),)


def network(site: CabledSite, cable: EndpointCable) -> Network:
    """Return the data network of an endpoint as its container will see it."""
    found = Network(rdma="" if cable.emulated else None)
    return found if site.dscp is None else replace(found, dscp=site.dscp)
