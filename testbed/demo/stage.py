"""Provides what an experiment needs around it: a rack that is up and idle, and a clean end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed import rack
from testbed.demo import homes
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.demo.jobs import ENDED, DemoJobs
from testbed.rack.slurm.config import UnderSlurm

Progress = Callable[[str], None]


@contextmanager
def brought_up(
    site_path: Path, run_dir: Path, progress: Progress, slurm: UnderSlurm | None = None
) -> Iterator[rack.RackStatus]:
    """Yield a rack that is brought up, and taken down afterwards."""
    status = rack.up(site_path, run_dir, progress=progress, slurm=slurm)
    try:
        yield status
    finally:
        progress("taking the rack down")
        rack.down(run_dir, progress=lambda line: None)


@contextmanager
def rack_for(
    site_path: Path, run_dir: Path, progress: Progress, *, chosen: bool
) -> Iterator[rack.RackStatus]:
    """Yield a rack that is up; restore its previous state afterwards.

    ``chosen`` refuses a running rack of another site file.
    """
    found = rack.status(run_dir)
    if found.state == "down":
        progress("bringing the rack up")
        with brought_up(site_path, run_dir, progress) as status:
            yield status
        return
    if found.state != "up":
        raise DemoError(
            "conflict",
            f"the rack is {found.state}",
            object="rack",
            hint="run `lightloom testbed down`, then try again",
        )
    if chosen and Path(found.site_file).resolve() != site_path.resolve():
        raise DemoError(
            "conflict",
            f"the running rack uses another site file: {found.site_file}",
            object="rack",
            hint="run `lightloom testbed down`, or omit --site",
        )
    try:
        yield found
    finally:
        try:
            rack.set_rates(run_dir, found.access_bps, found.inter_aggregator_bps)
        except rack.RackError as error:  # an error of the run itself has priority
            progress(f"the link rates could not be restored: {error.message}")


@contextmanager
def tidied(controller: Controller, progress: Progress) -> Iterator[DemoJobs]:
    """Cancel the remaining jobs at the end, and move the endpoints back to their homes."""
    jobs = DemoJobs(controller)
    found = homes.present(controller)
    try:
        yield jobs
    except BaseException:
        progress("cancelling the demo's jobs")
        try:
            jobs.end_all()
            homes.restore(controller, found)
        except DemoError as error:  # the first error has priority
            progress(f"the clean-up failed: {error.message}")
        raise
    homes.restore(controller, found)


def make_folder(out_dir: Path) -> None:
    """Create the folder of results. Raises DemoError(invalid)."""
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(
            "invalid",
            f"the folder {out_dir} cannot be created: {error.strerror}",
            object=str(out_dir),
            hint="choose another folder with --out",
        ) from error


def write(out_dir: Path, case: str, result: Document, raw: Document) -> None:
    """Write an experiment's result, and what it is computed from."""
    for name, data in ((f"demo-{case}.json", result), (f"demo-{case}-raw.json", raw)):
        (out_dir / name).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def require_idle(controller: Controller) -> None:
    """Raise DemoError(conflict) while jobs run."""
    busy = [job["name"] for job in controller.items("/jobs") if job["state"] not in ENDED]
    if busy:
        raise DemoError(
            "conflict",
            f"the rack is in use by {', '.join(busy)}",
            object=f"job/{busy[0]}",
            hint="the experiment needs an idle rack: lightloom cancel",
        )
