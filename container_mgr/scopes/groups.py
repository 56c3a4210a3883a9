"""What differs from scheduler to scheduler: where the cgroups of its jobs are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from container_mgr.kernel.freezer import Freezer

NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""The name of a scheduler's node."""


@dataclass(slots=True, frozen=True)
class Steps:
    """The cgroups of one job's steps on this server."""

    freezers: tuple[Freezer, ...]
    known: bool
    """The scheduler has cgroups here, of this job or of others."""


class JobGroups(Protocol):
    """Finds the cgroups of one scheduler's jobs; waits for nothing but the file system."""

    @property
    def kind(self) -> str:
        """One of ``base.engines``."""
        ...

    def steps(self, job: str) -> Steps:
        """Return those of one job. Raises AgentError when there are too many directories."""
        ...

    def jobs(self) -> Mapping[str, Sequence[Freezer]]:
        """Return those of all jobs, by number. Raises AgentError as ``steps``."""
        ...

    def check_absent(self, job: str, *, known: bool) -> None:
        """Raise AgentError unless it is sure that no process of a job without steps runs here.

        ``known`` is that of its steps.
        """
        ...
