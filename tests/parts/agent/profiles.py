"""Answers of TensorFlow's profiler: a real one, and made ones."""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from pathlib import Path

from protos import profiler_pb2 as pb

GOLDEN = Path(__file__).with_name("data") / "tensorflow-2.21.xz"
"""0.8 s of rank 0 of two: 6 all-reduces in the step's function and one after it, eager; tf.data.

TensorFlow 2.21.0 (cpu), MultiWorkerMirroredStrategy, ring; level 2.
"""
STEP_ENDS_S = (0.0454, 0.2036, 0.3199, 0.4039, 0.4737, 0.5610, 0.6933, 0.7963)
"""Ends of its steps after the window's begin, as the program printed them, with time.time()."""
COLLECTIVES = 7
"""Of a step."""
MS = 1_000_000
BEGAN_AT = 1_800_000_000 * 1000 * MS
"""Of made answers."""


def golden() -> bytes:
    """Return the real answer."""
    return lzma.decompress(GOLDEN.read_bytes())


def made(
    *events: tuple[str, float, float],
    length: float = 2000,
    began_at: int = BEGAN_AT,
    absolute: bool = False,
) -> bytes:
    """Return an answer with events of a name, a begin and an end in ms, each on its own line."""
    host = pb.XPlane(name=b"/host:CPU")
    for number, (name, begin, end) in enumerate(events, 1):
        host.event_metadata[number].name = name.encode()
        line = host.lines.add(timestamp_ns=began_at if absolute else 0)
        line.events.add(
            metadata_id=number,
            offset_ps=round(begin * MS * 1000),
            duration_ps=round((end - begin) * MS * 1000),
        )
    return answer([host, environment(began_at, began_at + round(length * MS))])


def environment(begin: int, end: int) -> pb.XPlane:
    """Return the plane that says when the profile began and ended."""
    plane = pb.XPlane(name=b"Task Environment")
    for number, (name, value) in enumerate(
        ((b"profile_start_time", begin), (b"profile_stop_time", end)), 1
    ):
        plane.stat_metadata[number].name = name
        plane.stats.add(metadata_id=number, uint64_value=value)
    return plane


def answer(planes: Sequence[pb.XPlane]) -> bytes:
    """Return a serialised answer."""
    return pb.ProfileResponse(xspace=pb.XSpace(planes=planes)).SerializeToString()
