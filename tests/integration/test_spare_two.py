"""On a rack with two optical switches: no light goes from one to the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import testbed
from sitefile import load_site
from testbed import rack
from testbed.mortal import Mortal
from tests.integration.spare_parts import (
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


@pytest.fixture(scope="module")
def mortal() -> Iterator[Mortal]:
    with mortal_rack(SITE, RUN_DIR) as made:
        yield made


@pytest.fixture(autouse=True)
def whole(mortal: Mortal) -> Iterator[None]:
    yield
    made_whole(mortal, RUN_DIR)


@pytest.mark.parametrize("switch", [pytest.param("ocs0", marks=pytest.mark.soak), "ocs1"])
def test_a_spare_takes_a_place_that_any_switch_gives_it(mortal: Mortal, switch: str) -> None:
    """It needs a free port of the dead one's aggregator at its own switch."""
    job = submit(mortal, f"red-{switch}")
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    dead = next(e for e in mortal.get(f"/jobs/{job}")["endpoints"] if SWITCH_OF[e] == switch)
    place = homes(mortal)[dead]
    rack.lose(dead, RUN_DIR)
    recovery = ended_well(mortal, job)
    assert recovery["how"] == "swap"
    assert homes(mortal)[recovery["swaps"][dead]] == place
    assert recovery["step_restored"] >= newest


def test_a_lost_switchs_job_goes_on_at_the_other(mortal: Mortal) -> None:
    """Nothing starts on the lost one's endpoints: their agents answer, but they have no light."""
    job = submit(mortal, "grey", spares=0)
    reached(mortal, job, 12)
    newest = protected(mortal, job)
    assert {SWITCH_OF[e] for e in mortal.get(f"/jobs/{job}")["endpoints"]} == {"ocs0", "ocs1"}
    rack.lose("ocs1", RUN_DIR)
    recovery = ended_well(mortal, job)
    assert (recovery["how"], recovery["cause"]) == ("queue", "switch")
    assert recovery["step_restored"] >= newest
    assert len(mortal.get(f"/jobs/{job}/recoveries")["recoveries"]) == 1
    assert {SWITCH_OF[e] for e in mortal.get(f"/jobs/{job}")["endpoints"]} == {"ocs0"}
    assert told(mortal) == ["ObjectLost"]
    rack.repair("ocs1", RUN_DIR)
    mortal.until(lambda: told(mortal) == ["ObjectLost", "ObjectBack"])


def told(mortal: Mortal) -> list[str]:
    """Return which of its loss and its return was told, oldest first."""
    events = mortal.get("/events?limit=1000")["items"]
    mine = [e["reason"] for e in events if e["object"] == "switch/ocs1"]
    return [reason for reason in mine if reason in ("ObjectLost", "ObjectBack")]
