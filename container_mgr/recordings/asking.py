"""Starts the process that asks a worker's profiler, and checks what it prints."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any, Literal, cast

from container_mgr.recordings.profiler import LATE_S
from container_mgr.recordings.xspace import LONGEST_NS, MOST_CALLS, WindowProfile

Failure = Literal["busy", "none", "closed", "silent", "invalid"]

MOST_PRINTED = 512 * 1024
_START_S = 10.0
"""Time for the process to start, on a busy machine, beyond the limit of the request."""
_FAILURES = ("busy", "none", "closed", "silent", "invalid")
_OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "alltoall", "broadcast")


class AskError(Exception):
    """The profiler gave no profile."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


async def ask(pidfd: int, address: str, seconds: float) -> WindowProfile:
    """Return the next ``seconds`` of the worker at ``address``, in the network behind ``pidfd``.

    Takes up to 20 s longer. Raises AskError. OSError where no process can be started.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "container_mgr.recordings.profiler"),
        *(str(pidfd), address, f"{seconds:g}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=(pidfd,),
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd="/",
        limit=MOST_PRINTED,
    )
    try:
        async with asyncio.timeout(seconds + LATE_S + _START_S):
            printed = await _read(process)
            await process.wait()
    except TimeoutError as error:
        raise AskError("silent") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return profile_of(printed)


async def _read(process: asyncio.subprocess.Process) -> bytes:
    """Return what it prints until its end. Raises AskError when that is too much."""
    printed = b""
    while process.stdout is not None and (more := await process.stdout.read(MOST_PRINTED)):
        printed += more
        if len(printed) > MOST_PRINTED:
            raise AskError("invalid")
    return printed


def profile_of(printed: bytes) -> WindowProfile:
    """Return the profile that a process printed. Raises AskError."""
    try:
        found = json.loads(printed)
    except (ValueError, RecursionError) as error:
        raise AskError("invalid") from error  # it was killed for its memory or time
    if not isinstance(found, dict):
        raise AskError("invalid")
    if "failure" in found:
        failure = found["failure"]
        raise AskError(cast("Failure", failure) if failure in _FAILURES else "invalid")
    calls = found.get("calls")
    numbers = [found.get(name) for name in ("length", "comm", "exposed", "waited", "waits")]
    if (
        not isinstance(calls, list)
        or len(calls) > MOST_CALLS
        or not all(_is_call(call) for call in calls)
        or not all(_is_time(number) for number in numbers)
        or not _is_number(found.get("began_at"), 1 << 63)
        or not found["length"] > 0
        or not found["exposed"] <= found["comm"]
    ):
        raise AskError("invalid")
    fields = {name: found[name] for name in WindowProfile.__slots__ if name != "calls"}
    return WindowProfile(calls=tuple((op, begin, end) for op, begin, end in calls), **fields)


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, list)
        and len(call) == 3
        and call[0] in _OPERATIONS
        and _is_time(call[1])
        and _is_time(call[2])
        and bool(call[1] <= call[2])
    )


def _is_time(value: Any) -> bool:
    return _is_number(value, 2 * LONGEST_NS)


def _is_number(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most
