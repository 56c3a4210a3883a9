"""Documents of jobs' communication. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentlink.values import Record
from controller.base.texts import shown
from controller.comms.ledger import JobComms, RankComms, Table
from controller.devices.engine import Recording
from controller.schema.insight.comms import CommsRowView, CommsView, OverlapView, RankCommsView
from controller.state.records import JobRecord
from measure.comms.facts import TEXTS, Overlap, slowest
from measure.comms.rows import Row, job_rows, rank_rows
from measure.comms.skew import Skew

MOST_ROWS = 1000
"""Of one job, or of one rank."""
MOST_RANK_ROWS = 2000
WIRE_OP = "burst"
"""The row of what is seen on the wire only."""
PROFILER = "tf"
"""The source of rows that come from windows of TensorFlow's profiler."""
_LOOK_EVERY_S = 30.0


def view_of(
    job: JobRecord, known: JobComms | None, rank: int | None, since: float | None, now: float
) -> CommsView:
    """Return the document; ``known`` is None before the first figures of this run. Pure."""
    ranks = known.ranks if known is not None else {}
    tables, starts = _tables(ranks, since)
    size = len(job.endpoints) or job.request.count
    overlaps = known.overlaps if known is not None else ()
    slow = slowest(overlaps)
    of_rank = next((o for o in overlaps if o.rank == rank), None) if rank is not None else slow
    if rank is None:
        rows = job_rows(list(tables.values()), size)
    else:
        rows = rank_rows(rank, tables.get(rank, {}), size)
    rows = rows[:MOST_ROWS]
    skews = known.skews if known is not None and rank is None else {}
    steps = _steps(tables if rank is None else {rank: tables.get(rank, {})}, of_rank)
    covered = {number: one.recording.coverage for number, one in ranks.items()}
    shown_rows = [_row_view(row, skews.get(row.key), of_rank, steps, covered) for row in rows]
    wired = [r.recording for r in ranks.values() if rank in (None, r.recording.rank)]
    if not rows and (burst := _wire_row(wired, rank)) is not None:
        shown_rows = [burst]
    each = [row for number, sums in tables.items() for row in rank_rows(number, sums, size)]
    each.sort(key=lambda row: -row.sums.total_s)
    return CommsView(
        job=job.name,
        epoch=job.epoch,
        record=job.request.record.value,
        state=job.state,
        since=max(starts, default=None) if since is not None else None,
        updated_at=max((r.recording.time for r in ranks.values()), default=None),
        ranks=[_rank_view(job, number, ranks.get(number), now) for number in range(size)],
        rows=shown_rows,
        rank_rows=[_row_view(row, None, None, None, covered) for row in each[:MOST_RANK_ROWS]],
        overlap=None if of_rank is None else _overlap_view(of_rank, rank),
        overlap_ranks=[_overlap_view(one, one.rank) for one in overlaps],
        notes=_notes(job, ranks, of_rank),
    )


def _tables(
    ranks: Mapping[int, RankComms], since: float | None
) -> tuple[dict[int, Table], list[float]]:
    """Return each rank's sums, and the times since when they count."""
    if since is None:
        return {number: one.sums for number, one in ranks.items()}, []
    found: dict[int, Table] = {}
    starts: list[float] = []
    for number, one in ranks.items():
        found[number], start = one.since(since)
        if start is not None:
            starts.append(start)
    return found, starts


def _steps(tables: Mapping[int, Table], overlap: Overlap | None) -> float | None:
    """Return about how many steps a rank made in these sums."""
    if overlap is None or not overlap.calls_per_step:
        return None
    calls = [sum(sums.calls for key, sums in one.items() if not key[3]) for one in tables.values()]
    return max(calls, default=0) / overlap.calls_per_step or None


def _row_view(
    row: Row,
    skew: Skew | None,
    overlap: Overlap | None,
    steps: float | None,
    covered: Mapping[int, float],
) -> CommsRowView:
    op, size, dtype, tag, source, timing = row.key
    share = None
    last = None if skew is None else max(skew.last, key=lambda r: (skew.last[r], -r))
    if overlap is not None and steps and not tag and timing != "issue":
        share = min(1.0, row.longest_s / (steps * overlap.step_s))
    return CommsRowView(
        rank=row.rank,
        op=op,
        bytes=size,
        dtype=dtype,
        tag=tag,
        calls=row.sums.calls,
        total_s=row.sums.total_s,
        avg_s=row.avg_s,
        min_s=row.sums.min_s,
        max_s=row.sums.max_s,
        p50_s=row.sums.p50_s,
        source=source,
        timing=timing,
        exact=row.sums.exact,
        coverage=_coverage(row, covered),
        skew_s=None if skew is None else skew.skew_s,
        transfer_s=None if skew is None else skew.transfer_s,
        last_rank=last,
        last_share=None if skew is None or last is None else skew.last[last] / skew.calls,
        share=share,
        busbw=row.busbw,
    )


