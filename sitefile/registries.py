"""Defines the site file's section about registries: who may use their images, and the logins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from sitefile.passwords import PasswordModel, PasswordRef
from sitefile.scheduling import ProjectName

RegistryName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,252}[a-z0-9])?(:[0-9]{1,5})?$"),
]
"""HOST or HOST:PORT, as in the names of its images; docker.io is the default registry."""


class RegistryModel(BaseModel):
    """A registry whose images only some projects may run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    projects: list[ProjectName] = Field(
        min_length=1, description="projects whose jobs may run its images"
    )
    username: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    password: PasswordModel | None = None

    @model_validator(mode="after")
    def _whole_login(self) -> RegistryModel:
        if (self.username is None) != (self.password is None):
            raise ValueError("give username and password, or neither")
        return self


@dataclass(slots=True, frozen=True)
class Registry:
    """A registry, the projects that may run its images, and its login."""

    name: str
    projects: frozenset[str]
    username: str | None = None
    password: PasswordRef | None = None


def registries_of(section: Mapping[str, RegistryModel]) -> tuple[Registry, ...]:
    """Return the registries of a site file."""
    return tuple(
        Registry(
            name,
            frozenset(model.projects),
            model.username,
            PasswordRef(**model.password.model_dump()) if model.password else None,
        )
        for name, model in section.items()
    )
