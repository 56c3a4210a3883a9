"""Converts between protobuf messages and the agent's values. Pure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from checkpoints.ledger import Key
from container_mgr.docker.attached import Stream
from container_mgr.docker.engine import PullState
from container_mgr.hardware.nvml import Reading
from container_mgr.ranks.execs import Ending, Input, Start, Typed, Window
from container_mgr.ranks.living import Sample
from container_mgr.ranks.logs import Line
from container_mgr.recordings.bursts import Bursts
from container_mgr.recordings.recording import ProfilerWindow, Recording
from container_mgr.values import (
    AgentError,
    Container,
    Health,
    NicReport,
    NicSpec,
    RankCheckpoint,
    RankKey,
    RankLimits,
    RankSpec,
    Record,
    RegistryLogin,
    Scope,
    VolumeMount,
    Where,
)
from container_mgr.volumes.volumes import DataFacts, DataKey, VolumeFacts
from protos import agent_pb2 as pb
from recorder import layout

MOST_RECORDED_BYTES = 3 * 2**20
"""Of one reply; gRPC refuses messages above 4 MiB."""
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
        volumes=tuple(mount_of(mount) for mount in rank.volumes),
        uid=rank.uid if rank.HasField("uid") else None,
        gid=rank.gid if rank.HasField("gid") else None,
        record=_record_of(rank),
        probe=rank.probe,
        checkpoint=_checkpoint_of(rank) if rank.HasField("checkpoint") else None,
    )


def _checkpoint_of(rank: pb.Rank) -> RankCheckpoint:
    """Read what a rank's checkpoints need; the policy checks it."""
    message = rank.checkpoint
    return RankCheckpoint(
        folder=message.folder,
        ranks=message.ranks,
        rule=message.rule,
        where=where_of(message.where, rank.job[:80]),
        size_bytes=message.size_bytes,
        key=message.key,
        resumed=_resumed_of(message),
    )


def _resumed_of(message: pb.RankCheckpoint) -> Key | None:
    if not message.HasField("resumed"):
        return None
    return Key(message.resumed.step, message.resumed.epoch)


def where_of(value: str, obj: str) -> Where:
    """Read where checkpoints are kept. Raises AgentError(invalid) for an unknown place."""
    try:
        return Where(value)
    except ValueError:
        raise AgentError(
            "invalid",
            obj,
            f"checkpoints are kept in memory or on disk, not in {value[:40]!r}",
            "is the controller newer than the agent?",
        ) from None


def _record_of(rank: pb.Rank) -> Record:
    try:
        return Record(rank.record or Record.OFF)
    except ValueError:
        raise AgentError(
            "invalid",
            rank.job[:80],
            f"record {rank.record[:40]!r} is unknown",
            "is the controller newer than the agent?",
        ) from None


_SCOPES = {
    pb.SCOPE_SITE: Scope.SITE,
    pb.SCOPE_PROJECT: Scope.PROJECT,
    pb.SCOPE_JOB: Scope.JOB,
}


def scope_of(value: pb.Scope, obj: str) -> Scope:
    """Read a scope. Raises AgentError(invalid) for one that this agent does not know."""
    scope = _SCOPES.get(value)
    if scope is None:
        raise AgentError(
            "invalid", obj, f"scope {value} is unknown", "is the controller newer than the agent?"
        )
    return scope


def data_key_of(request: pb.RemoveDataRequest) -> DataKey:
    """Read which data is to be removed. Raises AgentError(invalid)."""
    return DataKey(request.volume, scope_of(request.scope, request.volume[:80]), request.owner)


def mount_of(mount: pb.VolumeMount) -> VolumeMount:
    """Read a volume of a rank or a store. Raises AgentError(invalid) for an unknown scope."""
    return VolumeMount(
        volume=mount.volume,
        path=mount.path,
        read_only=mount.read_only,
        scope=scope_of(mount.scope, mount.volume[:80]),
        owner=mount.owner,
        quota_bytes=mount.quota_bytes if mount.HasField("quota_bytes") else None,
        read_bps=mount.read_bps if mount.HasField("read_bps") else None,
        write_bps=mount.write_bps if mount.HasField("write_bps") else None,
    )


def login_of(request: pb.ImageRequest) -> RegistryLogin | None:
    """Read the login of a request for an image; None without one."""
    if not request.HasField("login"):
        return None
    return RegistryLogin(request.login.username, request.login.password)


def progress_of(state: PullState) -> pb.PullProgress:
    """Convert how far a pull is."""
    return pb.PullProgress(
        layers_done=state.layers_done,
        layers=state.layers,
        bytes_done=state.bytes_done,
        bytes_total=state.bytes_total,
    )


