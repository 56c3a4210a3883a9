"""What an endpoint is has a name: an endpoint that is kept aside is not out of reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from controller.schema.fabric import EndpointView
from sitefile import load_site
from sitefile.recovery import RecoveryPolicy
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER


async def seen(rack: Rack, name: str) -> EndpointView:
    return {e.name: e for e in await rack.desks.fabric.endpoints()}[name]


async def test_a_spare_is_reserved(rack: Rack) -> None:
    await submit(rack, "red", 2, spares=1, restart="on-failure:9")
    await rack.state("red", "running")

    async def standing_by() -> list[EndpointView]:
        shown = await rack.desks.fabric.endpoints()
        return [e for e in shown if e.reason == "spare of job red"]

    await rack.until(standing_by)
    assert [e.state for e in await standing_by()] == ["reserved"]


async def test_a_spare_of_the_site_is_reserved(tmp_path: Path) -> None:
    site = replace(load_site(PAPER), recovery=RecoveryPolicy(spares=frozenset({"gpu5"})))
    rack = Rack(tmp_path, site)
    await rack.up()
    shown = await seen(rack, "gpu5")
    assert (shown.state, shown.reason) == ("reserved", "kept as a spare of the site")
    await rack.down()


async def test_what_is_drained_says_whether_a_job_is_still_on_it(rack: Rack) -> None:
    await submit(rack, "red", 1, endpoints=["gpu2"])
    await rack.state("red", "running")
    await rack.desks.drains.drain("node", "srv1", now=False)
    assert (await seen(rack, "gpu2")).state == "draining"
    assert (await seen(rack, "gpu3")).state == "drained"
    await rack.desks.drains.undrain("node", "srv1")
    assert [(await seen(rack, name)).state for name in ("gpu2", "gpu3")] == ["busy", "idle"]


async def test_a_lost_gpu_is_lost_and_a_driver_that_fails_is_not_ready(rack: Rack) -> None:
    rack.engine.sick = {"gpu1": "the GPU is lost"}
    rack.engine.driverless = {"gpu3": "NVML does not work: version mismatch"}

    async def known() -> bool:
        return bool((await seen(rack, "gpu1")).unfit)

    await rack.until(known)
    shown = await seen(rack, "gpu1")
    assert (shown.state, shown.reason) == ("lost", "the GPU is lost")
    assert (await seen(rack, "gpu3")).state == "unready"


async def test_a_container_that_nobody_knows_holds_its_endpoint(rack: Rack) -> None:
    rack.engine.hung = {"gpu0"}
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    await rack.desks.jobs.cancel("red")

    async def held() -> bool:
        return (await seen(rack, "gpu0")).state == "held"

    await rack.until(held)


async def test_only_a_silent_agent_makes_an_endpoint_unreachable(rack: Rack) -> None:
    rack.engine.lost.add("srv1")

    async def states() -> dict[str, str]:
        return {e.name: e.state for e in await rack.desks.fabric.endpoints()}

    async def noticed() -> bool:
        return (await states())["gpu2"] != "idle"

    await rack.until(noticed)
    assert {name for name, state in (await states()).items() if state == "unreachable"} == {
        "gpu2",
        "gpu3",
    }


async def test_light_that_an_operator_took_is_dark(rack: Rack) -> None:
    assert (await seen(rack, "gpu4")).state == "idle"
    await rack.desks.plans.attach("gpu4", None, 30.0)
    assert (await seen(rack, "gpu4")).state == "dark"
