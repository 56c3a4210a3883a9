"""Tasks for a worker's process, as frozen dataclasses of this module."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from base.processes import Worker

Clock = Callable[[], float]


def worker() -> Worker:
    """Return a worker that performs these tasks."""
    return Worker(__name__)


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What a process has of its parent, and its priority."""

    process: int
    files: frozenset[str]
    environment: frozenset[str]
    niceness: int


@dataclass(slots=True, frozen=True)
class Look:
    """Returns the surroundings."""

    def __call__(self, clock: Clock) -> Surroundings:
        files = set()
        for name in Path("/proc/self/fd").iterdir():
            try:
                files.add(str(name.readlink()))
            except FileNotFoundError:
                continue  # that of the listing itself
        return Surroundings(os.getpid(), frozenset(files), frozenset(os.environ), os.nice(0))


@dataclass(slots=True, frozen=True)
class Hang:
    """Writes its process id into a file, then never ends."""

    begun: str

    def __call__(self, clock: Clock) -> None:
        part = Path(f"{self.begun}.part")
        part.write_text(str(os.getpid()), encoding="ascii")
        part.rename(self.begun)
        while True:
            sleep(3600)


@dataclass(slots=True, frozen=True)
class Fail:
    """Raises an error of Python's own."""

    def __call__(self, clock: Clock) -> None:
        raise KeyError("nothing")


@dataclass(slots=True, frozen=True)
class Refuse:
    """Raises ValueError."""

    def __call__(self, clock: Clock) -> None:
        raise ValueError(f"not at {clock() > 0}")


@dataclass(slots=True, frozen=True)
class Leave:
    """Ends the process in the middle, with a status."""

    status: int

    def __call__(self, clock: Clock) -> None:
        os._exit(self.status)


@dataclass(slots=True, frozen=True)
class Stray:
    """Returns what no frame may carry: an object that is no frozen dataclass."""

    def __call__(self, clock: Clock) -> object:
        return Path("/")


@dataclass(slots=True)
class Loose:
    """A dataclass that is not frozen."""

    value: int = 0
