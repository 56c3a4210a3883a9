"""What a rank writes that fills its recorder's file: all rows, bins and calls, all different."""

from __future__ import annotations

from protos import agent_pb2 as pb
from recorder.python.lightloom_writer import BINS

ROWS = 1023
CALLS = 512


def full_recording(job: str, rank: int, epoch: int, turn: int = 1) -> pb.Recording:
    """Return a recording as an agent sends it; ``turn`` counts the calls on."""
    rows = [
        pb.RecordedOperation(
            op=f"op_{number}",
            bytes=2**40 + number,
            dtype=f"type-{number}",
            tag=f"tag-{number}",
            calls=2**50 * turn + number,
            total_s=1e4 * turn + number,
            min_s=0.001 * (number + 1),
            max_s=1e4 + number,
            histogram=[2**32 * turn + 1000 * number + i for i in range(BINS)],
            source="torch",
            timing="host",
            exact=True,
        )
        for number in range(ROWS)
    ]
    calls = [
        pb.RecordedCall(
            operation=ROWS - 1 - number % 8,
            sequence=2**40 + number,
            issued_s=1e6 * turn + number,
            ended_s=1e6 * turn + number + 0.5,
            communicator=2**60 + number,
        )
        for number in range(CALLS)
    ]
    return pb.Recording(
        job=job,
        rank=rank,
        epoch=epoch,
        state="recording",
        time=float(turn),
        operations=rows,
        calls=calls,
    )
