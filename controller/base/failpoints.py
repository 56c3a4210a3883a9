"""Named points at which the controller can be made to die, to test recovery.

Every durable write that begins or ends something, and every call that changes a device, is wrapped
in ``around(name)``: the point ``name.before`` is passed when nothing has happened yet,
``name.after`` when the device has answered and the controller has not acted on it yet.
``LIGHTLOOM_FAILPOINT=switch.after`` (or ``switch.after:3``, the third time) ends the process there
with status 137, as SIGKILL would. ``LIGHTLOOM_FAILPOINT=@FILE`` reads the point's name from a file
at every passage, so that a running controller can be given a point to die at. Unarmed, a point
costs a comparison.

Writes of what was decided or reported before (events, queue leads, keys of requests, times of
checks, the term, accounts) have no points: a death there equals a death between two other points,
and the tests make every commit fail in every way. Reads (maps, counters, container lists) have none
either, because they change nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from controller.base.errors import ServiceError

VARIABLE = "LIGHTLOOM_FAILPOINT"
EXIT_STATUS = 137
"""A shell's status for a process that SIGKILL ended."""

WRITES = (
    "log-admit",
    "log-proven",
    "log-commit",
    "log-recovered",
    "save-intent",
    "save-job",
    "save-quarantine",
)
"""Durable writes: three of a transaction, its end after a recovery, and those outside of one."""
CALLS = (
    "freeze",
    "stop-for-restart",
    "drain",
    "switch",
    "qualify",
    "route",
    "thaw",
    "start",
    "stop",
    "flows",
)
"""Calls that change a device or make it send; ``flows`` are those outside transactions."""
NOTICES = ("notice", "save-notice")
"""A notice's delivery, and the write that it was delivered; passed at sites with receivers."""
CHECKPOINTS = ("fetch", "save-run")
"""The fetch of what a run resumes from, and its write; passed by jobs with checkpoints."""
SWAPS = (
    "swap-decide",
    "swap-fence",
    "swap-stop",
    "swap-light",
    "swap-fetch",
    "swap-epoch",
    "swap-first",
)
"""The steps of a recovery from lost hardware, in order; passed where hardware is lost."""


def points(names: Iterable[str]) -> tuple[str, ...]:
    """Return both points of each name."""
    return tuple(f"{name}.{side}" for name in names for side in ("before", "after"))


POINTS = points((*WRITES, *CALLS))
"""What every site passes."""
SWAP_POINTS = points(SWAPS)
"""What a recovery from lost hardware passes."""
_ALL = (*POINTS, *points((*NOTICES, *CHECKPOINTS)), *SWAP_POINTS)

Hook = Callable[[str], Awaitable[None]]

_hook: Hook | None = None


@asynccontextmanager
async def around(name: str) -> AsyncIterator[None]:
    """Pass ``name.before``, do the work, pass ``name.after`` unless the work raised."""
    if _hook is not None:
        await _hook(f"{name}.before")
    yield
    if _hook is not None:
        await _hook(f"{name}.after")


@contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Call ``hook`` with the name of every point that is passed, until the block ends."""
    global _hook  # noqa: PLW0603 - one process has one set of failpoints
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


@contextmanager
def armed(setting: str) -> Iterator[None]:
    """Die where ``setting`` (``name[:n]`` or ``@FILE``) says; no-op when empty.

    ServiceError ``invalid`` for a name that is not a failpoint.
    """
    if not setting:
        yield
        return
    if setting.startswith("@"):
        with hooked(_told_by(Path(setting[1:]))):
            yield
        return
    name, _, times = setting.partition(":")
    if name not in _ALL or not (times or "1").isdecimal() or int(times or "1") < 1:
        raise ServiceError(
            "invalid",
            f"{setting} is not a failpoint",
            object=f"environment/{VARIABLE}",
            hint=f"name[:n] or @FILE, with one of {', '.join(_ALL)}",
        )
    left = int(times or "1")

    async def die(point: str) -> None:
        nonlocal left
        left -= point == name
        if left == 0:
            os._exit(EXIT_STATUS)

    with hooked(die):
        yield


def _told_by(file: Path) -> Hook:
    """Return a hook that dies at the point that ``file`` names at that moment."""

    async def die(point: str) -> None:
        # In the loop on purpose: no other task may run between the passage and the answer.
        if file.exists() and file.read_text(encoding="utf-8").strip() == point:  # noqa: ASYNC240
            file.unlink()  # noqa: ASYNC240
            os._exit(EXIT_STATUS)

    return die
