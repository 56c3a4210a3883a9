"""Reduces the answer of TensorFlow's profiler to spans of collectives. Pure; runs in a child.

The worker is a job's program: its answer may be any bytes. Numbers are read as they are and checked
against the window; numbers of planes, lines and events are bounded.

In TensorFlow 2.21 (host level 2) events called ``NODE:OPERATION`` count: collectives, which last
as long as the operation itself (base_collective_executor.cc), waits for the input, and other
kernels, which are computation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from protos import profiler_pb2 as pb

HOST = b"/host:CPU"
ENVIRONMENT = b"Task Environment"
MOST_PLANES = 64
MOST_LINES = 4096
MOST_EVENTS = 500_000
MOST_CALLS = 2048
"""Collectives of one window; the latest count."""
LONGEST_NS = 60 * 10**9
"""Events of a window."""

_OPERATIONS = {
    b"CollectiveReduce": "all_reduce",
    b"CollectiveReduceV2": "all_reduce",
    b"CollectiveReduceV3": "all_reduce",
    b"CollectiveReduceScatterV2": "reduce_scatter",
    b"CollectiveGather": "all_gather",
    b"CollectiveGatherV2": "all_gather",
    b"CollectiveAllToAllV2": "alltoall",
    b"CollectiveAllToAllV3": "alltoall",
    b"CollectiveBcastSend": "broadcast",
    b"CollectiveBcastSendV2": "broadcast",
    b"CollectiveBcastRecv": "broadcast",
    b"CollectiveBcastRecvV2": "broadcast",
}
"""Kernels of tensorflow/core/kernels/collective_ops.cc by nccl-tests' names."""
_INPUTS = frozenset(
    b"IteratorGetNext IteratorGetNextSync IteratorGetNextAsOptional"
    b" MultiDeviceIteratorGetNextFromShard".split()
)
_CALLERS = frozenset(
    b"PartitionedCall StatefulPartitionedCall RemoteCall SymbolicGradient While StatelessWhile If"
    b" StatelessIf Case StatelessCase PyFunc EagerPyFunc Barrier"
    b" _Recv _HostRecv _Send _HostSend".split()
)
"""Operations that contain or await others: the time inside of them is not computation."""
_KERNEL = re.compile(rb"(?:EagerLocalExecute: |[^:]{1,500}:)(_?[A-Z]\w{0,99})")

Span = tuple[int, int]
"""Begin and end, in nanoseconds since the begin of the window."""


class InvalidError(Exception):
    """The answer cannot be a profile."""


@dataclass(slots=True, frozen=True, kw_only=True)
class WindowProfile:
    """The spans of one window in nanoseconds, since the begin of the window."""

    began_at: int
    """Since 1970, by the worker's clock."""
    length: int
    calls: tuple[tuple[str, int, int], ...]
    """Operation, begin and end of the collectives that began and ended in the window, by begin."""
    comm: int
    """Time in which a collective was under way."""
    exposed: int
    """That in which no kernel computed meanwhile."""
    waits: int
    waited: int
    """Number of waits for the input, and their time."""


def read(data: bytes) -> WindowProfile:
    """Return the profile of a serialised ``ProfileResponse``. Raises InvalidError only.

    Memory is bounded by the caller's limits: protobuf takes up to 30 times the size of ``data``.
    """
    try:
        space = pb.ProfileResponse.FromString(data).xspace
    except DecodeError as error:
        raise InvalidError("the answer is not a message of the profiler") from error
    planes = space.planes[:MOST_PLANES]
    began_at, length = _window(planes)
    calls: list[tuple[str, int, int]] = []
    waits: list[Span] = []
    kernels: list[Span] = []
    lines = events = 0
    for plane in planes:
        if plane.name != HOST:
            continue
        kinds = {number: _kind(data.name) for number, data in plane.event_metadata.items()}
        for line in plane.lines:
            lines, events = lines + 1, events + len(line.events)
            if lines > MOST_LINES or events > MOST_EVENTS:
                raise InvalidError("the answer has too many events")
            offset = _offset(line.timestamp_ns, began_at)
            for event in line.events:
                kind = kinds.get(event.metadata_id, b"")
                begin = offset + event.offset_ps // 1000
                end = begin + event.duration_ps // 1000
                if not kind or not 0 <= begin <= end <= length + LONGEST_NS:
                    continue
                if kind in _OPERATIONS:
                    calls.append((_OPERATIONS[kind], begin, end))
                elif kind in _INPUTS:
                    waits.append((begin, end))
                else:
                    kernels.append((begin, end))
    calls = sorted(calls, key=lambda call: call[1:])[-MOST_CALLS:]
    comm = union((begin, end) for _, begin, end in calls)
    waited = union(waits)
    return WindowProfile(
        began_at=began_at,
        length=length,
        calls=tuple(calls),
        comm=_length(comm),
        exposed=_length(comm) - _shared(comm, union(kernels)),
        waits=len(waited),
        waited=_length(waited),
    )


def _window(planes: Sequence[pb.XPlane]) -> Span:
    """Return when the window began, in nanoseconds since 1970, and its length."""
    for plane in planes:
        if plane.name != ENVIRONMENT:
            continue
        names = {number: data.name for number, data in plane.stat_metadata.items()}
        found = {
            names.get(stat.metadata_id, b""): stat.uint64_value or stat.int64_value
            for stat in plane.stats
        }
        begin, end = found.get(b"profile_start_time", 0), found.get(b"profile_stop_time", 0)
        if begin > 0 and 0 < end - begin <= LONGEST_NS:
            return begin, end - begin
    raise InvalidError("the answer lacks the begin and end of the profile")


def _offset(timestamp_ns: int, began_at: int) -> int:
    """Return a line's begin, relative to the window's: newer versions write it so."""
    return timestamp_ns - began_at if timestamp_ns >= began_at else timestamp_ns


def _kind(name: bytes) -> bytes:
    """Return the operation of an event that counts; empty for others."""
    match = _KERNEL.fullmatch(name)
    if match is None:
        return b""
    kind = match[1]
    eager = name.startswith(b"EagerLocalExecute")
    # An eager operation waits for its kernel, which has an event of its own, but for the input.
    return b"" if kind in _CALLERS or (eager and kind not in _INPUTS) else kind


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the times that are inside of at least one span, in order and apart."""
    joined: list[Span] = []
    for begin, end in sorted(spans):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def _length(spans: Sequence[Span]) -> int:
    return sum(end - begin for begin, end in spans)


def _shared(left: Sequence[Span], right: Sequence[Span]) -> int:
    """Return the time inside of both of two unions."""
    shared = i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        shared += max(0, end - begin)
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return shared
