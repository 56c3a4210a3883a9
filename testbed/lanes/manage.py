"""Makes, lists and ends lanes, and removes those whose keeper has died."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import testbed
from testbed.lanes import cgroups, clone, record, removal
from testbed.lanes.errors import LaneError
from testbed.lanes.first import READY
from testbed.lanes.record import RackLane
from testbed.rack.procfs import MARKER

READY_S = 60.0
END_S = 120.0
KILL_S = 10.0
_ROOT = Path(testbed.__file__).resolve().parents[1]


def create(name: str, *, ports: Iterable[int] = (), owner: int | None = None) -> RackLane:
    """Make a lane and return when commands can run in it.

    ``ports`` are ports of its loopback that this machine reaches, at ports that the kernel
    chooses. With ``owner`` the lane ends with that process. Raises LaneError.
    """
    _need_root()
    record.check_name(name)
    sweep()
    held = record.claim(name)
    try:
        news = _start_keeper(name, held, ports, owner)
    finally:
        os.close(held)
    said = _read_all(news, READY_S)
    lane = record.load(name)
    if said != READY or lane is None:
        reason = said.decode(errors="replace") or _last_words(name)
        end(name)
        raise LaneError("failed", f"lane {name} did not start: {reason}", object=name)
    return lane


def command(name: str, argv: Sequence[str]) -> list[str]:
    """Return the words that run ``argv`` in lane ``name``; see ``testbed.lanes.enter``."""
    return [sys.executable, "-m", "testbed.lanes.enter", name, *argv]


def processor_s(name: str) -> float:
    """Return the seconds of processor that everything in lane ``name`` has used, 0 if unknown."""
    return cgroups.processor_s(name, cgroups.mounted())


def find(name: str) -> RackLane:
    """Return a lane that is ready. Raises LaneError(not_found)."""
    record.check_name(name)
    lane = record.load(name)
    if lane is None:
        known = ", ".join(record.names()) or "none"
        raise LaneError(
            "not_found", f"lane {name} does not exist", object=name, hint=f"existing: {known}"
        )
    return lane


def everyone() -> tuple[RackLane, ...]:
    """Return the lanes that are ready, by name."""
    return tuple(lane for name in record.names() if (lane := record.load(name)) is not None)


def end(name: str) -> None:
    """End a lane with everything in it, living or dead; return when it is removed. Idempotent.

    Raises LaneError(failed) with what remains.
    """
    _need_root()
    record.check_name(name)
    lane = record.load(name)
    if lane is not None:
        _end_keeper(lane)
    _remove_dead(name)
    if record.folder(name).exists():
        raise LaneError("failed", f"lane {name} does not end", object=name, hint="try again")


def _end_keeper(lane: RackLane) -> None:
    try:
        keeper = os.pidfd_open(lane.keeper)
    except OSError:
        return
    try:
        for number, limit_s in ((signal.SIGTERM, END_S), (signal.SIGKILL, KILL_S)):
            if record.holds(lane.keeper, lane.name):
                signal.pidfd_send_signal(keeper, number)
                select.select([keeper], [], [], limit_s)
    except ProcessLookupError:
        pass
    finally:
        os.close(keeper)


def sweep() -> tuple[str, ...]:
    """Remove the lanes whose keeper has died; return their names. Raises LaneError(failed).

    Also those that have no record any more, because the machine was started again.
    """
    found = [name for name in record.names() if _remove_dead(name)]
    with record.of_all():  # so none of these names is claimed meanwhile
        left = clone.names() | cgroups.names(cgroups.mounted())
        for name in sorted(left.difference(record.names())):
            removal.remove_objects(name)
            found.append(name)
    return tuple(found)


def _remove_dead(name: str) -> bool:
    held = record.seize(name)
    if held is None:
        return False
    try:
        removal.remove(name)
    finally:
        os.close(held)
    return True


def _start_keeper(name: str, held: int, ports: Iterable[int], owner: int | None) -> int:
    """Start a keeper that inherits ``held``; return a pipe with its report."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environment.pop(MARKER, None)
    news, said = os.pipe()
    words = [sys.executable, "-m", "testbed.lanes.keeper", name]
    words += ["--held", str(held), "--news", str(said)]
    words += ["--owner", str(owner)] if owner else []
    words += [f"--port={port}" for port in ports]
    try:
        with (record.folder(name) / record.KEEPER_LOG).open("ab") as log:
            subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                pass_fds=[held, said],
                start_new_session=True,
                check=False,
            )
    finally:
        os.close(said)
    return news


def _read_all(pipe: int, limit_s: float) -> bytes:
    """Read until the writer closes its end, at most ``limit_s``."""
    deadline = time.monotonic() + limit_s
    said = b""
    with open(pipe, "rb", buffering=0) as reader:
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([reader], [], [], left)[0]:
                break
            data = reader.read(4096)
            if not data:
                break
            said += data
    return said


def _last_words(name: str) -> str:
    with contextlib.suppress(OSError, IndexError):
        text = (record.folder(name) / record.KEEPER_LOG).read_text(encoding="utf-8")
        return text.strip().splitlines()[-1]
    return "its keeper wrote nothing"


def _need_root() -> None:
    if os.geteuid() != 0:
        raise LaneError(
            "forbidden",
            "a lane needs root: it has namespaces and control groups of its own",
            object="lane",
            hint="run the command with sudo",
        )
