"""What is needed of jobs' checkpoints after a restart of the controller. Part of the state.

What servers hold is not here: they report it again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple

from checkpoints.ledger import Key, LedgerRun
from checkpoints.schemes import Layout
from controller.state.kinds.forms import HEX, Flat
from controller.state.kinds.kind import Kind, Records

RunEnd = Literal["", "own", "unfit", "stopped"]
"""How a run ended: not yet, by the death of a rank, with lost hardware, or on request."""

KEPT_RUNS = 256
"""Runs of one job: the newest."""


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointRun:
    """One run of a job's ranks. Durable before its first rank starts."""

    epoch: int
    run: LedgerRun
    endpoints: tuple[str, ...]
    """In rank order."""
    began_at: float
    stepped: bool = False
    """It made a step after what it had loaded."""
    end: RunEnd = ""


class SpoiledStep(NamedTuple):
    """A step of one run that is not to be loaded again."""

    step: int
    epoch: int
    why: str

    @property
    def key(self) -> Key:
        """The step."""
        return Key(self.step, self.epoch)


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointRecord:
    """The checkpoints of one submitted job."""

    folder: str
    """Names its folders on servers; never used twice."""
    job: str
    key: Annotated[bytes, HEX] = field(repr=False)
    """Authorises transfers between servers."""
    runs: tuple[Annotated[CheckpointRun, Flat(run=LedgerRun, layout=Layout)], ...] = ()
    """Oldest first."""
    spoiled: tuple[SpoiledStep, ...] = ()
    servers: frozenset[str] = frozenset()
    """Where folders may be."""
    remove_after: float | None = None
    """When its folders go, in seconds since 1970; None while the job may run again."""


CHECKPOINTS = Kind("checkpoints", CheckpointRecord, key="folder", order="folder", columns=("job",))
Checkpoints = Records[CheckpointRecord]
"""Every record by folder."""
