"""What windows of TensorFlow's profiler show of one rank, and when the next one is due. Pure.

Calls, times and steps are counted in the windows, which cover a small share of the time, and exact
in them. TensorFlow does not report sizes: bytes are 0.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentlink.values import ProfilerWindow
from container_mgr.recordings.asking import Failure
from container_mgr.recordings.recording import MOST_CALLS, RecordingState, State
from container_mgr.recordings.xspace import WindowProfile
from measure.comms.recorded import INPUT_WAIT, STEP
from measure.comms.steps import steps_of
from recorder import layout
from recorder.python.lightloom_writer import BINS, bin_of

EVERY_S = 60.0
WINDOW_S = 2.0
LONGEST_WINDOW_S = 10.0
"""For jobs with long steps."""
_STEPS = 6.0
"""A window shall see so many steps."""
PATIENCE = 3
"""Failures without a pause: TensorFlow takes a while to start."""
MOST_PAUSE = 16
"""Windows that are left out at most after further failures."""
_FAR_S = 60.0
"""The worker runs on this machine, so its clock is this one."""
_STARTING = "its NIC has shown no steps yet: its profiler is not asked before"
_TEXTS: Mapping[Failure, str] = {
    "busy": "the program profiles itself, and a process has one profiler: not asked again",
    "none": "what listens on its port is not a TensorFlow server with a profiler",
    "closed": "no TensorFlow server listens on its port",
    "silent": "its TensorFlow server did not answer in time",
    "invalid": "its TensorFlow server answered with what cannot be a profile",
}


@dataclass(slots=True, frozen=True, kw_only=True)
class Profiled:
    """All windows of a rank."""

    since_s: float
    """When watching began, on the monotonic clock."""
    length_s: float = 0.0
    """Sums over all windows."""
    operations: tuple[layout.OperationSums, ...] = ()
    calls: tuple[layout.Call, ...] = ()
    """In the latest window; by position in ``operations``."""
    latest: ProfilerWindow | None = None
    failure: Failure | None = None
    """Failure of the last request, if it failed."""
    failures: int = 0
    """In a row."""
    pause: int = 0
    """Windows to leave out."""
    doubtful: bool = False
    """A window of ours may still run: it was broken off, or its end was not seen."""
    never: bool = False
    """It is not asked any more."""
    starting: bool = False
    """It was not asked when its turn came: it had made no steps yet."""
    step_s: float | None = None
    """Figures of the latest window; None if it saw no steps."""
    most_s: float = LONGEST_WINDOW_S
    """The longest window that is asked for: less where longer ones failed."""

    def coverage(self, now_s: float) -> float:
        """Return the share of the time that windows cover, at ``now_s`` on the monotonic clock."""
        return min(1.0, self.length_s / max(now_s - self.since_s, self.length_s, 1e-9))


def asked_now(known: Profiled) -> tuple[bool, Profiled]:
    """Return whether a rank is asked in this turn, and what is known then."""
    if known.never:
        return False, known
    if known.pause > 0:
        return False, replace(known, pause=known.pause - 1)
    return True, replace(known, starting=False)


def window_s(known: Profiled, period_s: float | None) -> float:
    """Return the length of the next window; ``period_s`` is the period of bursts on the wire."""
    wanted = _STEPS * (known.step_s or period_s or 0.0)
    if known.step_s is None and known.calls and known.latest is not None:
        wanted = max(wanted, 2 * known.latest.length_s)
    return max(WINDOW_S, min(wanted, known.most_s))


def failed(known: Profiled, failure: Failure) -> Profiled:
    """Return what is known after a failure: longer pauses, or the end."""
    failures = known.failures + 1
    if failure == "busy" and known.doubtful:
        failure = "silent"  # it is our own window, of which we did not see the end
    return replace(
        known,
        failure=failure,
        failures=failures,
        pause=0 if failures <= PATIENCE else min(2 ** min(failures - PATIENCE, 10), MOST_PAUSE),
        doubtful=failure == "silent",
        most_s=known.most_s / 2 if failure in ("silent", "invalid") else known.most_s,
        never=failure in ("busy", "none"),
    )


def starting(known: Profiled) -> Profiled:
    """Return what is known of a rank that is not asked before it makes steps."""
    return replace(known, starting=True)


def refused(known: Profiled) -> Profiled:
    """Return what is known of a rank that is never asked again: it profiles itself."""
    return replace(known, failure="busy", never=True)


def added(
    known: Profiled, profile: WindowProfile, *, name: str, now: float, now_s: float, on_gpu: bool
) -> Profiled:
    """Return what is known after a window of the rank called ``name``.

    ``now`` is since 1970, ``now_s`` on the monotonic clock.
    """
    began_at = profile.began_at / 1e9
    if abs(began_at - now) > _FAR_S:
        return failed(known, "invalid")
    began_s = began_at - now + now_s
    operations = {row.op: row for row in known.operations}
    spans = [(op, begin / 1e9, end / 1e9) for op, begin, end in profile.calls]
    for op, begin, end in spans:
        _count(operations, op, end - begin)
    places = {key: place for place, key in enumerate(operations)}
    # Ranks have no common number of a call, so each has a communicator of its own.
    communicator = zlib.crc32(name.encode())
    calls = tuple(
        layout.Call(places[op], number, began_s + begin, began_s + end, communicator)
        for number, (op, begin, end) in enumerate(spans[-MOST_CALLS:])
    )
    length_s = profile.length / 1e9
    latest = ProfilerWindow(
        ended_at=now,
        length_s=length_s,
        comm_s=profile.comm / 1e9,
        exposed_s=None if on_gpu else profile.exposed / 1e9,
    )
    found = replace(
        known,
        length_s=known.length_s + length_s,
        operations=tuple(operations.values()),
        calls=calls,
        latest=latest,
        failure=None,
        failures=0,
        doubtful=False,
    )
    return _with_steps(found, profile)


def _with_steps(known: Profiled, profile: WindowProfile) -> Profiled:
    """Count the steps of the latest window, and in them the waits for the input."""
    steps = steps_of(_Steps(known.operations, known.calls), 2)
    known = replace(known, step_s=None if steps is None else steps.step_s)
    if steps is None or not profile.waits:
        return known
    operations = {row.op: row for row in known.operations}
    for _ in range(steps.steps):
        _count(operations, STEP, steps.step_s)
    waited_s = profile.waited / profile.length * steps.step_s
    for _ in range(steps.steps):
        _count(operations, INPUT_WAIT, waited_s)
    return replace(known, operations=tuple(operations.values()))


@dataclass(slots=True, frozen=True)
class _Steps:
    """A recording as :func:`steps_of` accepts it."""

    operations: tuple[layout.OperationSums, ...]
    calls: tuple[layout.Call, ...]
    rank: int = 0
    wire: None = None
    profiler: None = None


def _count(rows: dict[str, layout.OperationSums], op: str, seconds: float) -> None:
    row = rows.get(op)
    if row is None:
        row = layout.OperationSums(
            op=op,
            bytes=0,
            dtype="",
            tag="",
            calls=0,
            total_s=0.0,
            min_s=seconds,
            max_s=seconds,
            histogram=(0,) * BINS,
            source="tf",
            timing="host",
            exact=True,
        )
    bins = list(row.histogram)
    bins[bin_of(seconds)] += 1
    rows[op] = replace(
        row,
        calls=row.calls + 1,
        total_s=row.total_s + seconds,
        min_s=min(row.min_s, seconds),
        max_s=max(row.max_s, seconds),
        histogram=tuple(bins),
    )


def shown(read: RecordingState, known: Profiled | None) -> RecordingState:
    """Return the figures of recorders' files together with the windows'."""
    silent = known is None or (known.latest is None and known.failure is None)
    if known is None or (silent and not known.starting):
        return read
    if read.operations:
        return read  # PyTorch's or NCCL's recorder reports more
    texts = [_TEXTS[known.failure]] if known.failure is not None else []
    if known.starting:
        texts = [_STARTING]
    state: State = "recording" if known.latest is not None else "absent"
    if known.failure == "busy":
        state = "refused"
    if read.state == "damaged":
        state, texts = "damaged", [read.reason, *texts]
    return replace(
        read,
        state=state,
        reason="; ".join(texts),
        time=known.latest.ended_at if known.latest is not None else read.time,
        operations=known.operations,
        calls=known.calls,
    )
