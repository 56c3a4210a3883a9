"""What the analysis of communication reads of a rank's recording; seconds and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

CallSource = Literal["nccl", "torch", "tf"]
Timing = Literal["device", "host", "issue"]

STEP = "step"
INPUT_WAIT = "input_wait"
SETUP = "setup"
"""The tag of calls before the program's first step."""


class CommOperation(Protocol):
    """Sums over all calls of one operation, size, type and tag since the rank started."""

    @property
    def op(self) -> str:
        """Its name in nccl-tests; also ``step``, ``input_wait`` and ``other``."""
        ...

    @property
    def bytes(self) -> int:
        """S of nccl-tests: the whole array."""
        ...

    @property
    def dtype(self) -> str:
        """As nccl-tests names it."""
        ...

    @property
    def tag(self) -> str:
        """``setup`` or nothing."""
        ...

    @property
    def calls(self) -> int:
        """All of them, also where times are sampled."""
        ...

    @property
    def total_s(self) -> float:
        """Time of all calls."""
        ...

    @property
    def min_s(self) -> float:
        """Of the timed calls."""
        ...

    @property
    def max_s(self) -> float:
        """Of the timed calls."""
        ...

    @property
    def histogram(self) -> Sequence[int]:
        """Timed calls: bin i has those from 2^(i/4) to 2^((i+1)/4) microseconds."""
        ...

    @property
    def source(self) -> CallSource:
        """Who recorded it."""
        ...

    @property
    def timing(self) -> Timing:
        """What a duration measures; ``issue`` is only the time until a call returned."""
        ...

    @property
    def exact(self) -> bool:
        """False where times are of a sample."""
        ...


class CommCall(Protocol):
    """One call; times are of its server's monotonic clock."""

    @property
    def operation(self) -> int:
        """Position in the recording's operations."""
        ...

    @property
    def sequence(self) -> int:
        """Counts the calls of its communicator on this rank."""
        ...

    @property
    def issued_s(self) -> float:
        """When the program asked for it."""
        ...

    @property
    def ended_s(self) -> float | None:
        """None while it runs, and where only the issue is known."""
        ...

    @property
    def communicator(self) -> int:
        """The same number on all its ranks."""
        ...


class Wire(Protocol):
    """Bursts of one window; medians, None where nothing repeats."""

    @property
    def bursts(self) -> int:
        """Number of bursts."""
        ...

    @property
    def period_s(self) -> float | None:
        """From begin to begin."""
        ...

    @property
    def burst_s(self) -> float | None:
        """Length of a burst."""
        ...

    @property
    def sent_bytes(self) -> float | None:
        """Bytes of one burst, with headers."""
        ...

    @property
    def spread(self) -> float | None:
        """Half the 95 % interval of the period, relative."""
        ...


class Profiler(Protocol):
    """The latest window of a TensorFlow worker's profiler."""

    @property
    def comm_s(self) -> float:
        """Time in which a collective was under way."""
        ...

    @property
    def exposed_s(self) -> float | None:
        """That in which no kernel computed; None where that is not known."""
        ...


class RecordedRank(Protocol):
    """What is known of one rank."""

    @property
    def rank(self) -> int:
        """Its number."""
        ...

    @property
    def operations(self) -> Sequence[CommOperation]:
        """In any order."""
        ...

    @property
    def calls(self) -> Sequence[CommCall]:
        """The latest, in the order of their issue."""
        ...

    @property
    def wire(self) -> Wire | None:
        """None before the first sample of its NIC."""
        ...

    @property
    def profiler(self) -> Profiler | None:
        """None without TensorFlow, or when it is not read."""
        ...


def is_collective(operation: CommOperation) -> bool:
    """Return whether ranks communicate in it."""
    return operation.op not in (STEP, INPUT_WAIT)


def counted(operations: Sequence[CommOperation]) -> list[int]:
    """Return the positions of the operations that count, each call of a rank once.

    Where NCCL's plug-in has recorded calls, PyTorch's calls of which only the issue is known are
    NCCL's, seen a second time.
    """
    twice = any(o.source == "nccl" and o.calls and is_collective(o) for o in operations)
    return [
        position
        for position, o in enumerate(operations)
        if not (twice and o.source == "torch" and o.timing == "issue" and is_collective(o))
    ]
