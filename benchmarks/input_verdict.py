"""Nine constructed trainings on the rack: disk 5, 50, 500 MB/s x decoding 0, 5, 50 ms a sample.

    lightloom testbed up
    python benchmarks/input_verdict.py --volume results

Each is a measurement ``input`` of a running controller (``lightloom measure input``). A step takes
40 ms for 8 samples of 128 KiB, four workers load. Prints one line per case: expected, found, the
three rates; exits with 1 unless all verdicts are right. The volume must lie on a disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

DISKS = (5, 50, 500)
"""MB/s."""
EXPECTED = {
    0: ("input", "compute", "compute"),
    5: ("input", "compute", "compute"),
    50: ("input", "input", "input"),
}
"""By milliseconds of decoding: the verdict at each disk."""
SETTINGS = {"data": "32m", "sample": "128k", "batch": 8, "step_ms": 40, "workers": 4}


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volume", required=True)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    right = 0
    for decode, expected in EXPECTED.items():
        rows = measure(
            volume=arguments.volume,
            blocks=arguments.blocks,
            seconds=arguments.seconds,
            decode_ms=decode,
            io_limits=",".join(f"{disk}M" for disk in DISKS),
            **SETTINGS,
        )
        for disk, wanted, row in zip(DISKS, expected, rows, strict=True):
            right += row["limit"] == wanted
            rates = " ".join(
                f"{row[f'{name}_samples_s'] or 0:8.1f}" for name in ("ceiling", "model", "together")
            )
            print(f"{disk:4} MB/s {decode:3} ms  {wanted:8} {row['limit'] or '-':8} {rates}")
    print(f"{right} of {len(DISKS) * len(EXPECTED)} right")
    return 0 if right == len(DISKS) * len(EXPECTED) else 1


def measure(**settings: Any) -> list[dict[str, Any]]:
    """Return the rows of one measurement."""
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    done = subprocess.run(
        ["lightloom", "measure", "input", *sets, "-o", "json"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
    )
    document = json.loads(done.stdout)
    rows: list[dict[str, Any]] = document.get("result", document)["rows"]
    return rows


if __name__ == "__main__":
    sys.exit(main())
