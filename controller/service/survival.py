"""What survives of jobs when hardware fails, as the API asks for it: the owners behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from controller.schema.checkpoints import (
    CheckpointSumsView,
    CheckpointsView,
    DrainKind,
    DrainView,
    IntervalView,
    RecoveriesView,
    RecoverySumsView,
    SiteRecoveriesView,
    VerificationView,
)


class CheckpointDesk(Protocol):
    """Shows, verifies and drops jobs' checkpoints. Raises ServiceError.

    A job of that name may not exist (``not_found``) or may keep no checkpoints (``conflict``).
    """

    async def checkpoints(self, job: str) -> CheckpointsView:
        """Return a job's checkpoints, the newest first; also of an ended one that has some."""
        ...

    def sums(self) -> Mapping[str, CheckpointSumsView]:
        """Return what metrics show of each job that has not ended; cheap."""
        ...

    async def verify_checkpoints(self, job: str, step: int | None) -> VerificationView:
        """Compare all parts, or those of one step, with their sums."""
        ...

    async def checkpoint_advice(self, job: str) -> IntervalView:
        """Say how often the job should write."""
        ...

    async def drop_checkpoint(self, job: str, step: int, force: bool) -> None:
        """Remove a step; the newest complete one only with ``force`` (else ``conflict``)."""
        ...


class RecoveryDesk(Protocol):
    """Shows what became of jobs that lost ranks. Raises ServiceError ``not_found``."""

    def of_job(self, name: str) -> RecoveriesView:
        """Return a job's recoveries, the oldest first, and what they cost."""
        ...

    def sums(self) -> RecoverySumsView:
        """Return what metrics show; cheap."""
        ...

    async def of_site(self, since: float) -> SiteRecoveriesView:
        """Return what failures since ``since`` (seconds since 1970) cost the site."""
        ...


class DrainDesk(Protocol):
    """Takes objects out of use. Raises ServiceError ``not_found`` or ``conflict``."""

    def views(self) -> list[DrainView]:
        """Return what is drained or being drained."""
        ...

    async def drain(self, kind: DrainKind, name: str, *, now: bool = False) -> DrainView:
        """Begin a drain, or show the one that goes on; ``now`` waits for no checkpoint."""
        ...

    async def undrain(self, kind: DrainKind, name: str) -> DrainView:
        """Put the object back into use, and return the drain that ended; ``not_found``."""
        ...
