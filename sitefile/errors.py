"""Defines errors that name the file, the path inside it and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class FileProblem:
    """One problem at one place of a file."""

    path: str
    message: str
    fix: str = ""

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}" + (f" (fix: {self.fix})" if self.fix else "")


class SiteFileError(ValueError):
    """A site, state or job file is invalid; carries every problem found."""

    def __init__(self, file: str, problems: Sequence[FileProblem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{file}: {len(self.problems)} problem(s)\n{lines}")
