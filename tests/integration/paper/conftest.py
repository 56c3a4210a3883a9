"""One rack for the tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.demo.api import Controller
from testbed.rack import RackStatus
from tests.integration.paper_rack import controller_of, paper_rack

RUN_DIR = Path("/run/lightloom/test-paper")


@pytest.fixture(scope="package")
def paper() -> Iterator[RackStatus]:
    with paper_rack(RUN_DIR) as status:
        yield status


@pytest.fixture
def controller(paper: RackStatus) -> Iterator[Controller]:
    with controller_of(paper) as made:
        yield made
