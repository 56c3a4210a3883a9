"""A controller whose store was moved away: live containers keep running and keep their flows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.devices.openflow.rules.program import FlowProgram, diff
from controller.devices.openflow.rules.rule import FlowRule, RuleKey, ToController
from controller.ranks.strangers import still_spared, strangers
from controller.schema.submit.request import JobRequest
from sitefile import load_site
from tests.parts.controller.aggregators import FakeAggregators
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

TABLES: dict[str, dict[RuleKey, FlowRule]] = {}


class Tabled(FakeAggregators):
    """Has flow tables that survive the controller, and changes them by the difference."""

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        await super().install(programs, deadline_s=deadline_s)
        for name, program in programs.items():
            table = TABLES.setdefault(name, {})
            steps = diff(FlowProgram(name, 0, tuple(table.values())), program)
            for rule in steps.remove:
                del table[rule.key]
            table.update({rule.key: rule for rule in steps.add})


@pytest.fixture
def tabled(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> Rack:
    TABLES.clear()
    monkeypatch.setattr(Rack, "aggregators_kind", Tabled)
    return rack


def rules_of(rack: Rack, *endpoints: str) -> set[tuple[str, RuleKey, object]]:
    """Return the rules for these endpoints' traffic, without the probes', which change."""
    cables = [rack.site.endpoint(name) for name in endpoints]
    mine = {address for cable in cables for address in (cable.mac, cable.ip)}
    return {
        (name, rule.key, rule.actions)
        for name, table in TABLES.items()
        for rule in table.values()
        if not mine.isdisjoint(value for _, value in rule.match if isinstance(value, str))
        and ToController() not in rule.actions
    }


async def lose_store(rack: Rack) -> None:
    """Stop, and move the store away as its hint says."""
    await rack.down()
    for file in rack.state_dir.glob("controller.sqlite*"):
        file.rename(rack.state_dir / f"lost-{file.name}")
    for file in rack.state_dir.glob("*ack*"):
        file.unlink()


async def start_on_nothing(rack: Rack, **more: bool) -> None:
    """Start as ``Rack.up`` does, for a site that is not healthy."""
    whole = rack.whole
    rack.whole = lambda: ready(rack)  # type: ignore[method-assign]
    try:
        await rack.up(**more)
    finally:
        rack.whole = whole  # type: ignore[method-assign]


async def ready(rack: Rack) -> bool:
    return rack.desks.health.health().status != "starting"


async def test_flows_and_containers_of_unknown_jobs_stay(tabled: Rack) -> None:
    """A lost store must not cut the network of running containers."""
    rack = tabled
    await rack.down()
    await rack.up()
    await submit(rack, "red", 3, endpoints=["gpu0", "gpu1", "gpu2"])
    await rack.state("red", "running")
    before = rules_of(rack, "gpu0", "gpu1", "gpu2")
    assert len(before) > 10
    circuits = list(rack.switch.circuits)
    calls = list(rack.engine.calls)
    await lose_store(rack)
    await start_on_nothing(rack)
    await rack.until(lambda: rack.see.light.strangers)
    await rack.until(lambda: rack.see.light.spared == {"gpu0", "gpu1", "gpu2"})
    assert rules_of(rack, "gpu0", "gpu1", "gpu2") == before
    assert rack.switch.circuits == circuits
    assert rack.engine.calls == calls, "no container was stopped or frozen"
    health = rack.desks.health.health()
    assert (health.status, health.strangers.partition(". ")[0]) == (
        "degraded",
        "containers of unknown runs live: red on gpu0, gpu1, gpu2",
    )

    with pytest.raises(ServiceError, match="unknown job red"):
        await rack.desks.jobs.submit(JobRequest(count=1, name="red"))
    await submit(rack, "blue", 2)
    await rack.state("blue", "running")
    assert {s.endpoint for s in rack.engine.statuses.values() if s.job == "blue"} <= {
        "gpu3",
        "gpu4",
        "gpu5",
    }
    assert rules_of(rack, "gpu0", "gpu1", "gpu2") == before

    for key in [key for key in rack.engine.statuses if key[0] == "red"]:
        del rack.engine.statuses[key]  # stopped on their servers
    await rack.until(lambda: not rack.see.light.spared)
    await rack.until(lambda: not rules_of(rack, "gpu0", "gpu1", "gpu2"))
    await rack.until(rack.whole)


async def test_flows_under_an_unreachable_agent_stay_until_it_answers(tabled: Rack) -> None:
    rack = tabled
    await rack.down()
    await rack.up()
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"])
    await rack.state("red", "running")
    before = rules_of(rack, "gpu0", "gpu2")
    await lose_store(rack)
    rack.engine.lost = {"srv0"}  # of gpu0 and gpu1
    await start_on_nothing(rack)
    await rack.until(lambda: rack.see.light.spared == {"gpu0", "gpu1", "gpu2"})
    assert rules_of(rack, "gpu0", "gpu2") == before
    rack.engine.lost = set()
    await rack.until(lambda: rack.see.light.spared == {"gpu0", "gpu2"})
    assert rules_of(rack, "gpu0", "gpu2") == before


async def test_taking_command_uses_a_later_term_than_all_earlier_controllers(rack: Rack) -> None:
    first = rack.engine.term
    await rack.down()
    await rack.up()
    assert rack.engine.term == first + 1
    await rack.down()
    await rack.up(take_command=True)
    taken = rack.engine.term
    assert taken > 1_700_000_000
    await rack.down()
    await rack.up()
    assert rack.engine.term == taken + 1


async def test_a_known_jobs_endpoints_are_never_spared(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu1"])
    await rack.state("red", "running")
    await rack.down()
    rack.engine.lost = {"srv1"}
    await start_on_nothing(rack)
    await rack.until(lambda: rack.see.light.spared == {"gpu2", "gpu3"})
    assert rack.see.light.strangers == {}


async def test_an_agent_that_does_not_answer_releases_nothing(rack: Rack) -> None:
    cables = rack.see.cables
    await submit(rack, "red", 1, endpoints=["gpu0"])
    await rack.state("red", "running")
    (status,) = rack.engine.statuses.values()
    strange = strangers([replace(status, job="old")], lambda status: status.job == "red")
    assert strange == {"gpu0": "old"}
    spared = frozenset({"gpu0", "gpu1", "gpu2"})
    all_there = dict.fromkeys(("srv0", "srv1"), True)
    assert still_spared(spared, strange, cables, all_there) == {"gpu0"}
    assert still_spared(spared, {}, cables, {"srv0": False, "srv1": True}) == {"gpu0", "gpu1"}
    assert still_spared(spared, {}, cables, {}) is spared


async def test_health_names_the_aggregator_without_tls(tmp_path: Path) -> None:
    site = load_site(PAPER)
    first, *others = site.aggregators
    plain = replace(first, tls=False)
    rack = Rack(tmp_path, replace(site, aggregators=(plain, *others)))
    await rack.up()
    try:
        devices = rack.desks.health.health().devices
        said = {d.name: d.message for d in devices if d.kind == "aggregator"}
        assert said == {"as0": "OpenFlow without TLS: it does not prove who it is", "as1": ""}
    finally:
        await rack.down()
