"""One rack for all trainings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from testbed.engine import EngineInfo
from testbed.image.torch import ensure_torch_image
from testbed.rack import RackStatus
from tests.integration.racks import controller_of, rack_of

RUN_DIR = Path("/run/lightloom/test-training")


@pytest.fixture(scope="package")
def paper() -> Iterator[RackStatus]:
    with rack_of(PAPER_SITE, RUN_DIR) as status:
        ensure_torch_image(EngineInfo(status.docker_host, status.docker_private))
        yield status


@pytest.fixture
def controller(paper: RackStatus) -> Iterator[Controller]:
    with controller_of(paper) as made:
        yield made


@pytest.fixture
def image(paper: RackStatus) -> str:
    """The trainer's image."""
    return paper.image


@pytest.fixture
def volumes(paper: RackStatus) -> Path:
    """The directory of the rack's volumes."""
    return Path(paper.run_dir) / "volumes"
