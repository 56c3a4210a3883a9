"""The other schedulers whose jobs lightloom observes, and the names of these jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

EngineKind = Literal["slurm"]
"""The kinds that a site file may name."""

NUMBERS: Mapping[str, str] = {"slurm": "[1-9][0-9]{0,9}"}
"""By kind: the pattern of the number that the scheduler itself gives to a job.

``KIND:NUMBER``, such as ``slurm:4711``, is the key of a job, and the scope of its processes.
"""


def is_key(text: str) -> bool:
    """Whether a text is the key of a job of any of them."""
    return any(number_in(text, kind) for kind in NUMBERS)


def number_in(key: str, kind: str) -> str | None:
    """Return the number in the key of a scheduler's job; None for any other text."""
    match = re.fullmatch(f"{kind}:({NUMBERS[kind]})", key)
    return None if match is None else match[1]
