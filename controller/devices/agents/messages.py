"""Between the agents' protobuf messages and the controller's engine values. Pure.

What an agent sends is kept, shown and written to the store. So texts are cut, and an impossible
number counts as not reported.
"""

from __future__ import annotations

import dataclasses
import math
import re

import grpc

from controller.devices.engine import (
    EngineFault,
    GpuFigures,
    HeldImage,
    LogLine,
    NicReport,
    PullProgress,
    RankLimits,
    RankSample,
    RankSpec,
    RankState,
    RankStatus,
    ServerImage,
)
from protos import agent_pb2 as pb

FAULT_CODES = frozenset(
    {"invalid", "not_found", "conflict", "unavailable", "timeout", "failed", "forbidden"}
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_TEXT_CHARS = 1000
_MAX_NAMES = 256
"""Of one image."""
_ID_CHARS = 64
_WORD_CHARS = 64
_MAX_IMAGES = 1000
"""Of one server."""
_MAX_REASONS = 32
_MAX_SAMPLES = 256
"""Per server and second."""
_MAX_LINES = 2048
"""Per message; an agent sends at most a quarter of that."""
_LAST_TIME = 2.0**33
"""In the year 2242."""
_GPU_FIELDS = tuple(
    field.name for field in dataclasses.fields(GpuFigures) if field.name != "throttle_reasons"
)
_STATES = {
    pb.STATE_ABSENT: RankState.ABSENT,
    pb.STATE_CREATED: RankState.CREATED,
    pb.STATE_RUNNING: RankState.RUNNING,
    pb.STATE_PAUSED: RankState.PAUSED,
    pb.STATE_EXITED: RankState.EXITED,
}


def rank_message(spec: RankSpec) -> pb.Rank:
    """Write one rank of a Start request."""
    message = pb.Rank(
        job=spec.job,
        rank=spec.rank,
        epoch=spec.epoch,
        endpoint=spec.endpoint,
        image=spec.image,
        command=spec.command,
        env=spec.env,
        nic=pb.Nic(
            name=spec.nic,
            ip=spec.ip,
            prefix_len=spec.prefix_len,
            mac=spec.mac,
            mtu=spec.mtu or 0,
            dscp=spec.dscp,
        ),
        limits=_limits_message(spec.limits),
    )
    if spec.emulated_share is not None:
        message.emulated_share = spec.emulated_share
    elif spec.gpu_uuid:
        message.gpu_uuid = spec.gpu_uuid
    return message


def image_of(server: str, message: pb.ImageReply) -> ServerImage:
    """Read what one server says about an image. An id that is none counts as absent."""
    present = message.present and DIGEST.fullmatch(message.image_id) is not None
    return ServerImage(
        server=server,
        present=present,
        id=message.image_id if present else "",
        names=tuple(name[:_TEXT_CHARS] for name in message.names[:_MAX_NAMES]),
        size_bytes=message.size_bytes,
        refusal=message.refusal[:_TEXT_CHARS],
    )


def held_of(server: str, reply: pb.ImagesReply) -> list[HeldImage]:
    """Read the list of one server's images."""
    return [
        HeldImage(
            server=server,
            id=image.image_id[:_TEXT_CHARS],
            names=tuple(name[:_TEXT_CHARS] for name in image.names[:_MAX_NAMES]),
            size_bytes=image.size_bytes,
            jobs=tuple(job[:_WORD_CHARS] for job in image.jobs[:_MAX_NAMES]),
            used_at=_time(image.used_at) if image.HasField("used_at") else None,
        )
        for image in reply.images[:_MAX_IMAGES]
    ]


def progress_of(server: str, message: pb.PullProgress) -> PullProgress:
    """Read how far a pull is."""
    return PullProgress(
        layers_done=message.layers_done,
        layers=message.layers,
        bytes_done=message.bytes_done,
        bytes_total=message.bytes_total,
        image=image_of(server, message.image) if message.HasField("image") else None,
    )


def _limits_message(limits: RankLimits) -> pb.Limits:
    return pb.Limits(
        cores=limits.cores,
        memory_bytes=limits.memory_bytes,
        pids=limits.pids,
        read_bps=limits.read_bps,
        write_bps=limits.write_bps,
    )


def status_of(server: str, message: pb.RankStatus) -> RankStatus:
    """Read one rank's state; the server is the one that was asked."""
    return RankStatus(
        job=message.job,
        rank=message.rank,
        epoch=message.epoch,
        endpoint=message.endpoint,
        server=server,
        state=_STATES.get(message.state, RankState.ABSENT),
        exit_code=message.exit_code if message.HasField("exit_code") else None,
        oom=message.oom,
        started_at=_time(message.started_at) if message.HasField("started_at") else None,
        finished_at=_time(message.finished_at) if message.HasField("finished_at") else None,
        container_id=message.container_id[:_ID_CHARS],
        reason=message.reason[:_TEXT_CHARS],
        nic=_nic_of(message.nic) if message.HasField("nic") else None,
    )


def _nic_of(message: pb.NicReport) -> NicReport:
    return NicReport(
        mtu=message.mtu,
        rdma_device=message.rdma_device,
        gid_index=message.gid_index if message.HasField("gid_index") else None,
        dscp=message.dscp if message.HasField("dscp") else None,
    )


def _gpu_of(message: pb.Gpu) -> GpuFigures:
    given = {name: getattr(message, name) for name in _GPU_FIELDS if message.HasField(name)}
    finite = {name: value for name, value in given.items() if math.isfinite(value)}
    reasons = tuple(word[:_WORD_CHARS] for word in message.throttle_reasons[:_MAX_REASONS])
    return GpuFigures(**finite, throttle_reasons=reasons)


def fault_of(message: pb.Fault) -> EngineFault:
    """Read one fault."""
    code = message.code if message.code in FAULT_CODES else "failed"
    return EngineFault(
        code,
        message.object[:_TEXT_CHARS],
        message.message[:_TEXT_CHARS],
        message.hint[:_TEXT_CHARS],
    )


def samples_of(batch: pb.TelemetryBatch, now: float) -> list[RankSample]:
    """Read one second of one server, received at ``now``; a later time counts as ``now``."""
    time = _time(batch.time)
    if time is None:
        return []
    return [
        RankSample(
            job=s.job,
            rank=s.rank,
            endpoint=s.endpoint,
            time=min(time, now),
            utilisation=_fraction(s.utilisation) if s.HasField("utilisation") else None,
            memory_bytes=s.memory_bytes if s.HasField("memory_bytes") else None,
            source=s.source[:_WORD_CHARS],
            gpu=_gpu_of(s.gpu) if s.HasField("gpu") else None,
        )
        for s in batch.samples[:_MAX_SAMPLES]
    ]


def lines_of(rank: int, batch: pb.LogBatch) -> list[LogLine]:
    """Read a batch of lines."""
    return [
        LogLine(rank, _time(line.time) or 0.0, line.stream, line.text)
        for line in batch.lines[:_MAX_LINES]
    ]


def _time(value: float) -> float | None:
    """Return a valid time, None for an invalid one."""
    return value if 0 <= value <= _LAST_TIME else None


def _fraction(value: float) -> float | None:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else None


_OTHER = "is another controller running? After a loss of the store: --take-command"


def rpc_fault(server: str, error: grpc.aio.AioRpcError) -> EngineFault:
    """Return the fault of a failed call."""
    obj, text = f"server/{server}", str(error.details() or error.code().name)[:_TEXT_CHARS]
    match error.code():
        case grpc.StatusCode.UNAVAILABLE:
            return EngineFault("unavailable", obj, text, "is the agent running on this server?")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return EngineFault("timeout", obj, text, "outcome unknown: observe before trying again")
        case grpc.StatusCode.NOT_FOUND:
            return EngineFault("not_found", obj, text)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return EngineFault("invalid", obj, text)
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.PERMISSION_DENIED:
            return EngineFault("forbidden", obj, text, _OTHER)
        case _:
            return EngineFault("failed", obj, text)
