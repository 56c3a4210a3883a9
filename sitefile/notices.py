"""Defines the site file's section about notices: who is notified that a job has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from sitefile.scheduling import ProjectName

MAX_NOTICES = 100

EndState = Literal["completed", "failed", "cancelled"]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/@]+(/\S*)?$", max_length=2000)]
Path = Annotated[str, StringConstraints(pattern=r"^/[^\x00]+$", max_length=4096)]
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=4096)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SecretFileModel(_Strict):
    """A file of mode 0600 with a secret."""

    file: Path


class NoticeModel(_Strict):
    """A receiver of notices: a URL or a command of the controller's machine."""

    project: ProjectName
    states: list[EndState] = Field(
        default=["completed", "failed", "cancelled"],
        min_length=1,
        description="the ends of jobs that it is told of",
    )
    url: Url | None = Field(None, description="gets a POST; redirects are not followed")
    secret: SecretFileModel | None = Field(None, description="key of the signature of a POST")
    command: Annotated[list[Word], Field(min_length=1, max_length=64)] | None = Field(
        None, description="runs without a shell, with the job's facts as JSON on stdin"
    )

    @model_validator(mode="after")
    def _one_way(self) -> NoticeModel:
        if (self.url is None) == (self.command is None):
            raise ValueError("give either url or command")
        if self.command is not None and not self.command[0].startswith("/"):
            raise ValueError("give the absolute path of the command's program")
        if self.command is not None and self.secret is not None:
            raise ValueError("a secret signs the POST to a url: leave it out with a command")
        return self


@dataclass(slots=True, frozen=True)
class Receiver:
    """A receiver of notices; either ``url`` or ``command`` is empty."""

    project: str
    states: frozenset[str]
    url: str = ""
    secret: str = ""
    """Path of the file with the key of its signatures; empty without."""
    command: tuple[str, ...] = ()


def receiver_of(model: NoticeModel) -> Receiver:
    """Convert a checked entry."""
    return Receiver(
        model.project,
        frozenset(model.states),
        model.url or "",
        model.secret.file if model.secret else "",
        tuple(model.command or ()),
    )
