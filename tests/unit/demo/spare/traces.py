"""Traces of a trainer that loses a rank and continues."""

from __future__ import annotations

import json
from typing import Any


def line(event: str, t: float, **fields: Any) -> str:
    return json.dumps({"event": event, "t": t, **fields})


def run(begin: float, first: int, steps: int, *, restored: int | None = None) -> list[str]:
    """Import takes 10 s, tracing 5 s, the first step 2 s and each other one 1 s."""
    lines = [line("begin", begin), line("start", begin + 10), line("ready", begin + 15)]
    if restored is not None:
        lines.append(line("restored", begin + 14, step=restored))
    lines += [
        line("step", begin + 17 + n, step=first + n, step_s=1.0, loss=0.5) for n in range(steps)
    ]
    return lines


LOST_AT = 40.5
BEFORE = [*run(0.0, 0, 24), line("checkpoint", 37.1, step=20, blocked_s=0.02)]
AFTER = [*run(43.0, 20, 20, restored=20), line("end", 80.0, final_loss=0.25)]
