"""The ring without a framework, over loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from testbed import ring_steps

STEPS, BYTES = 12, 300_000


def test_ranks_reduce_in_lock_step_and_print_their_steps() -> None:
    addresses = [f"127.77.{os.getpid() % 250 + 1}.{rank + 1}" for rank in range(3)]
    text = Path(ring_steps.__file__).read_text("utf-8")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", text, "0.001", str(BYTES), str(STEPS)],
            env={"LIGHTLOOM_RANK": str(rank), "LIGHTLOOM_ADDRESSES": ",".join(addresses)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    for text in said:
        start, *steps = map(json.loads, text.splitlines())
        assert start == {"event": "start", "gradient_bytes": BYTES}
        assert [step["step"] for step in steps] == list(range(STEPS))
        assert all(step["step_s"] >= step["comm_s"] > 0 for step in steps)
