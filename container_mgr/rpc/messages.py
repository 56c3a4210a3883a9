"""Converts between protobuf messages and the agent's values. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from container_mgr.hardware.nvml import Reading
from container_mgr.ranks.living import Sample
from container_mgr.ranks.logs import Line
from container_mgr.values import (
    AgentError,
    Container,
    Health,
    NicReport,
    NicSpec,
    RankKey,
    RankLimits,
    RankSpec,
)
from protos import agent_pb2 as pb

_STATES = {
    "created": pb.STATE_CREATED,
    "running": pb.STATE_RUNNING,
    "paused": pb.STATE_PAUSED,
    "exited": pb.STATE_EXITED,
}


def spec_of(rank: pb.Rank) -> RankSpec:
    """Read one rank of a Start request."""
    emulated = rank.WhichOneof("accelerator") == "emulated_share"
    return RankSpec(
        key=RankKey(rank.job, rank.rank, rank.epoch),
        endpoint=rank.endpoint,
        image=rank.image,
        command=tuple(rank.command),
        nic=NicSpec(
            name=rank.nic.name,
            ip=rank.nic.ip,
            prefix_len=rank.nic.prefix_len,
            mac=rank.nic.mac,
            mtu=rank.nic.mtu or None,
            dscp=rank.nic.dscp if rank.nic.HasField("dscp") else None,
        ),
        env=dict(rank.env),
        secrets=dict(rank.secrets),
        gpu_uuid=rank.gpu_uuid,
        emulated_share=rank.emulated_share if emulated else None,
        limits=_limits_of(rank.limits),
    )


def _limits_of(limits: pb.Limits) -> RankLimits:
    return RankLimits(
        cores=limits.cores if limits.HasField("cores") else None,
        memory_bytes=limits.memory_bytes if limits.HasField("memory_bytes") else None,
        pids=limits.pids if limits.HasField("pids") else None,
        read_bps=limits.read_bps if limits.HasField("read_bps") else None,
        write_bps=limits.write_bps if limits.HasField("write_bps") else None,
    )


def status_of(container: Container, reason: str, nic: NicReport | None) -> pb.RankStatus:
    """Convert one container's state."""
    return pb.RankStatus(
        job=container.key.job,
        rank=container.key.rank,
        epoch=container.key.epoch,
        endpoint=container.endpoint,
        state=_STATES[container.state],
        exit_code=container.exit_code,
        oom=container.oom,
        started_at=container.started_at,
        finished_at=container.finished_at,
        container_id=container.id,
        reason=reason,
        nic=None
        if nic is None
        else pb.NicReport(
            mtu=nic.mtu, rdma_device=nic.rdma_device, gid_index=nic.gid_index, dscp=nic.dscp
        ),
    )


def health_message(health: Health) -> pb.Health:
    """Convert the health of an endpoint."""
    return pb.Health(endpoint=health.endpoint, ok=health.ok, reason=health.reason)


def fault_message(error: AgentError) -> pb.Fault:
    """Convert one fault."""
    return pb.Fault(code=error.code, object=error.obj, message=error.message, hint=error.hint)


def telemetry_of(time: float, samples: Sequence[Sample]) -> pb.TelemetryBatch:
    """Convert one second of all ranks with a GPU or a stand-in."""
    return pb.TelemetryBatch(
        time=time,
        samples=[
            pb.Sample(
                job=s.container.key.job,
                rank=s.container.key.rank,
                endpoint=s.container.endpoint,
                utilisation=s.utilisation,
                memory_bytes=s.memory_bytes,
                source="emulated" if s.gpu is None else "nvml",
                gpu=None if s.gpu is None else _gpu_message(s.gpu),
            )
            for s in samples
        ],
    )


def _gpu_message(gpu: Reading) -> pb.Gpu:
    return pb.Gpu(
        memory_total_bytes=gpu.memory_total_bytes,
        temperature_c=gpu.temperature_c,
        power_w=gpu.power_w,
        sm_clock_hz=gpu.sm_clock_hz,
        memory_clock_hz=gpu.memory_clock_hz,
        pcie_rx_bps=gpu.pcie_rx_bps,
        pcie_tx_bps=gpu.pcie_tx_bps,
        pcie_replays=gpu.pcie_replays,
        nvlinks_up=gpu.nvlinks_up,
        ecc_corrected=gpu.ecc_corrected,
        ecc_uncorrected=gpu.ecc_uncorrected,
        xid=gpu.xid,
        throttle_reasons=gpu.throttle_reasons,
    )


def logs_of(lines: Sequence[Line]) -> pb.LogBatch:
    """Convert a batch of lines."""
    return pb.LogBatch(
        lines=[pb.LogLine(time=li.time, stream=li.stream, text=li.text) for li in lines]
    )