def _limits_of(limits: pb.Limits) -> RankLimits:
    return RankLimits(
        cores=limits.cores if limits.HasField("cores") else None,
        memory_bytes=limits.memory_bytes if limits.HasField("memory_bytes") else None,
        pids=limits.pids if limits.HasField("pids") else None,
        read_bps=limits.read_bps if limits.HasField("read_bps") else None,
        write_bps=limits.write_bps if limits.HasField("write_bps") else None,
    )


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
        nic=None
        if nic is None
        else pb.NicReport(
            mtu=nic.mtu, rdma_device=nic.rdma_device, gid_index=nic.gid_index, dscp=nic.dscp
        ),
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
        data=[_data_message(data) for data in facts.data],
    )


def _data_message(data: DataFacts) -> pb.VolumeData:
    record = data.record
    return pb.VolumeData(
        scope=next(value for value, scope in _SCOPES.items() if scope is record.scope),
        owner=record.owner,
        uid=record.uid,
        bytes=record.bytes,
        files=record.files,
        quota_bytes=record.quota_bytes,
        created_at=record.created_at,
        used_at=record.used_at,
        measured_at=record.measured_at,
        jobs=data.jobs,
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


def start_of(message: pb.ExecStart) -> Start:
    """Read the start of a command."""
    return Start(
        job=message.job,
        rank=message.rank,
        command=tuple(message.command),
        terminal=message.terminal,
        window=_window_of(message.window) if message.HasField("window") else None,
        idle_s=message.idle_s,
        total_s=message.total_s,
        epoch=message.epoch if message.HasField("epoch") else None,
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
                yield _window_of(request.resize)


def _window_of(message: pb.WindowSize) -> Window:
    return Window(message.rows, message.columns)


def output_message(stream: Stream, data: bytes) -> pb.ExecOutput:
    """Convert a piece of a command's output."""
    return pb.ExecOutput(stdout=data) if stream == "stdout" else pb.ExecOutput(stderr=data)


def end_message(ending: Ending) -> pb.ExecOutput:
    """Convert the end of a command."""
    return pb.ExecOutput(end=pb.ExecEnd(exit_code=ending.exit_code, reason=ending.reason))


def recordings_of(found: Sequence[Recording], most_bytes: int | None = None) -> pb.RecordingsReply:
    """Convert what is known of ranks' communication, at most ``most_bytes``. Takes a while.

    What has no room is cut: jobs have equal shares, and so have the ranks of a job. What one leaves
    is shared by the others. Ranks that have ended get what the others leave, at least a quarter.
    """
    room = MOST_RECORDED_BYTES if most_bytes is None else min(most_bytes, MOST_RECORDED_BYTES)
    live, ended = (_sized([one for one in found if one.ended is late]) for late in (False, True))
    kept = min(room // 4, sum(size for mine in ended.values() for _, size in mine))
    shown = _fitted(live, room - kept)
    shown += _fitted(ended, room - sum(one.ByteSize() for one in shown))
    return pb.RecordingsReply(recordings=shown)


def _sized(found: Sequence[Recording]) -> dict[str, list[tuple[pb.Recording, int]]]:
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


def _recording_message(recording: Recording) -> pb.Recording:
    read, key = recording.read, recording.key
    return pb.Recording(
        job=key.job,
        rank=key.rank,
        epoch=key.epoch,
        state=read.state,
        reason=read.reason,
        time=read.time,
        operations=[_operation_message(operation) for operation in read.operations],
        calls=[
            pb.RecordedCall(
                operation=call.operation,
                sequence=call.sequence,
                issued_s=call.issued_s,
                ended_s=call.ended_s,
                communicator=call.communicator,
            )
            for call in read.calls
        ],
        damaged_rows=read.damaged_rows,
        wire=None if recording.wire is None else _wire_message(recording.wire, recording.wire_time),
        profiler=None if recording.profiler is None else _window_message(recording.profiler),
        coverage=recording.coverage,
    )


def _window_message(window: ProfilerWindow) -> pb.ProfilerWindow:
    return pb.ProfilerWindow(
        ended_at=window.ended_at,
        length_s=window.length_s,
        comm_s=window.comm_s,
        exposed_s=window.exposed_s,
    )


def _operation_message(operation: layout.Operation) -> pb.RecordedOperation:
    histogram = list(operation.histogram)
    while histogram and not histogram[-1]:
        histogram.pop()
    return pb.RecordedOperation(
        op=operation.op,
        bytes=operation.bytes,
        dtype=operation.dtype,
        tag=operation.tag,
        calls=operation.calls,
        total_s=operation.total_s,
        min_s=operation.min_s,
        max_s=operation.max_s,
        histogram=histogram,
        source=operation.source,
        timing=operation.timing,
        exact=operation.exact,
    )


def _wire_message(found: Bursts, time: float) -> pb.WireBursts:
    return pb.WireBursts(
        window_s=found.window_s,
        bursts=found.bursts,
        period_s=found.period_s,
        burst_s=found.burst_s,
        sent_bytes=found.sent_bytes,
        spread=found.spread,
        time=time,
    )
