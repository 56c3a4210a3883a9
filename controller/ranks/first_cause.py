"""Decides which rank of a failed job failed first, and what ended the others. Pure.

The ranks of a job work in step: when one fails, the others lose their connections to it and fail
as well, within milliseconds. The clocks of their servers differ, so ends within a second are
compared by the strength of the evidence: a rank that the kernel killed did not follow another one.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import pairwise

from controller.devices.engine import RankState, RankStatus
from controller.state.records import Failure

SAME_TIME_S = 1.0
"""Ends of ranks on different servers within this time count as simultaneous."""
MAX_LINES = 20
MAX_LINE_CHARS = 500
MAX_LINES_CHARS = 4096
"""Of the last lines of the rank that failed first."""
_MAX_RANGES = 8
_ASKED_TO_END = frozenset({signal.SIGTERM, signal.SIGKILL, signal.SIGINT})
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:reset|closed|refused|aborted|lost)|broken pipe|ECONNRESET|EPIPE"
    r"|socket timeout|peer (?:has )?(?:closed|died|disconnected)|remote process exited"
    r"|NCCL (?:error|communicator was aborted)|ncclRemoteError|ncclSystemError"
    r"|ProcessGroupNCCL.{0,80}(?:timeout|timed out|watchdog)|collective.{0,80}timed? ?out"
    r"|heartbeat.{0,40}time|No route to host",
    re.IGNORECASE,
)
"""What programs write when another rank is gone."""


class Evidence(IntEnum):
    """How likely a rank failed by itself; higher is stronger."""

    LOST_PEER = 0
    """Its own output says that it lost another rank."""
    EXIT = 1
    GONE = 2
    """Its container is gone, and its server answers."""
    SIGNAL = 3
    DEVICE = 4
    """The agent names a reason: its GPU, its NIC, its command."""
    OOM = 5
    """The kernel killed it for lack of memory."""


def first_cause(
    ends: Sequence[RankStatus],
    output: Mapping[int, Sequence[str]] | None = None,
    stopped: frozenset[int] = frozenset(),
) -> Failure | None:
    """Return why the job failed; None if no rank failed.

    ``ends`` are the ranks of one run, with the state ABSENT for a container that is gone;
    ``output`` the last lines of some. Ranks in ``stopped`` lived when the job was being stopped.
    """
    lines = output or {}
    found = {
        s.rank: grade
        for s in ends
        if (grade := evidence(s, lines.get(s.rank, ()), s.rank in stopped)) is not None
    }
    if not found:
        return None
    own = {rank for rank, grade in found.items() if grade > Evidence.LOST_PEER} or found.keys()
    candidates = [s for s in ends if s.rank in own]
    known = [at for s in candidates if (at := _ended_at(s)) is not None]
    latest = min(known) + SAME_TIME_S if known else 0.0
    near = [s for s in candidates if (at := _ended_at(s)) is None or at <= latest]
    first = min(near, key=lambda s: (-found[s.rank], _ended_at(s) or 0.0, s.rank))
    return replace(blamed(first), others=_others(first.rank, ends, found, stopped))


def blamed(status: RankStatus) -> Failure:
    """Return the failure of a job whose only known cause is this rank."""
    number = signal_of(status.exit_code)
    return Failure(
        rank=status.rank,
        endpoint=status.endpoint,
        epoch=status.epoch,
        exit_code=status.exit_code,
        signal=number.name if number else "",
        oom=_ran_out(status),
        cause=_cause(status),
        fault=status.fault,
    )


def evidence(status: RankStatus, lines: Sequence[str], stopped: bool) -> Evidence | None:
    """Grade how a rank ended; None if it did not fail by itself."""
    if status.state is RankState.ABSENT:
        return Evidence.GONE
    if status.state is not RankState.EXITED:
        return Evidence.DEVICE if status.reason else None
    number = signal_of(status.exit_code)
    if stopped:
        return Evidence.SIGNAL if number and number not in _ASKED_TO_END else None
    if _ran_out(status):
        return Evidence.OOM
    return _exit_evidence(status, number, lines) if status.exit_code else None


def _exit_evidence(
    status: RankStatus, number: signal.Signals | None, lines: Sequence[str]
) -> Evidence:
    if status.reason:
        return Evidence.DEVICE
    lost = any(_LOST_PEER.search(line) for line in lines)
    if lost and number in (None, signal.SIGABRT):  # a watchdog aborts the program
        return Evidence.LOST_PEER
    return Evidence.SIGNAL if number else Evidence.EXIT


def signal_of(exit_code: int | None) -> signal.Signals | None:
    """Return the signal that an exit code stands for (128 and its number)."""
    try:
        return signal.Signals(exit_code - 128) if exit_code is not None else None
    except ValueError:
        return None


def how(status: RankStatus) -> str:
    """Say how a rank ended: ``exited with code 3``, ``was ended by SIGSEGV (exit code 139)``."""
    if _ran_out(status):
        return "ran out of memory"
    number = signal_of(status.exit_code)
    if number is not None:
        return f"was ended by {number.name} (exit code {status.exit_code})"
    return f"exited with code {status.exit_code}"


def _ran_out(status: RankStatus) -> bool:
    """Whether the rank itself was killed for lack of memory.

    ``oom`` counts every process that its container ever had, and never goes back: a helper that
    was killed hours ago says nothing about a rank that exits or crashes.
    """
    return status.oom and signal_of(status.exit_code) is signal.SIGKILL


def last_lines(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the last lines within the limits, long ones cut."""
    kept: list[str] = []
    left = MAX_LINES_CHARS
    for text in reversed(texts[-MAX_LINES:]):
        line = text if len(text) <= MAX_LINE_CHARS else f"{text[: MAX_LINE_CHARS - 1]}…"
        left -= len(line)
        if left < 0:
            break
        kept.insert(0, line)
    return tuple(kept)


