"""Runs random maps under random faults: ``python -m benchmarks.ocs_faults --scripts 100000``.

It prints one JSON document; ``wrong_maps`` and ``frames_dropped`` must be 0. The scripts
are those of tests/contract/test_ocs_property.py, with other seeds, in virtual time. With
``--resume FILE`` it continues where the last run with that file stopped, and with
``--seconds`` it stops in time (exit status 3 while scripts remain), so that a long run can be
split into parts:

    until python -m benchmarks.ocs_faults --resume faults.json --seconds 60; do :; done
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import structlog

from testbed.simulated.loop import VirtualPolicy, simulation
from tests.contract.ocs_script import DIALECTS, Dialect, Tally, play, small

FIRST_SEED = 1_000_000
STEP = 100
"""Scripts between two checks of the clock."""
WRONG, LEFT = 1, 3

Sums = dict[str, Any]


def main() -> int:
    """Run the scripts; return status 1 if one failed, 3 if the time was up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit in seconds")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="results so far")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.WARNING)
    each = -(-options.scripts // len(DIALECTS))
    done = load(options.resume)
    asyncio.set_event_loop_policy(VirtualPolicy())
    began = time.monotonic()
    names = {f"{dialect} {dialect.front_end}": dialect for dialect in DIALECTS}
    with tempfile.TemporaryDirectory() as folder:
        while left := [name for name in names if count(done, name) < each]:
            for name in left:
                if time.monotonic() - began > options.seconds:
                    return LEFT
                add(done, name, part(names[name], count(done, name), each, Path(folder)))
                if options.resume is not None:
                    options.resume.write_text(json.dumps(done, indent=1), "utf-8")
            sys.stderr.write(f"{sum(count(done, name) for name in names)} scripts\n")
    document = {key: sum(sums[key] for sums in done.values()) for key in (*COUNTED, "seconds")}
    document["first_wrong"] = [text for sums in done.values() for text in sums["first_wrong"]][:5]
    print(json.dumps({**document, "dialects": done}, indent=1))
    return WRONG if document["wrong_maps"] or document["frames_dropped"] else 0


COUNTED = ("scripts", "converged", "explained", "frames", "frames_dropped", "wrong_maps")


def load(file: Path | None) -> dict[str, Sums]:
    """Read the sums of earlier parts, by dialect."""
    if file is None or not file.exists():
        return {}
    found: dict[str, Sums] = json.loads(file.read_text("utf-8"))
    return found


def count(done: dict[str, Sums], name: str) -> int:
    """Return the number of finished scripts of a dialect."""
    return int(done[name]["scripts"]) if name in done else 0


def part(dialect: Dialect, start: int, each: int, folder: Path) -> tuple[Tally, float]:
    """Run the next scripts of a dialect; return their tally and their duration in seconds."""
    personality = small(dialect.personality)
    tally = Tally()

    async def scripts() -> None:
        for number in range(start, min(start + STEP, each)):
            tally.add(await play(dialect, personality, FIRST_SEED + number, folder))

    began = time.monotonic()
    with simulation():
        asyncio.run(scripts())
    return tally, time.monotonic() - began


def add(done: dict[str, Sums], name: str, ran: tuple[Tally, float]) -> None:
    """Add one part to the sums."""
    tally, seconds = ran
    sums = done.setdefault(name, {**dict.fromkeys(COUNTED, 0), "seconds": 0.0, "first_wrong": []})
    new = (
        *(tally.scripts, tally.converged, tally.explained),
        *(tally.frames, tally.dropped, len(tally.wrong)),
    )
    for key, value in zip(COUNTED, new, strict=True):
        sums[key] += value
    sums["seconds"] = round(sums["seconds"] + seconds, 1)
    sums["first_wrong"] = [*sums["first_wrong"], *tally.wrong][:5]


if __name__ == "__main__":
    sys.exit(main())
