"""What a job may ask of a volume: its name, and where in the container it appears. Pure.

The controller applies these rules when a job is submitted, the agent when a rank starts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from agentlink.bounds import NAME, owns
from container_mgr.values import AgentError

MAX_VOLUMES = 16
"""Volumes of one rank."""
MAX_PATH = 255
"""Characters of a path in a container."""
NAME_RULE = "with a-z, 0-9 and - inside, at most 63 characters"

_PATH = re.compile(r"(/[A-Za-z0-9._@+-]+)+")
_RESERVED = (
    *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/lightloom"),
    *("/proc", "/run", "/sbin", "/sys", "/usr", "/var/run"),
)
"""Trees of the system, of the image's programs and of the agent."""
_WHOLE = ("/tmp", "/var", "/var/tmp")  # noqa: S108 - paths of the container
"""Directories of every container: a volume may lie below, not in their place."""


def check_name(name: str, obj: str) -> None:
    """Raise AgentError(invalid) unless ``name`` can be a volume's name."""
    if not NAME.fullmatch(name):
        raise AgentError(
            "invalid", obj, f"{name[:80]!r} is not a volume's name", f"a name is {NAME_RULE}"
        )


def check_owner(owner: str, obj: str) -> None:
    """Raise AgentError(invalid) unless ``owner`` can own a directory of a volume.

    That is a project, or ``PROJECT.JOB``: names of jobs are used again, also by other projects.
    """
    if not owns(owner):
        raise AgentError(
            "invalid",
            obj,
            f"{owner[:80]!r} cannot own a directory of a volume",
            "an owner is PROJECT or PROJECT.JOB",
        )


def check_path(path: str, obj: str) -> None:
    """Raise AgentError(invalid) unless a volume may appear at ``path`` in a container."""
    hint = "choose an absolute path such as /data"
    if len(path) > MAX_PATH:
        raise AgentError("invalid", obj, f"a volume's path exceeds {MAX_PATH} characters", hint)
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise AgentError(
            "invalid",
            obj,
            f"{path!r} cannot be a volume's path",
            "an absolute path without . and .., with letters, digits and ._@+- only",
        )
    reserved = next((tree for tree in _RESERVED if within(path, tree)), None)
    if reserved is not None or path in _WHOLE:
        raise AgentError("invalid", obj, f"{path} is reserved for the container itself", hint)


def check_mounts(mounts: Sequence[tuple[str, str]], obj: str) -> None:
    """Raise AgentError(invalid) unless a rank may have these volumes, each (name, path).

    A volume may appear at several paths. No path may be given twice or lie inside another one.
    """
    if len(mounts) > MAX_VOLUMES:
        raise AgentError("invalid", obj, f"more than {MAX_VOLUMES} volumes", "ask for fewer")
    for name, path in mounts:
        check_name(name, obj)
        check_path(path, obj)
    # By parts, so that a path comes right before the paths inside it.
    paths = sorted((path for _, path in mounts), key=lambda path: path.split("/"))
    for outer, inner in pairwise(paths):
        if within(inner, outer):
            where = "given twice" if inner == outer else f"inside {outer}"
            raise AgentError(
                "invalid", obj, f"the volumes' path {inner} is {where}", "choose separate paths"
            )


def within(path: str, tree: str) -> bool:
    """Return whether a path is ``tree`` or lies below it."""
    return path == tree or path.startswith(f"{tree}/")