def ranks_text(ranks: Sequence[int]) -> str:
    """Name ranks: ``rank 3``, ``ranks 0-2, 5``."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b != a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b != a + 1), numbers[-1]]
    spans = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    more = f" and more, {len(numbers)} in all" if len(spans) > _MAX_RANGES else ""
    return f"ranks {', '.join(spans[:_MAX_RANGES])}{more}"


def _ended_at(status: RankStatus) -> float | None:
    return status.finished_at if status.state is RankState.EXITED else None


def _cause(status: RankStatus) -> str:
    if status.state is RankState.ABSENT:
        return f"the container of rank {status.rank} is gone"
    if status.state is not RankState.EXITED:
        return f"rank {status.rank}: {status.reason}"
    if _ran_out(status):
        return f"rank {status.rank} {how(status)}"
    why = f": {status.reason}" if status.reason else ""
    killed = "; the kernel had killed a process of it for lack of memory" if status.oom else ""
    return f"rank {status.rank} {how(status)}{why}{killed}"


def _others(
    first: int,
    ends: Sequence[RankStatus],
    found: Mapping[int, Evidence],
    stopped: frozenset[int],
) -> str:
    groups: dict[str, list[int]] = {}
    for status in sorted(ends, key=lambda s: s.rank):
        if status.rank != first:
            what = _follows(status, found.get(status.rank), status.rank in stopped)
            groups.setdefault(what, []).append(status.rank)
    return "; ".join(what.format(ranks_text(ranks)) for what, ranks in groups.items())


def _follows(status: RankStatus, grade: Evidence | None, stopped: bool) -> str:
    """Say what ended a rank that was not the first, with ``{}`` for its name."""
    if status.state is RankState.ABSENT:
        return "the container of {} is gone"
    if stopped and (grade is None or status.state is not RankState.EXITED):
        return "lightloom stopped {}"
    if status.state is not RankState.EXITED:
        return "{} still ran"
    if grade is Evidence.LOST_PEER:
        return "{} lost the connection to another rank"
    return f"{{}} {how(status)}" if status.exit_code else "{} had completed"
