"""Between the agents' protobuf messages and the controller's engine values. Pure.

What an agent sends is kept, shown and written to the store. So texts are cut, and an impossible
number counts as not reported.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Mapping
from typing import Literal, cast

import grpc

from checkpoints.ledger import Key
from container_mgr.ranks import policy
from container_mgr.volumes import rules
from controller.devices.engine import (
    MISSING,
    EngineFault,
    ExecEnd,
    ExecOutput,
    ExecStart,
    GpuFigures,
    HeldImage,
    LogLine,
    NicReport,
    OfferedVolume,
    ProfilerWindow,
    PullProgress,
    RankCheckpoint,
    RankLimits,
    RankSample,
    RankSpec,
    RankState,
    RankStatus,
    RecordedCall,
    RecordedOperation,
    RecorderState,
    Recording,
    RecordingLimit,
    Scope,
    ServerImage,
    Typed,
    VolumeData,
    VolumeMount,
    WindowSize,
    WireBursts,
)
from measure.comms.recorded import INPUT_WAIT, STEP
from protos import agent_pb2 as pb

FAULT_CODES = frozenset(
    {"invalid", "not_found", "conflict", "unavailable", "timeout", "failed", "forbidden"}
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
TEXT_CHARS = 1000
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
_MAX_VOLUMES = 64
"""Per server."""
_MAX_DATA = 4096
"""Directories of all volumes of one server."""
_MAX_USERS = 64
"""Jobs that use one directory."""
_MOST_BYTES = 2**60
"""More than any file system holds."""
_MAX_RECORDINGS = 1024
"""Per server: its ranks, and those that ended."""
_MAX_OPERATIONS = 1024
_MAX_CALLS = 512
_MAX_BINS = 128
_MOST_CALLS = 2**53
_MOST_ROWS = 10**6
_MOST_FIGURE = 1e15
"""Seconds or bytes: more than any of these figures can be."""
_LAST_TIME = 2.0**33
"""In the year 2242."""
_GPU_FIELDS = tuple(
    field.name for field in dataclasses.fields(GpuFigures) if field.name != "throttle_reasons"
)
_RECORDER_STATES = frozenset({"recording", "absent", "damaged", "refused", "off"})
_SOURCES = frozenset({"nccl", "torch", "tf"})
_TIMINGS = frozenset({"device", "host", "issue"})
_STEPS = frozenset({STEP, INPUT_WAIT})
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_STATES = {
    pb.STATE_ABSENT: RankState.ABSENT,
    pb.STATE_CREATED: RankState.CREATED,
    pb.STATE_RUNNING: RankState.RUNNING,
    pb.STATE_PAUSED: RankState.PAUSED,
    pb.STATE_EXITED: RankState.EXITED,
}
_SCOPES = {
    Scope.SITE: pb.SCOPE_SITE,
    Scope.PROJECT: pb.SCOPE_PROJECT,
    Scope.JOB: pb.SCOPE_JOB,
}
_OWNED = {pb.SCOPE_PROJECT: Scope.PROJECT, pb.SCOPE_JOB: Scope.JOB}
_QUOTAS = ("kernel", "watched")


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
        secrets=spec.secrets,
        nic=pb.Nic(
            name=spec.nic,
            ip=spec.ip,
            prefix_len=spec.prefix_len,
            mac=spec.mac,
            mtu=spec.mtu or 0,
            dscp=spec.dscp,
        ),
        limits=_limits_message(spec.limits),
        volumes=[mount_message(mount) for mount in spec.volumes],
        uid=spec.uid,
        gid=spec.gid,
        record=spec.record,
        probe=spec.probe,
        checkpoint=None if spec.checkpoint is None else _checkpoint_message(spec.checkpoint),
    )
    if spec.emulated_share is not None:
        message.emulated_share = spec.emulated_share
    elif spec.gpu_uuid:
        message.gpu_uuid = spec.gpu_uuid
    return message


def _checkpoint_message(checkpoint: RankCheckpoint) -> pb.RankCheckpoint:
    return pb.RankCheckpoint(
        folder=checkpoint.folder,
        ranks=checkpoint.ranks,
        rule=checkpoint.rule,
        where=checkpoint.where,
        size_bytes=checkpoint.size_bytes,
        key=checkpoint.key,
        resumed=None if checkpoint.resumed is None else key_message(checkpoint.resumed),
    )


def key_message(key: Key) -> pb.StepKey:
    """Write a step."""
    return pb.StepKey(step=key.step, epoch=key.epoch)


def image_of(server: str, message: pb.ImageReply) -> ServerImage:
    """Read what one server says about an image. An id that is none counts as absent."""
    present = message.present and DIGEST.fullmatch(message.image_id) is not None
    return ServerImage(
        server=server,
        present=present,
        id=message.image_id if present else "",
        names=tuple(name[:TEXT_CHARS] for name in message.names[:_MAX_NAMES]),
        size_bytes=message.size_bytes,
        refusal=message.refusal[:TEXT_CHARS],
    )


def held_of(server: str, reply: pb.ImagesReply) -> list[HeldImage]:
    """Read the list of one server's images."""
    return [
        HeldImage(
            server=server,
            id=image.image_id[:TEXT_CHARS],
            names=tuple(name[:TEXT_CHARS] for name in image.names[:_MAX_NAMES]),
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


def mount_message(mount: VolumeMount) -> pb.VolumeMount:
    """Write a volume of a rank or a store."""
    return pb.VolumeMount(
        volume=mount.volume,
        path=mount.path,
        read_only=mount.read_only,
        scope=_SCOPES[mount.scope],
        owner=mount.owner,
        quota_bytes=mount.quota_bytes,
        read_bps=mount.read_bps,
        write_bps=mount.write_bps,
    )


def removal_message(volume: str, scope: Scope, owner: str) -> pb.RemoveDataRequest:
    """Write the removal of an owner's directory."""
    return pb.RemoveDataRequest(volume=volume, scope=_SCOPES[scope], owner=owner)


def volumes_of(reply: pb.VolumesReply, now: float) -> tuple[OfferedVolume, ...]:
    """Read what a server offers, received at ``now``; skip what has no valid name."""
    found: dict[str, OfferedVolume] = {}
    room = _MAX_DATA
    for message in reply.volumes[:_MAX_VOLUMES]:
        if rules.NAME.fullmatch(message.name) and message.name not in found:
            volume = found[message.name] = _volume_of(message, now, room)
            room -= len(volume.data)
    return tuple(found.values())


def _volume_of(message: pb.Volume, now: float, room: int) -> OfferedVolume:
    data: dict[tuple[Scope, str], VolumeData] = {}
    for entry in message.data[:room]:
        scope = _OWNED.get(entry.scope)
        if scope is not None and rules.owns(entry.owner):
            data.setdefault((scope, entry.owner), _data_of(entry, scope, now))
    return OfferedVolume(
        name=message.name,
        read_only=message.read_only,
        problem=message.problem[:TEXT_CHARS],
        filesystem=message.filesystem[:_WORD_CHARS],
        total_bytes=_count(message, "total_bytes"),
        free_bytes=_count(message, "free_bytes"),
        quota=message.quota if message.quota in _QUOTAS else "",
        data=tuple(data.values()),
    )


def _data_of(message: pb.VolumeData, scope: Scope, now: float) -> VolumeData:
    measured = _time(message.measured_at) if message.HasField("measured_at") else None
    return VolumeData(
        scope=scope,
        owner=message.owner,
        uid=message.uid,
        bytes=_count(message, "bytes"),
        files=_count(message, "files"),
        quota_bytes=_count(message, "quota_bytes"),
        created_at=past(message.created_at, now),
        used_at=past(message.used_at, now),
        measured_at=None if measured is None else min(measured, now),
        jobs=tuple(name for name in message.jobs[:_MAX_USERS] if policy.JOB.fullmatch(name)),
    )


def _count(message: pb.Volume | pb.VolumeData, field: str) -> int | None:
    """Return a count that was reported and is possible."""
    value = int(getattr(message, field)) if message.HasField(field) else None
    return value if value is None or value <= _MOST_BYTES else None


def past(value: float, now: float) -> float | None:
    """Return a time of the past; a later one counts as ``now``, none (0) as unknown."""
    time = _time(value)
    return min(time, now) if time else None


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
        reason=message.reason[:TEXT_CHARS],
        fault=message.fault[:_ID_CHARS],
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
        message.object[:TEXT_CHARS],
        message.message[:TEXT_CHARS],
        message.hint[:TEXT_CHARS],
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


def recordings_of(
    server: str,
    reply: pb.RecordingsReply,
    now: float,
    limits: Mapping[str, RecordingLimit] | None = None,
) -> list[Recording]:
    """Read what one server knows of its ranks' communication, received at ``now``.

    An operation or a call with an impossible value is left out and counted as damaged. ``limits``
    are those of the jobs that are read; None reads all.
    """
    return [
        _recording_of(server, message, now, None if limits is None else limits[message.job])
        for message in reply.recordings[:_MAX_RECORDINGS]
        if policy.JOB.fullmatch(message.job) and (limits is None or message.job in limits)
    ]


def _recording_of(
    server: str, message: pb.Recording, now: float, limit: RecordingLimit | None
) -> Recording:
    operations: list[RecordedOperation] = []
    places: dict[int, int] = {}
    damaged = min(message.damaged_rows, _MOST_ROWS)
    rows = list(enumerate(message.operations[:_MAX_OPERATIONS]))
    reason = message.reason[:TEXT_CHARS]
    if limit is not None and len(rows) > limit.rows:
        longest = sorted(rows, key=lambda item: (item[1].op in _STEPS, item[1].total_s))
        reason = reason or f"only {limit.rows} of {len(rows)} rows have room"
        rows = sorted(longest[-limit.rows :], key=lambda item: item[0])
    for position, row in rows:
        operation = _operation_of(row)
        if operation is None:
            damaged += 1
            continue
        places[position] = len(operations)
        operations.append(operation)
    state = message.state if message.state in _RECORDER_STATES else "damaged"
    return Recording(
        job=message.job,
        rank=message.rank,
        epoch=message.epoch,
        server=server,
        state=cast("RecorderState", state),
        reason=reason,
        time=past(message.time, now) or 0.0,
        operations=tuple(operations),
        calls=tuple(
            RecordedCall(
                places[call.operation],
                call.sequence,
                call.issued_s,
                call.ended_s if call.HasField("ended_s") else None,
                call.communicator,
            )
            for call in message.calls[-_MAX_CALLS:]
            if (limit is None or message.rank in limit.calls)
            and call.operation in places
            and duration(call.issued_s)
            and (not call.HasField("ended_s") or call.issued_s <= call.ended_s <= _MOST_FIGURE)
        ),
        damaged_rows=damaged,
        wire=_wire_of(message.wire, now) if message.HasField("wire") else None,
        profiler=_window_of(message.profiler, now) if message.HasField("profiler") else None,
        coverage=message.coverage if 0.0 <= message.coverage <= 1.0 else 0.0,
    )


def _window_of(message: pb.ProfilerWindow, now: float) -> ProfilerWindow | None:
    exposed_s = message.exposed_s if message.HasField("exposed_s") else None
    if not (
        all(map(duration, (message.length_s, message.comm_s, exposed_s or 0.0)))
        and (exposed_s or 0.0) <= message.comm_s
    ):
        return None
    return ProfilerWindow(
        ended_at=past(message.ended_at, now) or 0.0,
        length_s=message.length_s,
        comm_s=message.comm_s,
        exposed_s=exposed_s,
    )


def _operation_of(row: pb.RecordedOperation) -> RecordedOperation | None:
    possible = (
        _NAME.fullmatch(row.op)
        and row.source in _SOURCES
        and row.timing in _TIMINGS
        and row.bytes <= _MOST_BYTES
        and row.calls <= _MOST_CALLS
        and all(map(duration, (row.total_s, row.min_s, row.max_s)))
        and row.min_s <= row.max_s
        and len(row.histogram) <= _MAX_BINS
    )
    if not possible:
        return None
    return RecordedOperation(
        op=sys.intern(row.op),
        bytes=row.bytes,
        dtype=sys.intern(row.dtype[:_WORD_CHARS]),
        tag=sys.intern(row.tag[:_WORD_CHARS]),
        calls=row.calls,
        total_s=row.total_s,
        min_s=row.min_s,
        max_s=row.max_s,
        histogram=tuple(row.histogram),
        source=cast("Literal['nccl', 'torch', 'tf']", sys.intern(row.source)),
        timing=cast("Literal['device', 'host', 'issue']", sys.intern(row.timing)),
        exact=row.exact,
    )


def _wire_of(message: pb.WireBursts, now: float) -> WireBursts | None:
    given = {
        name: getattr(message, name) if message.HasField(name) else None
        for name in ("period_s", "burst_s", "sent_bytes", "spread")
    }
    if not all(value is None or duration(value) for value in (message.window_s, *given.values())):
        return None
    return WireBursts(
        time=past(message.time, now) or 0.0,
        window_s=message.window_s,
        bursts=message.bursts,
        **given,
    )


def duration(value: float) -> bool:
    """Return whether a number can be a time span in seconds."""
    return 0 <= value <= _MOST_FIGURE


def lines_of(rank: int, batch: pb.LogBatch) -> list[LogLine]:
    """Read a batch of lines."""
    return [
        LogLine(
            rank,
            _time(line.time) or 0.0,
            "stderr" if line.stream == "stderr" else "stdout",
            line.text,
        )
        for line in batch.lines[:_MAX_LINES]
    ]


def start_message(start: ExecStart) -> pb.ExecInput:
    """Write the start of a command."""
    return pb.ExecInput(
        start=pb.ExecStart(
            job=start.job,
            rank=start.rank,
            command=start.command,
            terminal=start.terminal,
            window=None if start.window is None else _window_message(start.window),
            idle_s=start.idle_s,
            total_s=start.total_s,
            epoch=start.epoch,
        )
    )


def input_message(item: Typed | WindowSize) -> pb.ExecInput:
    """Write what a command is given."""
    match item:
        case WindowSize():
            return pb.ExecInput(resize=_window_message(item))
        case Typed(data=None):
            return pb.ExecInput(stdin_closed=True)
        case Typed(data=data):
            return pb.ExecInput(stdin=data)


def _window_message(window: WindowSize) -> pb.WindowSize:
    return pb.WindowSize(rows=window.rows, columns=window.columns)


def output_of(message: pb.ExecOutput) -> ExecOutput | ExecEnd:
    """Read a piece of a command's output, or its end."""
    match message.WhichOneof("output"):
        case "stdout":
            return ExecOutput("stdout", message.stdout)
        case "stderr":
            return ExecOutput("stderr", message.stderr)
        case _:
            end = message.end
            code = end.exit_code if end.HasField("exit_code") else None
            return ExecEnd(code, end.reason[:TEXT_CHARS])


def _time(value: float) -> float | None:
    """Return a valid time, None for an invalid one."""
    return value if 0 <= value <= _LAST_TIME else None


def _fraction(value: float) -> float | None:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else None


def missing_line(rank: int, fault: EngineFault, now: float) -> LogLine:
    """Return the line that stands for output that cannot be read."""
    server = fault.obj.removeprefix("server/")
    why = _MISSING.get(fault.code, f"cannot give it: {fault.message}")
    return LogLine(rank, now, MISSING, f"output of rank {rank} is missing here: {server} {why}")


_MISSING = {
    "not_found": "does not keep it any more",
    "unavailable": "does not answer",
    "timeout": "does not answer in time",
    "forbidden": "is not trusted",
}

_OTHER = "is another controller running? After a loss of the store: --take-command"


_RPC_FAULTS: Mapping[grpc.StatusCode, tuple[str, str]] = {
    grpc.StatusCode.UNAVAILABLE: ("unavailable", "is the agent running on this server?"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (
        "timeout",
        "outcome unknown: observe before trying again",
    ),
    grpc.StatusCode.NOT_FOUND: ("not_found", ""),
    grpc.StatusCode.INVALID_ARGUMENT: ("invalid", ""),
    grpc.StatusCode.ABORTED: ("conflict", ""),
    grpc.StatusCode.FAILED_PRECONDITION: ("forbidden", _OTHER),
    grpc.StatusCode.PERMISSION_DENIED: ("forbidden", _OTHER),
    grpc.StatusCode.UNIMPLEMENTED: ("failed", "is its agent older than the controller?"),
}


def rpc_fault(server: str, error: grpc.aio.AioRpcError) -> EngineFault:
    """Return the fault of a failed call."""
    obj, text = f"server/{server}", str(error.details() or error.code().name)[:TEXT_CHARS]
    code, hint = _RPC_FAULTS.get(error.code(), ("failed", ""))
    return EngineFault(code, obj, text, hint)
