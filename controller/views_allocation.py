"""The allocation as a file: where light leads and who holds what, to keep, compare and restore."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controller.views_base import Name, Request, View
from controller.views_plans import MoveView, TransactionView

VERSION: Literal["lightloom/v1"] = "lightloom/v1"


class AllocatedJob(Request):
    """Who held which endpoints, in rank order, when the file was written."""

    most_parts = 100_000

    name: Name
    project: Name = "default"
    endpoints: list[Name] = Field(max_length=100_000)


class Allocation(Request):
    """What ``export`` writes and ``import`` reads.

    Only ``homes`` is brought back: an endpoint that is not named stays where it is, null is dark.
    ``jobs`` and ``epoch`` say what the file was written of.
    """

    most_parts = 500_000

    version: Literal["lightloom/v1"] = VERSION
    kind: Literal["Allocation"] = "Allocation"
    site: Name
    epoch: int = Field(default=0, ge=0, lt=2**63)
    homes: dict[Name, Name | None] = Field(max_length=100_000)
    jobs: list[AllocatedJob] = Field(default_factory=list, max_length=100_000)


class AllocationDiffView(View):
    """What an import changes, or changed."""

    epoch: int
    moves: list[MoveView]
    jobs: list[str]
    """Running jobs whose endpoints move."""
    notes: list[str] = Field(default_factory=list)
    """Differences that an import does not bring back: jobs that are not as in the file."""
    transaction: TransactionView | None = None
    """The one that carries it out; None when nothing was asked for, or nothing differs."""
