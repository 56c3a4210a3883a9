"""Lines of measurements of type ``input``."""

from __future__ import annotations

from typing import Any

from measure.kinds import Line


def turn(phase: str, block: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "probe": "phase",
        "phase": phase,
        "block": block,
        "samples": round(rate * 10),
        "seconds": 10.0,
        "wait_s": 2.0,
        "compute_s": 8.0,
        "read_s": 30.0,
        "decode_s": 10.0,
        "read_bytes": 10**9,
        "block_bytes": 10**9,
        "cores": {"container": 0.1, "server": 0.2},
        **more,
    }


def turns(
    rates: dict[str, float], *, run: int = 0, rank: int = 0, blocks: int = 2, **more: Any
) -> list[Line]:
    return [
        Line(run, rank, turn(phase, block, rate, **more))
        for block in range(blocks)
        for phase, rate in rates.items()
    ]


STARVED = {"loader": 40.0, "model": 200.0, "both": 39.0}
