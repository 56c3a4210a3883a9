"""One rack for the tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from testbed.rack import RackStatus
from tests.integration.racks import controller_of, rack_of

RUN_DIR = Path("/run/lightloom/test-paper")


@pytest.fixture(scope="package")
def paper() -> Iterator[RackStatus]:
    with rack_of(PAPER_SITE, RUN_DIR) as status:
        yield status


@pytest.fixture
def controller(paper: RackStatus) -> Iterator[Controller]:
    with controller_of(paper) as made:
        yield made
