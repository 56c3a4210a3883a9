"""Runs several racks side by side on one machine, each in a lane.

A lane is a small machine of its own: it has its mounts, network, processes, host name, message
queues and control groups, its own /run and its own Docker data root. A rack inside runs unchanged.
A keeper outside holds each lane; when it ends, the kernel ends everything inside, and what the
kernel does not remove (empty control groups, a folder in /run and one on the disk) is removed by
the keeper, or by the next command if the keeper was killed.
"""

from testbed.lanes.errors import LaneError
from testbed.lanes.manage import command, create, end, everyone, find, processor_s, sweep
from testbed.lanes.record import RackLane

__all__ = [
    "LaneError",
    "RackLane",
    "command",
    "create",
    "end",
    "everyone",
    "find",
    "processor_s",
    "sweep",
]
