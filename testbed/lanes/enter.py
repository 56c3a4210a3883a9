"""``python -m testbed.lanes.enter NAME PROGRAM [ARGUMENT]...``: runs a program in a lane.

Standard streams, environment, working directory and exit status are the program's own. SIGTERM and
SIGHUP are passed on; the program is killed when this process ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from testbed.lanes import cgroups, kernel, record
from testbed.lanes.errors import LaneError
from testbed.processes import lane_of

_NOT_FOUND, _FAILED = 127, 126


def main() -> int:
    """Run the program and return its status; end by its signal if it did."""
    if len(sys.argv) < 3:
        print(f"usage: {Path(__file__).stem} NAME PROGRAM [ARGUMENT]...", file=sys.stderr)
        return 2
    _, name, *argv = sys.argv
    try:
        lane = record.load(name)
        if lane is None:
            raise LaneError("not_found", f"lane {name} does not exist", object=name)
        status = _run(lane, argv)
    except (OSError, LaneError) as error:
        print(f"lane {name}: {error}", file=sys.stderr)
        return _FAILED
    if status >= 0:
        return status
    with contextlib.suppress(OSError):  # SIGKILL has no handler
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    return 128 - status


def _run(lane: record.RackLane, argv: Sequence[str]) -> int:
    where = Path.cwd()
    me = os.pidfd_open(os.getpid())
    inside = os.pidfd_open(lane.first)
    groups = Path(f"/proc/{lane.first}/cgroup").read_text(encoding="utf-8")
    if all(lane_of(line) != lane.name for line in groups.splitlines()):
        raise LaneError("not_found", "it has just ended", object=lane.name)
    cgroups.join(lane.name, cgroups.mounted())
    kernel.enter(inside, kernel.OWN | kernel.NEWPID)
    with contextlib.suppress(OSError):  # a folder that the lane does not have
        os.chdir(where)
    child = os.fork()
    if child == 0:
        _become(me, argv)

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # a terminal sends them to the program, too
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _become(parent: int, argv: Sequence[str]) -> None:
    kernel.die_with_parent()
    if select.select([parent], [], [], 0)[0]:
        os._exit(_FAILED)
    try:
        os.execvp(argv[0], list(argv))  # noqa: S606 - what the caller asked for
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND)


if __name__ == "__main__":
    sys.exit(main())
