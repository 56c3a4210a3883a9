"""REST documents of volumes and of what jobs left in them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controller.schema.base import View


class VolumeDataView(View):
    """A directory that belongs to a project or a job. Times are seconds since 1970."""

    owner: str
    """``PROJECT`` or ``PROJECT.JOB``."""
    project: str
    job: str | None = None
    """None when the whole project shares the directory."""
    uid: int | None = None
    bytes: int | None = None
    """None until the server has measured it, as are the files."""
    files: int | None = None
    quota_bytes: int | None = None
    created_at: float | None = None
    used_at: float | None = None
    """When a job used it last."""
    measured_at: float | None = None
    used_by: list[str] = Field(default_factory=list)
    """Jobs that use it now, or wait for their start."""
    kept_until: float | None = None
    """When it is removed if no job uses it before; None while it is in use, or kept for good."""


class VolumeView(View):
    """A volume on one server."""

    name: str
    server: str
    mode: Literal["ro", "rw"]
    per: Literal["site", "project", "job"]
    """Who shares a directory of it."""
    projects: list[str]
    """Whose jobs may use it; empty is all."""
    problem: str = ""
    """Why no job can use it on this server now."""
    filesystem: str = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    quota: str = ""
    """How quotas hold there: ``kernel`` or ``watched`` (the agent measures and ends the ranks)."""
    read_at: float | None = None
    """When its server said all this; None when it has not answered yet."""
    data: list[VolumeDataView] = Field(default_factory=list)
    """What jobs left, or use."""


class RemovedDataView(View):
    """A directory on one server."""

    server: str
    bytes: int | None = None
    files: int | None = None
    problem: str = ""
    """Why it is not removed; empty when it is."""


class DataRemovalView(View):
    """What was removed, or with ``dry_run`` what would be."""

    volume: str
    owner: str
    """``PROJECT`` or ``PROJECT.JOB``."""
    dry_run: bool
    directories: list[RemovedDataView]
