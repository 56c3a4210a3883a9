"""Which containers use which jobs' folders, so that no folder is removed under one. Any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from container_mgr.values import AgentError


class FolderUse:
    """The containers of one server that use folders of checkpoints."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: dict[str, tuple[str, str]] = {}
        """The folder and endpoint of each container that exists or is being made."""
        self._in_removal: set[str] = set()
        """Folders that are being removed."""
        self._excesses: dict[str, str] = {}

    def claim(self, name: str, folder: str, endpoint: str) -> None:
        """Note a container that is being made. AgentError(conflict) if its folder is removed."""
        with self._lock:
            if folder in self._in_removal:
                raise AgentError(
                    "conflict", name, f"folder {folder} is being removed", "start it again"
                )
            self._users[name] = (folder, endpoint)

    def record(self, name: str, folder: str, endpoint: str) -> None:
        """Note a container that runs."""
        with self._lock:
            self._users[name] = (folder, endpoint)

    def release(self, name: str) -> tuple[str, str] | None:
        """Remove a container that is gone; return its folder and endpoint."""
        with self._lock:
            return self._users.pop(name, None)

    def exceed(self, name: str, why: str) -> None:
        """Note a container that must end for what it wrote."""
        with self._lock:
            self._excesses[name] = why

    def excesses(self) -> Mapping[str, str]:
        """Return, once, the containers that must end, and why."""
        with self._lock:
            found, self._excesses = self._excesses, {}
            return {name: why for name, why in found.items() if name in self._users}

    @contextmanager
    def removing(self, folder: str) -> Iterator[None]:
        """Block use of a folder during removal. Raises AgentError(conflict) if it is in use."""
        with self._lock:
            user = next((name for name, place in self._users.items() if place[0] == folder), None)
            if user is not None:
                raise AgentError(
                    "conflict", folder, f"{user} uses it", "cancel its job, or wait for it"
                )
            if folder in self._in_removal:
                raise AgentError("conflict", folder, "it is being removed", "try again later")
            self._in_removal.add(folder)
        try:
            yield
        finally:
            with self._lock:
                self._in_removal.discard(folder)
