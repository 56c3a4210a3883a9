"""Finds containers that the engine reports as running and of which the kernel has no process.

An engine that misses an end reports ``running`` without end. The kernel is right: when the first
process is gone and no process is in the container's cgroup, nothing of it can use the endpoint.
"""

from __future__ import annotations

import os
import select
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from base import clock
from container_mgr.kernel import cgroup
from container_mgr.kernel.process import open_first
from container_mgr.values import Container

GRACE_S = 15.0
"""How long an engine may take to report an end."""
EXIT_UNKNOWN = 255
"""Reported for a container whose end the engine missed; its exit code is lost."""
REASON = (
    "its processes are gone, but the Docker Engine reports it as running, so its exit code is lost;"
    " restart the engine"
)
_MAX_GROUPS = 256

_log = structlog.get_logger("container_mgr.ranks.ghosts")


@dataclass(slots=True, frozen=True)
class _Since:
    monotonic: float
    time: float


class Ghosts:
    """The containers of one server whose processes are gone."""

    def __init__(self, parent: str, proc: Path = Path("/proc")) -> None:
        """``parent`` is the cgroup above the containers', as the engine is given it."""
        self._parent = parent
        self._proc = proc
        self._since: dict[str, _Since] = {}

    def __contains__(self, ident: str) -> bool:
        since = self._since.get(ident)
        return since is not None and clock.monotonic() - since.monotonic >= GRACE_S

    def judge(self, container: Container) -> Container:
        """Return a container that the engine calls alive; as exited when it is a ghost for long."""
        if not self._is_gone(container):
            self._since.pop(container.id, None)
            return container
        since = self._since.get(container.id)
        if since is None:
            since = self._since[container.id] = _Since(clock.monotonic(), clock.time())
            _log.warning("ended, the engine has not noticed", container=container.key.container)
        if container.id not in self:
            return container
        return replace(
            container,
            state="exited",
            engine_paused=False,
            exit_code=EXIT_UNKNOWN,
            finished_at=since.time,
        )

    def forget(self, ident: str) -> None:
        """Drop a container that was removed."""
        self._since.pop(ident, None)

    def _is_gone(self, container: Container) -> bool:
        try:
            pidfd = open_first(container, self._proc)
        except ProcessLookupError:
            return not self._has_processes(container.id)
        except OSError:
            return False
        try:
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            return bool(poll.poll(0)) and not self._has_processes(container.id)
        finally:
            os.close(pidfd)

    def _has_processes(self, ident: str) -> bool:
        """Return whether a process is in the container's cgroup; one that cannot be read counts."""
        try:
            groups = cgroup.below(self._parent, ident, self._proc)
        except OSError:
            groups = []
        return any(_has_processes(group) for group in groups)


def _has_processes(group: Path) -> bool:
    for looked, (path, _, _) in enumerate(os.walk(group)):
        if looked >= _MAX_GROUPS:
            return True
        try:
            with Path(path, "cgroup.procs").open("rb") as file:
                if file.read(1):
                    return True
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError:
            return True
    return False
