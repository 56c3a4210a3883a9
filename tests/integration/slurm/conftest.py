"""One rack under Slurm for the tests here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.mortal import Mortal, taken_over
from tests.integration.slurm.parts import Slurm, rack_under_slurm

RUN_DIR = Path("/run/lightloom/test-slurm")


@pytest.fixture(scope="package")
def under_slurm() -> Iterator[Slurm]:
    with rack_under_slurm(RUN_DIR) as made:
        yield made


@pytest.fixture
def slurm(under_slurm: Slurm) -> Iterator[Slurm]:
    """Every test begins with an empty Slurm, and the light at the site file's homes."""
    yield under_slurm
    under_slurm.empty()


@pytest.fixture(scope="package")
def mortal(under_slurm: Slurm) -> Iterator[Mortal]:
    """The rack's controller from then on, which can be killed."""
    with taken_over(under_slurm.status, RUN_DIR) as made:
        yield made
