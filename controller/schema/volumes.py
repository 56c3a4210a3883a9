"""REST documents of volumes and of what jobs left in them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from controller.schema.base import View
from controller.schema.visibility import Message, Plain, Visibility


class VolumeDataView(View):
    """A directory that belongs to a project or a job. Times are seconds since 1970."""

    owner: Plain
    """``PROJECT`` or ``PROJECT.JOB``."""
    project: Annotated[str, Visibility.PROJECT]
    job: Plain | None = None
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
    used_by: list[Plain] = Field(default_factory=list)
    """Jobs that use it now, or wait for their start."""
    kept_until: float | None = None
    """When it is removed if no job uses it before; None while it is in use, or kept for good."""


class VolumeView(View):
    """A volume on one server."""

    name: Plain
    server: Plain
    mode: Literal["ro", "rw"]
    per: Literal["site", "project", "job"]
    """Who shares a directory of it."""
    projects: Annotated[list[str], Visibility.PROJECT]
    """Whose jobs may use it; empty is all."""
    problem: Message = ""
    """Why no job can use it on this server now."""
    filesystem: Plain = ""
    total_bytes: int | None = None
    free_bytes: int | None = None
    quota: Plain = ""
    """How quotas hold there: ``kernel`` or ``watched`` (the agent measures and ends the ranks)."""
    read_at: float | None = None
    """When its server said all this; None when it has not answered yet."""
    data: list[VolumeDataView] = Field(default_factory=list)
    """What jobs left, or use."""


class RemovedDataView(View):
    """A directory on one server."""

    server: Plain
    bytes: int | None = None
    files: int | None = None
    problem: Plain = ""
    """Why it is not removed; empty when it is."""


class DataRemovalView(View):
    """What was removed, or with ``dry_run`` what would be."""

    volume: Plain
    owner: Plain
    """``PROJECT`` or ``PROJECT.JOB``."""
    dry_run: bool
    directories: list[RemovedDataView]
