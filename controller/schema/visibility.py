"""Marks on the fields of views: what readers see who are not keepers of the whole site.

A field that can hold text states it; a view with a text field that states nothing is shown to
keepers (operators and admins) only. ``controller.api.scope.redact`` applies the marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated


class Visibility(Enum):
    """To whom the content of a field is shown."""

    ALL = "all"
    """It reveals nothing of other jobs, or only who may see the job reads it."""
    MESSAGE = "message"
    """Words of the controller: other projects' jobs and devices' addresses are replaced."""
    JOBS = "jobs"
    """Names of jobs, as a list or as the keys of messages: only the reader's own."""
    KEEPERS = "keepers"
    """Blank for all others: addresses, labels and messages of devices."""
    ALL_PROJECTS = "all projects"
    """Blank for readers who do not see all projects."""
    OWN = "own"
    """Blank unless the view's job is the reader's own."""

    JOB = "job"
    """The job that the view belongs to: nothing of another's is shown."""
    PROJECT = "project"
    """The project that the view belongs to: nothing of another's is shown."""
    SUBJECT = "subject"
    """What the view is about, as ``job/red``: only own jobs; readers of all projects also see
    transactions and endpoints."""
    HOLDER = "holder"
    """The job that uses the object now: with another's, it and the ``OWN`` fields are blank."""
    ENDPOINT = "endpoint"
    """The endpoint that the object serves: the ``OWN`` fields are blank unless an own job holds
    it."""


@dataclass(slots=True, frozen=True)
class Instead:
    """What a blank field shows, if not the empty value of its type."""

    text: str


Plain = Annotated[str, Visibility.ALL]
Message = Annotated[str, Visibility.MESSAGE]
Internal = Annotated[str, Visibility.KEEPERS]
OwnerJob = Annotated[str, Visibility.JOB]
JobNames = Annotated[list[str], Visibility.JOBS]
