"""Removes everything of a lane; the caller holds the lane's folder (``testbed.lanes.record``)."""

from __future__ import annotations

import shutil

from testbed.lanes import cgroups, clone, record
from testbed.lanes.errors import LaneError

_END_S = 60.0
_GROUPS_S = 30.0


def remove(name: str) -> None:
    """End the lane's processes; remove its groups, its clone and its folder. Idempotent.

    Raises LaneError(failed) with what remains; a later call goes on.
    """
    remove_objects(name)
    record.forget(name)


def remove_objects(name: str) -> None:
    """Perform :func:`remove` but for the folder in /run.

    Namespaces and mounts end with the last process.
    """
    within = cgroups.mounted()
    if not cgroups.end_members(name, within, _END_S):
        pids = ", ".join(map(str, sorted(cgroups.members(name, within))))
        raise _stuck(name, f"processes {pids} do not end")
    if left := cgroups.remove(name, within, _GROUPS_S):
        raise _stuck(name, f"control groups remain: {', '.join(left)}")
    shutil.rmtree(clone.folder(name), ignore_errors=True)
    if clone.folder(name).exists():
        raise _stuck(name, f"{clone.folder(name)} remains")


def _stuck(name: str, message: str) -> LaneError:
    return LaneError(
        "failed", f"lane {name}: {message}", object=name, hint="lightloom testbed list tries again"
    )
