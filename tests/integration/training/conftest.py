"""One rack of the paper's site for all trainings; each test finds it as it was at first."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sitefile import load_site
from testbed import rack
from testbed.demo import PAPER_SITE, homes
from testbed.demo.api import Controller, Document
from testbed.demo.errors import DemoError
from testbed.demo.jobs import ENDED
from testbed.engine import EngineInfo
from testbed.image.torch import ensure_torch_image
from testbed.rack import RackStatus
from tests.integration import waiting

RUN_DIR = Path("/run/lightloom/test-training")
CLEAN_S = 180.0


@pytest.fixture(scope="package")
def paper() -> Iterator[RackStatus]:
    status = rack.up(PAPER_SITE, RUN_DIR, progress=lambda line: None)
    try:
        ensure_torch_image(EngineInfo(status.docker_host, status.docker_private))
        yield status
    finally:
        rack.down(RUN_DIR, progress=lambda line: None)


@pytest.fixture
def controller(paper: RackStatus) -> Iterator[Controller]:
    with Controller(paper.url) as made:
        yield made
        leave(made)


@pytest.fixture
def image(paper: RackStatus) -> str:
    """The trainer's image."""
    return paper.image


@pytest.fixture
def volumes(paper: RackStatus) -> Path:
    """The directory of the rack's volumes."""
    return Path(paper.run_dir) / "volumes"


def leave(controller: Controller) -> None:
    """End what still runs and bring every endpoint home."""
    for job in controller.items("/jobs"):
        if job["state"] not in ENDED:
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