def _coverage(row: Row, covered: Mapping[int, float]) -> float:
    """Return the share of the time that a row is of; of a job's row, the mean of its ranks."""
    if row.key[4] != PROFILER:
        return 1.0
    shares = covered if row.rank is None else {row.rank: covered.get(row.rank, 0.0)}
    return sum(shares.values()) / max(1, len(shares))


def _wire_row(recordings: Sequence[Recording], rank: int | None) -> CommsRowView | None:
    """Return the bursts of the rank that sent the longest as a row; None without any."""
    wires = [r.wire for r in recordings if r.wire is not None and r.wire.period_s]
    wire = max(wires, key=lambda w: w.burst_s or 0.0, default=None)
    if wire is None or wire.period_s is None or wire.burst_s is None:
        return None
    return CommsRowView(
        rank=rank,
        op=WIRE_OP,
        bytes=round(wire.sent_bytes or 0),
        calls=wire.bursts,
        total_s=wire.burst_s * wire.bursts,
        avg_s=wire.burst_s,
        min_s=wire.burst_s,
        max_s=wire.burst_s,
        p50_s=wire.burst_s,
        source="wire",
        timing="host",
        exact=False,
        coverage=min(1.0, wire.window_s / _LOOK_EVERY_S),
        share=min(1.0, wire.burst_s / wire.period_s),
    )


def _overlap_view(one: Overlap, rank: int | None) -> OverlapView:
    return OverlapView(
        rank=rank,
        step_s=one.step_s,
        compute_s=one.compute_s,
        comm_s=one.comm_s,
        exposed_s=one.exposed_s,
        overlap=one.overlap,
        definition=one.definition,
        bytes_per_step=one.bytes_per_step,
        calls_per_step=one.calls_per_step,
        steps=one.steps,
        source=one.source,
    )


def _rank_view(job: JobRecord, number: int, one: RankComms | None, now: float) -> RankCommsView:
    endpoint = job.endpoints[number] if number < len(job.endpoints) else ""
    if job.request.record is Record.OFF:
        return RankCommsView(rank=number, endpoint=endpoint, recorder="off")
    if one is None:
        return RankCommsView(
            rank=number, endpoint=endpoint, recorder="unknown", reason=_unknown(job)
        )
    recording = one.recording
    sources = {key[4] for key in one.sums}
    if not sources and recording.wire is not None and recording.wire.period_s:
        sources = {"wire"}  # type: ignore[arg-type]
    return RankCommsView(
        rank=number,
        endpoint=endpoint,
        recorder=recording.state,
        reason=shown(recording.reason),
        source=", ".join(sorted(sources)),
        age_s=max(0.0, now - recording.time) if recording.time else None,
        damaged_rows=recording.damaged_rows,
    )


def _unknown(job: JobRecord) -> str:
    if not job.endpoints:
        return "the job has not started"
    if job.ended:
        return "it ended, and its server has no figures of it any more"
    return "its server has not reported it yet"


def _notes(job: JobRecord, ranks: Mapping[int, RankComms], overlap: Overlap | None) -> list[str]:
    """Return what limits the figures."""
    if job.request.record is Record.OFF:
        return ["communication is not recorded: submit with --record counts"]
    notes = []
    if overlap is not None:
        notes.append(f"overlap: {TEXTS[overlap.definition]}")
    keys = {key for one in ranks.values() for key in one.sums}
    if any(timing == "issue" for *_, timing in keys):
        notes.append("times with timing issue are those that a call took to return")
    if any(key[4] == PROFILER for key in keys):
        notes.append("TensorFlow: calls, times and steps are those of its profiler's windows")
    if not all(sums.exact for one in ranks.values() for sums in one.sums.values()):
        notes.append("some times are of a sample; calls and bytes are exact")
    if any(key[0] == "other" for key in keys):
        notes.append("row other: calls beyond a recorder's table of 1,023 rows")
    if ranks and not keys:
        notes.append("no recorder wrote; only bursts on the wire are known, without sizes of calls")
    return notes
