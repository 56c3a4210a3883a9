from __future__ import annotations

import json

import pytest

from controller.devices.aggregators import AttachPoint
from controller.fabric.dark_time import predicted_dark_time_s
from controller.schema.jobs import read_job
from controller.schema.plans import PlanRequest, PlanView
from controller.transaction.circuits import Link, rewire
from ocs_driver.base import BusyPort, Capabilities
from sitefile import load_site
from tests.parts.controller.jobs import scattered
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

SITE = load_site(PAPER)
KEYS = {
    "moves",
    "homes_after",
    "excess_span_before",
    "excess_span_after",
    "running_moves",
    "jobs_paused",
    "paused_gpus",
    "pause_gpu_seconds",
    "bound",
    "optimal",
    "solver_seconds",
}


async def test_the_plan_document_has_the_documented_keys_and_survives_a_file(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    document = json.loads(plan.model_dump_json())
    assert document.keys() >= KEYS
    assert document["moves"][0].keys() == {"endpoint", "from", "to"}
    assert document["circuits"].keys() == {"break", "make"}
    assert document["bound"].keys() == {"excess_span", "running_moves", "paused_gpus"}
    assert PlanView.model_validate(document) == plan
    red = next(gain for gain in plan.predicted_gain if gain.job == "red")
    assert (red.ring_crossings_before, red.ring_crossings_after) == (4, 0)
    # Two of the ring's edges share one direction of the link between the aggregators.
    assert red.communication_speedup == pytest.approx(2 * 250 / 114, abs=0.01)
    assert plan.flows.add > 0


def known(switch_s: float, bulk_s: float) -> Capabilities:
    return Capabilities("v", "m", "s", "f", True, True, False, BusyPort.REJECT, switch_s, bulk_s)


def at_once(_link: Link) -> float:
    return 0.0


def test_dark_time_includes_the_slowest_link_that_is_lit() -> None:
    at = {f"gpu{i}": AttachPoint("as0", i + 1) for i in range(2)}
    two, light = rewire(SITE, at, dict.fromkeys(at, "as1")), {"ocs0": known(0.05, 0.15)}
    slow = {"gpu0": 6.0, "gpu1": 12.0}
    found = predicted_dark_time_s(two, light, lambda link: slow[link.endpoint])
    assert found == pytest.approx(0.1 + 12 + 0.02)


def test_dark_time_grows_with_circuits_up_to_a_bulk() -> None:
    at = {f"gpu{i}": AttachPoint("as0", i + 1) for i in range(4)}
    one = rewire(SITE, at, {"gpu0": "as1"})
    four = rewire(SITE, at, dict.fromkeys(at, "as1"))
    light = {"ocs0": known(0.05, 0.15)}
    assert predicted_dark_time_s(one, light, at_once) == pytest.approx(0.07)
    assert predicted_dark_time_s(four, light, at_once) == pytest.approx(0.17)
    assert predicted_dark_time_s(four, {}, at_once) == pytest.approx(0.12)  # 4 usual circuits
    assert predicted_dark_time_s(rewire(SITE, {}, {"gpu0": "as1"}), light, at_once) == 0


@pytest.mark.parametrize("name", ["Red", "a_b", "", "x" * 64, "-n 7\n"])
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        read_job({"name": name, "count": 1})


def test_unknown_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus"):
        read_job({"count": 1, "gpus": 4})
