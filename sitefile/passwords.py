"""References to passwords; the passwords themselves are never in a site file or a URL."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator


class PasswordModel(BaseModel):
    """Source of a password: an environment variable or a file of mode 0600."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> PasswordModel:
        if (self.env is None) == (self.file is None):
            raise ValueError("give either env or file")
        return self


@dataclass(slots=True, frozen=True)
class PasswordRef:
    """A reference to a password."""

    env: str | None = None
    file: str | None = None

    def resolve(self) -> str:
        """Return the password.

        Raises PermissionError when others can read the file, KeyError or OSError when absent.
        """
        if self.env is not None:
            return os.environ[self.env]
        path = Path(self.file or "")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise PermissionError(f"{path} holds a password and must have mode 0600")
        return path.read_text(encoding="utf-8").strip()
