"""Stores a rack's record in its run directory, so that other commands find the rack."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from testbed.rack.errors import RackError
from testbed.rack.process import Process

FILE = "rack.json"
DRAFT = f"{FILE}.new"


def site_copy(run_dir: Path) -> Path:
    """Return the copy of the site file from the rack's start."""
    return run_dir / "site.yaml"


def logs(run_dir: Path) -> Path:
    """Return the folder of the processes' logs."""
    return run_dir / "logs"


@dataclass(slots=True, frozen=True)
class RackRecord:
    """One rack. It is written before the first object is created and after every step."""

    phase: Literal["starting", "up"]
    site: str
    site_file: str
    url: str
    started_at: float
    access_bps: float
    inter_aggregator_bps: float
    image: str = ""
    docker_host: str = ""
    docker_private: bool = False
    dockerd: Process | None = None
    processes: tuple[Process, ...] = ()
    """Processes in start order."""
    lost: tuple[str, ...] = ()
    """Objects of the site that were made to fail, in that order; see ``testbed.rack.losses``."""


def save(run_dir: Path, record: RackRecord) -> None:
    """Write the record atomically: a reader sees the old one or the new one."""
    text = json.dumps(dataclasses.asdict(record), indent=1)
    draft = run_dir / DRAFT
    draft.write_text(text, encoding="utf-8")
    draft.replace(run_dir / FILE)


def load(run_dir: Path) -> RackRecord | None:
    """Return the record, None without one. Raises RackError(failed) if unreadable."""
    path = run_dir / FILE
    try:
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        processes = tuple(_process(entry) for entry in data.pop("processes"))
        dockerd = data.pop("dockerd")
        lost = tuple(data.pop("lost", ()))
        return RackRecord(
            **data, lost=lost, processes=processes, dockerd=_process(dockerd) if dockerd else None
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RackError(
            "failed",
            f"{path} cannot be read: {error}",
            object="rack",
            hint="run `lightloom testbed down`",
        ) from error


def _process(entry: dict[str, Any]) -> Process:
    return Process(**{**entry, "argv": tuple(entry["argv"])})
