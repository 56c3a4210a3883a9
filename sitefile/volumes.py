"""Defines the site file's sections about volumes, and about the users that jobs run as."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sitefile.quantities import Bytes, BytesPerSecond, Duration
from sitefile.scheduling import ProjectModel, ProjectName, UserId

MIN_BPS = 64 * 1024
"""Lowest rate that agents accept, in bytes per second."""

Rate = Annotated[BytesPerSecond, Field(ge=MIN_BPS)]
Per = Literal["site", "project", "job"]
"""Who shares a directory of a volume."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class VolumeModel(_Strict):
    """A volume: a directory that agents offer by name (``lightloom agent --volume``)."""

    mode: Literal["ro", "rw"] = Field("ro", description="rw: jobs may write to it")
    projects: list[ProjectName] = Field([], description="whose jobs may use it; empty: all")
    per: Per = Field("site", description="who shares a directory: everyone, a project, or a job")
    quota: Bytes | None = Field(
        None, description="limit of a project's or a job's directory on one server, such as 200GiB"
    )
    keep: Duration | None = Field(
        None,
        description="time after its last use until a project's or a job's directory is removed,"
        " such as 7d; it stays until an operator removes it when absent",
    )
    read: Rate | None = Field(None, description="limit of one container, such as 1GB/s")
    write: Rate | None = Field(None, description="limit of one container, such as 500MB/s")

    @model_validator(mode="after")
    def _fitting(self) -> VolumeModel:
        if self.mode == "ro" and self.per != "site":
            raise ValueError(f"per: {self.per} needs mode: rw, or its directories stay empty")
        if self.mode == "ro" and self.write is not None:
            raise ValueError("write needs mode: rw")
        if self.per == "site":
            for name, value in (("quota", self.quota), ("keep", self.keep)):
                if value is not None:
                    raise ValueError(f"{name} needs per: project or per: job")
        return self


class UsersModel(_Strict):
    """The user that jobs run as whose project names none; never root."""

    uid: UserId | None = Field(None, description="default: the agent's --user")
    gid: UserId | None = Field(None, description="default: the agent's --user")


@dataclass(slots=True, frozen=True)
class Volume:
    """A volume of the site. Rates are bytes per second of one container."""

    name: str
    read_only: bool = True
    projects: frozenset[str] = frozenset()
    """Projects whose jobs may use it; empty for all."""
    per: Per = "site"
    quota_bytes: int | None = None
    keep_s: float | None = None
    """Seconds after its last use until an owner's directory is removed; None keeps it."""
    read_bps: int | None = None
    write_bps: int | None = None

    def admits(self, project: str) -> bool:
        """Return whether jobs of ``project`` may use it."""
        return not self.projects or project in self.projects


@dataclass(slots=True, frozen=True)
class User:
    """A user and a group by number; None leaves one to the agent."""

    uid: int | None = None
    gid: int | None = None


@dataclass(slots=True, frozen=True)
class Users:
    """The user whose files jobs read and write, by project."""

    default: User = User()
    projects: Mapping[str, User] = field(default_factory=dict)

    def of(self, project: str) -> User:
        """Return the user that jobs of ``project`` run as."""
        return self.projects.get(project, self.default)


def volume_of(name: str, model: VolumeModel) -> Volume:
    """Convert a checked section."""
    return Volume(
        name,
        read_only=model.mode == "ro",
        projects=frozenset(model.projects),
        per=model.per,
        quota_bytes=None if model.quota is None else int(model.quota),
        keep_s=model.keep,
        read_bps=None if model.read is None else int(model.read),
        write_bps=None if model.write is None else int(model.write),
    )


def users_of(users: UsersModel, projects: Iterable[ProjectModel]) -> Users:
    """Convert checked sections; a project without a user of its own has the site's."""
    return Users(
        User(users.uid, users.gid),
        {
            p.name: User(
                users.uid if p.uid is None else p.uid, users.gid if p.gid is None else p.gid
            )
            for p in projects
        },
    )
