"""Converts between protobuf messages and the agent's values. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from agentlink import readings
from agentlink.bounds import require
from agentlink.codec import read, write
from agentlink.ranks import GPU, RankSpec
from agentlink.values import DataKey, Device, NicReport, Record, RegistryLogin, Typed, WindowSize
from container_mgr.docker.attached import Stream
from container_mgr.ranks.execs import Input
from container_mgr.ranks.living import LiveSample
from container_mgr.ranks.logs import OutputLine
from container_mgr.recordings.recording import RankRecording
from container_mgr.values import AgentError, Container, Health, refusing
from container_mgr.volumes.volumes import VolumeFacts
from protos import agent_pb2 as pb
from readings.reading import Object, Values
from recorder import layout

MOST_RECORDED_BYTES = 3 * 2**20
"""Bytes of one reply; gRPC refuses messages above 4 MiB."""
_REASON_BYTES = 64
_FIELD_BYTES = 8
"""The tag and the length of a row."""

_STATES = {
    "created": pb.STATE_CREATED,
    "running": pb.STATE_RUNNING,
    "paused": pb.STATE_PAUSED,
    "exited": pb.STATE_EXITED,
}


def spec_of(rank: pb.Rank) -> RankSpec:
    """Read one rank of a Start request; the policy checks it. Raises AgentError(invalid)."""
    older: dict[str, object] = {} if rank.record else {"record": Record.OFF}
    if rank.gpu_uuid and not rank.devices:
        older["devices"] = (Device(GPU, rank.gpu_uuid),)
    with refusing(rank.job[:80]):
        spec = read(RankSpec, rank, **older)
        require(rank.gpu_uuid in ("", spec.gpu_uuid), "its devices name another GPU")
        return spec


def data_key_of(request: pb.RemoveDataRequest) -> DataKey:
    """Read which data is to be removed. Raises AgentError(invalid)."""
    with refusing(request.volume[:80]):
        return read(DataKey, request)


def login_of(request: pb.ImageRequest) -> RegistryLogin | None:
    """Read the login of a request for an image; None without one."""
    return read(RegistryLogin, request.login) if request.HasField("login") else None


def status_of(
    container: Container, reason: str, fault: str, nic: NicReport | None
) -> pb.RankStatus:
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
        fault=fault,
        nic=None if nic is None else write(pb.NicReport, nic),
    )


def volume_message(facts: VolumeFacts) -> pb.Volume:
    """Convert what is known about a volume."""
    return pb.Volume(
        name=facts.name,
        read_only=facts.read_only,
        problem=facts.status.problem,
        filesystem=facts.status.filesystem,
        total_bytes=facts.status.total_bytes,
        free_bytes=facts.status.free_bytes,
        quota="" if facts.read_only else "kernel" if facts.status.kernel_quota else "watched",
        data=[write(pb.VolumeData, data.record, jobs=data.jobs) for data in facts.data],
    )


def health_message(health: Health) -> pb.Health:
    """Convert the health of an endpoint."""
    unfit = health.unfit
    return pb.Health(
        endpoint=health.endpoint,
        ok=unfit is None,
        reason=unfit.reason if unfit else "",
        fault=unfit.fault if unfit else "",
        carrier=health.carrier,
    )


def fault_message(error: AgentError) -> pb.Fault:
    """Convert one fault."""
    return pb.Fault(code=error.code, object=error.obj, message=error.message, hint=error.hint)


def telemetry_of(time: float, samples: Sequence[LiveSample], server: Values) -> pb.TelemetryBatch:
    """Convert one second of all ranks with a GPU or a stand-in, and of the server."""
    return pb.TelemetryBatch(
        time=time,
        samples=[
            pb.Sample(
                job=s.container.key.job,
                rank=s.container.key.rank,
                endpoint=s.container.endpoint,
                source="nvml" if s.real else "emulated",
                gpu=pb.Gpu(**readings.fields(pb.Gpu, s.values)) if s.real else None,
                readings=readings.write(s.values, Object.RANK, Object.GPU),
                **readings.fields(pb.Sample, s.values),
            )
            for s in samples
        ],
        readings=readings.write(server, Object.SERVER),
    )


def logs_of(lines: Sequence[OutputLine]) -> pb.LogBatch:
    """Convert a batch of lines."""
    return pb.LogBatch(
        lines=[pb.LogLine(time=li.time, stream=li.stream, text=li.text) for li in lines]
    )


async def inputs_of(requests: AsyncIterator[pb.ExecInput]) -> AsyncIterator[Input]:
    """Read what follows the start of a command."""
    async for request in requests:
        match request.WhichOneof("input"):
            case "stdin":
                yield Typed(request.stdin)
            case "stdin_closed":
                yield Typed(None)
            case "resize":
                yield read(WindowSize, request.resize)


def output_message(stream: Stream, data: bytes) -> pb.ExecOutput:
    """Convert a piece of a command's output."""
    return pb.ExecOutput(stdout=data) if stream == "stdout" else pb.ExecOutput(stderr=data)


