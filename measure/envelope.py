"""The one form of every measurement's result; units are seconds, bytes, bytes/s and ratios.

A figure that was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = Any
"""A value of JSON: None, bool, int, float, str, or a list or mapping of those."""
Row = Mapping[str, Json]

VERSION = 1


@dataclass(slots=True, frozen=True, kw_only=True)
class ToolVersion:
    """The program that measured."""

    name: str
    version: str = ""


@dataclass(slots=True, frozen=True, kw_only=True)
class Environment:
    """Where a measurement ran. Never holds variables of a process."""

    image: str = ""
    mtu: int | None = None
    kernel: str = ""
    cores: int | None = None
    load_1m: float | None = None
    """Highest load average of any of its servers."""
    others_on_links_bps: float | None = None
    """Highest traffic of others on a link that it used."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Body:
    """What one type of measurement found; the controller adds the rest of the envelope."""

    rows: Sequence[Row] = ()
    groups: Sequence[Row] = ()
    anomalies: Sequence[Row] = ()
    fits: Sequence[Row] = ()
    summary: Row = field(default_factory=dict)
    """The answer in a few figures."""
    tool: ToolVersion = ToolVersion(name="lightloom")
    invalid_because: Sequence[str] = ()


@dataclass(slots=True, frozen=True, kw_only=True)
class Measurement:
    """A finished measurement."""

    type: str
    id: str
    jobs: Sequence[str]
    """Names of the jobs that measured, in order."""
    source: str
    """``emulated`` on the emulated rack, ``measured`` on a real one, ``imported`` from a file."""
    started_at: float
    finished_at: float
    fabric_epoch: int
    endpoints: Sequence[str]
    homes: Mapping[str, str | None]
    settings: Row
    seed: int
    environment: Environment
    body: Body

    @property
    def valid(self) -> bool:
        """False if something disturbed it."""
        return not self.body.invalid_because
