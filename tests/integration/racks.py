"""Racks that several tests use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sitefile import load_site
from testbed import rack
from testbed.demo import PAPER_SITE, homes
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.demo.jobs import ENDED
from testbed.rack import RackStatus
from testbed.rack.slurm.config import UnderSlurm
from tests.integration import waiting

CLEAN_S = 180.0


@contextmanager
def rack_of(site: Path, run_dir: Path, slurm: UnderSlurm | None = None) -> Iterator[RackStatus]:
    """Bring a rack up; nothing of it is left at the end."""
    try:
        yield rack.up(site, run_dir, progress=lambda line: None, slurm=slurm)
    finally:
        rack.down(run_dir, progress=lambda line: None)
    assert rack.status(run_dir).state == "down"


@contextmanager
def controller_of(status: RackStatus) -> Iterator[Controller]:
    """Yield the controller of a rack of the paper's site, and leave it as it was at first.

    What still runs is ended, and every endpoint comes home.
    """
    with Controller(status.url) as controller:
        yield controller
        for job in unended(controller):
            end(controller, job["name"])
        until = partial(waiting.until, limit_s=CLEAN_S, pause_s=0.2)
        until(lambda: unended(controller), lambda found: not found)
        until(lambda: controller.items("/containers"), lambda found: not found)
        homes.restore(controller, load_site(PAPER_SITE).homes)


def unended(controller: Controller) -> list[Document]:
    return [job for job in controller.items("/jobs") if job["state"] not in ENDED]


def end(controller: Controller, job: str) -> None:
    try:
        controller.post(f"/jobs/{job}/cancel")
    except DemoError as error:
        if error.code != "conflict":  # it has ended meanwhile
            raise
