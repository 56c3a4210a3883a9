"""``python -m testbed.lanes.keeper``: holds one lane from outside, and removes it at the end.

It ends on SIGTERM, with the lane's first process, and with the lane's owner, if it has one. It is
detached from its caller, and writes to a pipe that the lane is ready, or why not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from testbed.lanes import cgroups, clone, first, kernel, record, removal
from testbed.lanes.errors import LaneError
from testbed.lanes.relay import LoopbackRelay

_READ = 4096


def main() -> int:
    """Make the lane and keep it."""
    parser = argparse.ArgumentParser(prog="python -m testbed.lanes.keeper")
    parser.add_argument("name")
    parser.add_argument("--held", type=int, required=True, help="the file that holds the lane")
    parser.add_argument("--news", type=int, required=True, help="gets READY or an error")
    parser.add_argument("--owner", type=int, default=0, help="pid that the lane ends with")
    parser.add_argument("--port", type=int, action="append", default=[], help="to be relayed")
    given = parser.parse_args()
    if os.fork():
        return 0
    os.set_inheritable(given.held, False)
    os.set_inheritable(given.news, False)
    try:
        owner = os.pidfd_open(given.owner) if given.owner else None
        _keep(given.name, owner, given.port, given.news)
    except (OSError, LaneError) as error:
        os.write(given.news, str(error).encode())
        return 1
    finally:
        removal.remove(given.name)
        with contextlib.suppress(ChildProcessError):
            os.wait()
    return 0


def _keep(name: str, owner: int | None, ports: Sequence[int], creator: int) -> None:
    clone.make(name)
    cgroups.make(name, cgroups.mounted())
    kernel.unshare(kernel.NEWPID)
    pid, inside = first.start(name)
    news = inside.recv(_READ)
    if news != first.READY:
        raise LaneError("failed", news.decode(errors="replace") or "it ended at once", object=name)
    asyncio.run(
        _stay(record.RackLane(name, os.getpid(), pid, time.time()), inside, owner, ports, creator)
    )


async def _stay(
    lane: record.RackLane,
    inside: socket.socket,
    owner: int | None,
    ports: Sequence[int],
    creator: int,
) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    loop.add_signal_handler(signal.SIGINT, over.set)
    loop.add_reader(inside, over.set)
    if owner is not None:
        loop.add_reader(owner, over.set)
    relay = LoopbackRelay(lane.first)
    reached = {port: await relay.listen(port) for port in ports}
    record.save(dataclasses.replace(lane, ports=reached))
    os.write(creator, first.READY)
    os.close(creator)
    await over.wait()


if __name__ == "__main__":
    sys.exit(main())