def recordings_of(
    found: Sequence[RankRecording], most_bytes: int | None = None
) -> pb.RecordingsReply:
    """Convert recordings of ranks' communication to at most ``most_bytes``. Takes a while.

    What has no room is cut: jobs have equal shares, and so have the ranks of a job. What one leaves
    is shared by the others. Ranks that have ended get what the others leave, at least a quarter.
    """
    room = MOST_RECORDED_BYTES if most_bytes is None else min(most_bytes, MOST_RECORDED_BYTES)
    live, ended = (_sized([one for one in found if one.ended is late]) for late in (False, True))
    kept = min(room // 4, sum(size for mine in ended.values() for _, size in mine))
    shown = _fitted(live, room - kept)
    shown += _fitted(ended, room - sum(one.ByteSize() for one in shown))
    return pb.RecordingsReply(recordings=shown)


def _sized(found: Sequence[RankRecording]) -> dict[str, list[tuple[pb.Recording, int]]]:
    """Return the messages of each job, with their sizes."""
    by_job: dict[str, list[tuple[pb.Recording, int]]] = {}
    for recording in found:
        message = _recording_message(recording)
        by_job.setdefault(recording.key.job, []).append((message, message.ByteSize()))
    return by_job


def _fitted(
    by_job: Mapping[str, Sequence[tuple[pb.Recording, int]]], room: int
) -> list[pb.Recording]:
    most = _share([sum(size for _, size in mine) for mine in by_job.values()], room)
    shown: list[pb.Recording] = []
    for mine in by_job.values():
        of_rank = _share([size for _, size in mine], most)
        shown += [_cut(message, of_rank) for message, _ in mine]
    return shown


def _share(needs: Sequence[int], room: int) -> int:
    """Return the most that each may have so that all fit into ``room``."""
    for left, need in zip(range(len(needs), 0, -1), sorted(needs), strict=True):
        if need > room // left:
            return room // left
        room -= need
    return max(needs, default=0)


def _cut(whole: pb.Recording, room: int) -> pb.Recording:
    """Return a recording within ``room``: without calls, and with the rows that took longest."""
    if whole.ByteSize() <= room:
        return whole
    cut, every = pb.Recording(), len(whole.operations)
    cut.CopyFrom(whole)
    cut.ClearField("calls")
    cut.ClearField("operations")
    left = room - cut.ByteSize() - _REASON_BYTES
    for row in sorted(whole.operations, key=lambda row: row.total_s, reverse=True):
        left -= row.ByteSize() + _FIELD_BYTES
        if left < 0:
            break
        cut.operations.append(row)
    if not cut.reason:
        cut.reason = f"only {len(cut.operations)} of {every} rows had room"
    return cut


def _recording_message(recording: RankRecording) -> pb.Recording:
    found, wire, profiler = recording.read, recording.wire, recording.profiler
    return pb.Recording(
        job=recording.key.job,
        rank=recording.key.rank,
        epoch=recording.key.epoch,
        state=found.state,
        reason=found.reason,
        time=found.time,
        operations=[_operation_message(operation) for operation in found.operations],
        calls=[write(pb.RecordedCall, call) for call in found.calls],
        damaged_rows=found.damaged_rows,
        wire=None if wire is None else write(pb.WireBursts, wire, time=recording.wire_time),
        profiler=None if profiler is None else write(pb.ProfilerWindow, profiler),
        coverage=recording.coverage,
    )


def _operation_message(operation: layout.OperationSums) -> pb.RecordedOperation:
    histogram = list(operation.histogram)
    while histogram and not histogram[-1]:
        histogram.pop()
    return write(pb.RecordedOperation, operation, histogram=histogram)
