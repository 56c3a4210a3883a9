"""Between the agents' protobuf messages and the controller's engine values. Pure.

What an agent sends is kept, shown and written to the store. So texts are cut, and an impossible
number counts as not reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import grpc

from agentlink import readings
from agentlink.bounds import (
    JOB,
    NAME,
    TEXT_CHARS,
    Refused,
    is_span,
    is_time,
    past,
    require,
)
from agentlink.codec import possible, read, write
from agentlink.ranks import RankSpec
from agentlink.values import ProfilerWindow, Scope, Typed, WindowSize
from controller.devices.engine import (
    MISSING,
    EngineFault,
    ExecEnd,
    ExecOutput,
    HeldImage,
    LogLine,
    OfferedVolume,
    PullProgress,
    RankSample,
    RecordedCall,
    RecordedOperation,
    RecorderState,
    Recording,
    RecordingLimit,
    ServerImage,
    ServerSample,
    VolumeData,
    WireBursts,
)
from measure.comms.recorded import INPUT_WAIT, STEP
from protos import agent_pb2 as pb
from readings.reading import Object

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_IMAGES = 1000
"""Of one server."""
_MAX_SAMPLES = 256
"""Per server and second."""
_MAX_LINES = 2048
"""Per message; an agent sends at most a quarter of that."""
_MAX_VOLUMES = 64
"""Per server."""
_MAX_DATA = 4096
"""Directories of all volumes of one server."""
_MAX_RECORDINGS = 1024
"""Per server: its ranks, and those that ended."""
_MAX_OPERATIONS = 1024
_MAX_CALLS = 512
_MOST_ROWS = 10**6
_RECORDER_STATES = frozenset({"recording", "absent", "damaged", "refused", "off"})
_STEPS = frozenset({STEP, INPUT_WAIT})
_T = TypeVar("_T")


def rank_message(spec: RankSpec) -> pb.Rank:
    """Write one rank of a Start request."""
    gpu_uuid = spec.gpu_uuid if spec.emulated_share is None else ""
    return write(pb.Rank, spec, gpu_uuid=gpu_uuid or None)


def image_of(server: str, message: pb.ImageReply) -> ServerImage:
    """Read what one server says about an image. An invalid id counts as absent."""
    present = message.present and DIGEST.fullmatch(message.image_id) is not None
    image_id = message.image_id if present else ""
    return read(ServerImage, message, server=server, present=present, id=image_id)


def held_of(server: str, reply: pb.ImagesReply) -> list[HeldImage]:
    """Read the list of one server's images."""
    return [read(HeldImage, image, server=server) for image in reply.images[:_MAX_IMAGES]]


def progress_of(server: str, message: pb.PullProgress) -> PullProgress:
    """Read how far a pull is."""
    image = image_of(server, message.image) if message.HasField("image") else None
    return read(PullProgress, message, image=image)


def volumes_of(reply: pb.VolumesReply, now: float) -> tuple[OfferedVolume, ...]:
    """Read what a server offers, received at ``now``; skip what has no valid name."""
    found: dict[str, OfferedVolume] = {}
    room = _MAX_DATA
    for message in reply.volumes[:_MAX_VOLUMES]:
        if NAME.fullmatch(message.name) and message.name not in found:
            volume = found[message.name] = _volume_of(message, now, room)
            room -= len(volume.data)
    return tuple(found.values())


def _volume_of(message: pb.Volume, now: float, room: int) -> OfferedVolume:
    data: dict[tuple[Scope, str], VolumeData] = {}
    for one in possible(partial(_data_of, now), message.data[:room]):
        data.setdefault((one.scope, one.owner), one)
    return read(OfferedVolume, message, data=tuple(data.values()))


def _data_of(now: float, message: pb.VolumeData) -> VolumeData:
    found = read(
        VolumeData,
        message,
        uid=message.uid,
        created_at=past(message.created_at, now),
        used_at=past(message.used_at, now),
    )
    require(found.scope is not Scope.SITE, "a volume itself has no owner")
    measured_at = found.measured_at
    return replace(found, measured_at=None if measured_at is None else min(measured_at, now))


def samples_of(batch: pb.TelemetryBatch, now: float) -> list[RankSample]:
    """Read one second of one server, received at ``now``; a later time counts as ``now``."""
    if not is_time(batch.time):
        return []
    time = min(batch.time, now)
    return [_sample_of(sample, time) for sample in batch.samples[:_MAX_SAMPLES]]


def server_of(server: str, batch: pb.TelemetryBatch) -> ServerSample:
    """Read what a server reports of itself."""
    return ServerSample(server, readings.read(batch.readings, Object.SERVER))


def _sample_of(message: pb.Sample, time: float) -> RankSample:
    real = message.HasField("gpu")
    objects = (Object.RANK, Object.GPU) if real else (Object.RANK,)
    older = (message, message.gpu) if real else (message,)
    values = readings.read(message.readings, *objects, older=older)
    return read(RankSample, message, time=time, values=values, real=real)


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
        if JOB.fullmatch(message.job) and (limits is None or message.job in limits)
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
            and is_span(call.issued_s)
            and (not call.HasField("ended_s") or call.issued_s <= call.ended_s)
            and is_span(call.ended_s)
        ),
        damaged_rows=damaged,
        wire=_read_or_none(_wire_of, message, "wire", now),
        profiler=_read_or_none(_window_of, message, "profiler", now),
        coverage=message.coverage if 0.0 <= message.coverage <= 1.0 else 0.0,
    )


def _read_or_none(
    read_one: Callable[[Any, float], _T], message: pb.Recording, field: str, now: float
) -> _T | None:
    if not message.HasField(field):
        return None
    try:
        return read_one(getattr(message, field), now)
    except Refused:
        return None


def _window_of(message: pb.ProfilerWindow, now: float) -> ProfilerWindow:
    found = read(ProfilerWindow, message, ended_at=past(message.ended_at, now) or 0.0)
    require((found.exposed_s or 0.0) <= found.comm_s, "exposed for longer than it communicates")
    return found


def _operation_of(row: pb.RecordedOperation) -> RecordedOperation | None:
    try:
        found = read(RecordedOperation, row)
    except Refused:
        return None
    return found if found.min_s <= found.max_s else None


def _wire_of(message: pb.WireBursts, now: float) -> WireBursts:
    return read(WireBursts, message, time=past(message.time, now) or 0.0)


def lines_of(rank: int, batch: pb.LogBatch) -> list[LogLine]:
    """Read a batch of lines."""
    return [
        LogLine(
            rank,
            line.time if is_time(line.time) else 0.0,
            "stderr" if line.stream == "stderr" else "stdout",
            line.text,
        )
        for line in batch.lines[:_MAX_LINES]
    ]


def input_message(item: Typed | WindowSize) -> pb.ExecInput:
    """Write what a command is given."""
    match item:
        case WindowSize():
            return pb.ExecInput(resize=write(pb.WindowSize, item))
        case Typed(data=None):
            return pb.ExecInput(stdin_closed=True)
        case Typed(data=data):
            return pb.ExecInput(stdin=data)


def output_of(message: pb.ExecOutput) -> ExecOutput | ExecEnd:
    """Read a piece of a command's output, or its end."""
    match message.WhichOneof("output"):
        case "stdout":
            return ExecOutput("stdout", message.stdout)
        case "stderr":
            return ExecOutput("stderr", message.stderr)
        case _:
            return read(ExecEnd, message.end)


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
