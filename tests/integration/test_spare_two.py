"""On a rack with two optical switches: no light goes from one to the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import testbed
from sitefile import load_site
from testbed import rack
from testbed.mortal import Mortal
from tests.integration.spare_parts import (
    RING,
    ended_well,
    homes,
    made_whole,
    mortal_rack,
    protected,
    reached,
    submit,
)

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

SITE = Path(testbed.__file__).parent / "sites" / "spare-two.yaml"
RUN_DIR = Path(f"/run/lightloom/test-spare-two-{os.getpid()}")
SWITCH_OF = {end.name: end.fiber.device for end in load_site(SITE).endpoints}
LONG_RING = replace(RING, steps=300)


@pytest.fixture(scope="module")
def mortal() -> Iterator[Mortal]:
    with mortal_rack(SITE, RUN_DIR) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(mortal: Mortal) -> Iterator[None]:
    yield
    made_whole(mortal, RUN_DIR)


@pytest.mark.parametrize("switch", ["ocs0", "ocs1"])
def test_a_spare_shares_the_switch_of_the_place_that_it_takes(mortal: Mortal, switch: str) -> None:
    job = submit(mortal, f"red-{switch}")
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    dead = next(e for e in mortal.get(f"/jobs/{job}")["endpoints"] if SWITCH_OF[e] == switch)
    place = homes(mortal)[dead]
    rack.lose(dead, RUN_DIR)
    recovery = ended_well(mortal, job)
    assert recovery["how"] == "swap"
    spare = recovery["swaps"][dead]
    assert SWITCH_OF[spare] == switch
    assert homes(mortal)[spare] == place
    assert recovery["step_restored"] >= newest


def test_a_lost_switch_takes_its_endpoints_and_the_job_goes_on_at_the_other(mortal: Mortal) -> None:
    """No spare can take a place at the lost switch; the job is placed anew."""
    job = submit(mortal, "blue", LONG_RING)
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    assert {SWITCH_OF[e] for e in mortal.get(f"/jobs/{job}")["endpoints"]} == {"ocs0", "ocs1"}
    rack.lose("ocs1", RUN_DIR)
    recovery = ended_well(mortal, job, LONG_RING)
    assert {SWITCH_OF[e] for e in mortal.get(f"/jobs/{job}")["endpoints"]} == {"ocs0"}
    assert recovery["step_restored"] >= newest
