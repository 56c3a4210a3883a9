"""What rings that write checkpoints are asked to do, and what their lines say."""

from __future__ import annotations

import json
from typing import Any

from controller.schema.jobs import read_job
from testbed.kept_ring import RingSize, read
from testbed.ring_checkpoint import expected

RING = RingSize(ranks=2, steps=12, every=3)


def line(rank: int, t: float, event: str, **fields: Any) -> dict[str, Any]:
    return {"rank": rank, "text": json.dumps({"event": event, "t": t, **fields})}


def run(rank: int, begin: float, first: int, until: int) -> list[dict[str, Any]]:
    lines = [line(rank, begin, "begin"), line(rank, begin + 0.1, "start", step=first)]
    return lines + [line(rank, begin + 1 + n, "step", step=n) for n in range(first, until)]


def test_a_ring_is_a_valid_job_with_room_for_its_copies() -> None:
    job = read_job(RING.request("red", spares=2))
    assert job.spares == 2
    assert job.checkpoint is not None
    assert job.checkpoint.local.size_bytes >= 6 * RING.size


def test_steps_are_those_of_the_present_run() -> None:
    lines = run(0, 100.0, 0, 8)
    assert read(lines).reached() == 8
    again = [*lines, *run(0, 200.0, 6, 6)]
    assert read(again).reached() == 0, "the second run has not trained yet"
    said = read(reversed([*again, *run(0, 300.0, 6, 10)]))
    assert said.starts == [0, 6, 6]
    assert said.reached() == 10
    assert read([]).reached() == 0


def test_faults_of_any_rank_count_and_other_lines_do_not() -> None:
    lines = [*run(0, 1.0, 0, 2), line(1, 5.0, "fault", why="torn"), {"rank": 0, "text": "Killed"}]
    assert read(lines).faults == ["torn"]


def test_only_the_states_of_an_undisturbed_run_are_right() -> None:
    ends = [line(rank, 9.0, "end", digest=digest) for rank, digest in enumerate(expected(2, 12))]
    assert read(ends).as_undisturbed(RING)
    assert not read(ends[:1]).as_undisturbed(RING)
    assert not read([ends[0], line(1, 9.0, "end", digest="00")]).as_undisturbed(RING)
