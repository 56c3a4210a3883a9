"""The aggregators' contract: the same expectations for every southbound."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import permutations

import pytest

from controller.devices.aggregators import (
    AggregatorConnected,
    AggregatorError,
    AggregatorLost,
    Aggregators,
    AttachPoint,
    Forwarding,
    ForwardingChanges,
    PortStatus,
)
from tests.contract.aggregators_rig import PATIENCE_S, PORTS, RIGS, Rig, until
from tests.parts.openflow.sites import make_site

PLACES = {
    "gpu0": AttachPoint("as0", 1),
    "gpu1": AttachPoint("as0", 2),
    "gpu2": AttachPoint("as1", 1),
    "gpu3": AttachPoint("as1", 2),
}
RED, BLUE = ("gpu0", "gpu1", "gpu2"), ("gpu3",)
BOTH = frozenset({"as0", "as1"})
UPLINKS = make_site().uplinks
IDLE = Forwarding(1, PLACES, {}, uplinks=UPLINKS)
WANTED = replace(IDLE, epoch=2, jobs={"red": RED, "blue": BLUE})
NOTHING = ForwardingChanges(0, 0)
SOON_S = 0.2
"""For an answer that is not expected."""


@pytest.fixture(params=RIGS, ids=lambda make: make.__name__)
async def rig(request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    make: Callable[[], AbstractAsyncContextManager[Rig]] = request.param
    async with make() as running:
        running.light.update(PLACES)
        yield running


def reached(rig: Rig) -> set[tuple[str, str]]:
    """Who reaches whom, of all lit endpoints."""
    return {pair for pair in permutations(rig.light, 2) if rig.reaches(*pair)}


def among(*endpoints: str) -> set[tuple[str, str]]:
    """All pairs of some endpoints."""
    return set(permutations(endpoints, 2))


async def answers(rig: Rig, endpoint: str, within_s: float = PATIENCE_S) -> bool:
    """Whether a probe through the port that the endpoint is at is answered."""
    at, cable = rig.light[endpoint], rig.site.endpoint(endpoint)
    ask = rig.aggregators.probe(at.aggregator, at.port, cable.ip, cable.mac, deadline_s=within_s)
    return await ask is not None


# --- what is forwarded ------------------------------------------------------------------------


async def test_before_the_first_intent_nothing_is_forwarded(rig: Rig) -> None:
    assert reached(rig) == set()


async def test_the_endpoints_of_a_job_reach_each_other_and_no_others(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    assert reached(rig) == among(*RED)


async def test_an_endpoint_cannot_pose_as_another(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    assert not rig.reaches("gpu3", "gpu2", posing_as="gpu0")
    assert not rig.reaches("gpu1", "gpu2", posing_as="gpu0")


async def test_the_same_intent_again_writes_nothing(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    before = {name: rig.written(name) for name in BOTH}
    await rig.aggregators.converge(WANTED, BOTH)
    await rig.aggregators.converge(replace(WANTED, epoch=9), BOTH)
    assert {name: rig.written(name) for name in BOTH} == before


async def test_a_job_that_is_gone_leaves_nothing_behind(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    await rig.aggregators.converge(replace(IDLE, epoch=3), BOTH)
    assert reached(rig) == set()
    assert [await rig.aggregators.audit(name) for name in sorted(BOTH)] == [[], []]


async def test_forwarding_follows_an_endpoint_that_moves(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    rig.light["gpu1"] = AttachPoint("as1", 3)
    await rig.aggregators.converge(replace(WANTED, epoch=3, attachments=dict(rig.light)), BOTH)
    assert reached(rig) == among(*RED)
    rig.light["gpu1"] = PLACES["gpu1"]
    assert reached(rig) == among("gpu0", "gpu2"), "the old place is no longer bound to it"


async def test_a_dark_endpoint_is_left_out(rig: Rig) -> None:
    places = {e: at for e, at in PLACES.items() if e != "gpu1"}
    await rig.aggregators.converge(replace(WANTED, attachments=places), BOTH)
    assert reached(rig) == among("gpu0", "gpu2")


async def test_frames_pass_only_the_uplinks_of_the_intent(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    await rig.aggregators.converge(replace(WANTED, epoch=3, uplinks=()), BOTH)
    assert reached(rig) == among("gpu0", "gpu1")
    await rig.aggregators.converge(replace(WANTED, epoch=4), BOTH)
    assert reached(rig) == among(*RED)


# --- held and spared --------------------------------------------------------------------------


async def test_held_endpoints_get_no_traffic_and_answer_probes(rig: Rig) -> None:
    await rig.aggregators.converge(replace(WANTED, held=frozenset({"gpu0"})), BOTH)
    assert reached(rig) == among("gpu1", "gpu2")
    assert await answers(rig, "gpu0")
    await rig.aggregators.converge(replace(WANTED, epoch=3), BOTH)
    assert reached(rig) == among(*RED)


async def test_forwarding_of_spared_endpoints_stays_as_it_was_found(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    for name in BOTH:
        await rig.disconnect(name)
    await rig.aggregators.converge(replace(IDLE, epoch=3, spared=frozenset(RED)))
    for name in BOTH:
        await rig.reconnect(name)
    await rig.aggregators.converge(replace(IDLE, epoch=3, spared=frozenset(RED)), BOTH)
    assert reached(rig) == among(*RED)
    assert [await rig.aggregators.audit(name) for name in sorted(BOTH)] == [[], []]
    await rig.aggregators.converge(replace(IDLE, epoch=4), BOTH)
    assert reached(rig) == set()


async def test_a_job_that_ends_leaves_nothing_to_spared_endpoints(rig: Rig) -> None:
    spared = frozenset(PLACES)
    await rig.aggregators.converge(replace(WANTED, spared=spared), BOTH)
    await rig.aggregators.converge(replace(IDLE, epoch=3, spared=spared), BOTH)
    assert reached(rig) == set()


# --- who wins, what is needed, what is foreseen -----------------------------------------------


async def test_of_several_callers_the_latest_wins(rig: Rig) -> None:
    jobs: list[dict[str, tuple[str, ...]]] = [{"red": RED}, {}, {"red": ("gpu0", "gpu3")}]
    intents = [replace(IDLE, epoch=n, jobs=some) for n, some in enumerate(jobs, 2)]
    await asyncio.gather(*(rig.aggregators.converge(intent, BOTH) for intent in intents))
    assert reached(rig) == among("gpu0", "gpu3")


async def test_one_that_is_away_is_an_error_for_those_who_need_it(rig: Rig) -> None:
    await rig.disconnect("as1")
    with pytest.raises(AggregatorError) as caught:
        await rig.aggregators.converge(WANTED, frozenset({"as1"}))
    assert (caught.value.code, caught.value.obj) == ("unavailable", "as1")
    assert rig.reaches("gpu0", "gpu1"), "the others follow"
    await rig.aggregators.converge(WANTED, frozenset({"as0"}))
    await rig.aggregators.converge(WANTED)


async def test_one_that_refuses_is_an_error_and_follows_later(rig: Rig) -> None:
    rig.refuse("as0", True)
    with pytest.raises(AggregatorError) as caught:
        await rig.aggregators.converge(WANTED, BOTH)
    assert (caught.value.code, caught.value.obj) == ("failed", "as0")
    rig.refuse("as0", False)
    await rig.aggregators.converge(WANTED, BOTH)
    assert reached(rig) == among(*RED)


@pytest.mark.parametrize("came", [WANTED, IDLE, replace(WANTED, held=frozenset({"gpu0"}))])
async def test_what_was_foreseen_is_only_a_hint(rig: Rig, came: Forwarding) -> None:
    before = {name: rig.written(name) for name in BOTH}
    rig.aggregators.foresee(WANTED)
    assert await rig.aggregators.changes(IDLE, IDLE) == NOTHING  # it had time to do something
    assert {name: rig.written(name) for name in BOTH} == before
    await rig.aggregators.converge(came, BOTH)
    members = [e for e in RED if e not in came.held] if came.jobs else []
    assert reached(rig) == among(*members)


# --- what would change ------------------------------------------------------------------------


async def test_changes_are_counted_and_not_made(rig: Rig) -> None:
    await rig.aggregators.converge(IDLE, BOTH)
    before = {name: rig.written(name) for name in BOTH}
    more = await rig.aggregators.changes(IDLE, WANTED)
    less = await rig.aggregators.changes(WANTED, IDLE)
    assert more.add > 0 and more.delete == 0
    assert (less.add, less.delete) == (0, more.add)
    assert await rig.aggregators.changes(WANTED, replace(WANTED, epoch=9)) == NOTHING
    assert {name: rig.written(name) for name in BOTH} == before
    assert reached(rig) == set()


async def test_a_bigger_change_counts_more(rig: Rig) -> None:
    two = await rig.aggregators.changes(IDLE, replace(IDLE, jobs={"red": RED[:2]}))
    three = await rig.aggregators.changes(IDLE, replace(IDLE, jobs={"red": RED}))
    assert three.add > two.add > 0


# --- sessions ---------------------------------------------------------------------------------


async def test_sessions_are_posted(rig: Rig) -> None:
    assert rig.aggregators.connected() == BOTH
    assert {e.as_name for e in rig.events if isinstance(e, AggregatorConnected)} == BOTH
    await rig.disconnect("as1")
    assert rig.aggregators.connected() == {"as0"}
    await until(lambda: AggregatorLost("as1") in rig.events)
    assert AggregatorLost("as0") not in rig.events


async def test_one_that_is_away_forwards_as_before_and_follows_when_it_comes_back(
    rig: Rig,
) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    await rig.disconnect("as0")
    await rig.aggregators.converge(replace(IDLE, epoch=3))
    assert rig.reaches("gpu0", "gpu1")
    await rig.reconnect("as0")
    assert reached(rig) == set()
    assert await rig.aggregators.audit("as0") == []
    told = [e for e in rig.events if isinstance(e, AggregatorConnected) and e.as_name == "as0"]
    assert told[-1].repaired


async def test_one_that_comes_back_as_it_was_left_is_not_written_to(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    before = rig.written("as0")
    await rig.disconnect("as0")
    await rig.reconnect("as0")
    assert rig.written("as0") == before
    assert rig.events[-1] == AggregatorConnected("as0")


@pytest.mark.parametrize("change", ["wipe", "edit"])
async def test_one_that_comes_back_altered_is_put_right(rig: Rig, change: str) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    await rig.disconnect("as0")
    getattr(rig, change)("as0")
    await rig.reconnect("as0")
    assert reached(rig) == among(*RED)
    assert await rig.aggregators.audit("as0") == []
    told = rig.events[-1]
    assert isinstance(told, AggregatorConnected) and told.repaired


async def test_the_end_of_the_controller_stops_no_forwarding(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    before = list(rig.events)
    await rig.aggregators.stop()
    assert reached(rig) == among(*RED)
    assert rig.aggregators.connected() == frozenset()
    assert rig.events == before, "sessions that were ended on purpose are not lost"
    await rig.aggregators.stop()


# --- what is read -----------------------------------------------------------------------------


async def test_an_audit_lists_a_foreign_edit_until_it_is_put_right(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    assert await rig.aggregators.audit("as0") == []
    rig.edit("as0")
    assert len(await rig.aggregators.audit("as0")) == 1
    assert await rig.aggregators.audit("as1") == []
    await rig.aggregators.converge(WANTED, BOTH)
    assert await rig.aggregators.audit("as0") == []


async def test_an_audit_lists_what_is_missing(rig: Rig) -> None:
    await rig.aggregators.converge(WANTED, BOTH)
    rig.wipe("as0")
    assert await rig.aggregators.audit("as0")
    await rig.aggregators.converge(WANTED, BOTH)
    assert reached(rig) == among(*RED)


async def test_only_the_endpoint_that_is_there_answers_a_probe(rig: Rig) -> None:
    await rig.aggregators.converge(IDLE, BOTH)
    assert await answers(rig, "gpu0")
    rig.light["gpu0"], rig.light["gpu1"] = rig.light["gpu1"], rig.light["gpu0"]
    assert not await answers(rig, "gpu0", SOON_S), "the intent has it elsewhere"
    cable = rig.site.endpoint("gpu0")
    ask = rig.aggregators.probe("as0", 1, cable.ip, cable.mac, deadline_s=SOON_S)
    assert await ask is None, "another endpoint is there"


async def test_port_counters_are_the_devices(rig: Rig) -> None:
    assert dict(await rig.aggregators.port_counters("as0")) == rig.counters("as0")


async def test_carrier_follows_the_ports(rig: Rig) -> None:
    assert {p: rig.aggregators.carrier("as0")[p] for p in PORTS} == dict.fromkeys(PORTS, True)
    rig.set_carrier("as0", 2, False)
    await until(lambda: PortStatus("as0", 2, False) in rig.events)
    assert not rig.aggregators.carrier("as0")[2]
    assert rig.aggregators.carrier("as1")[2]
    rig.set_carrier("as0", 2, True)
    await until(lambda: PortStatus("as0", 2, True) in rig.events)
    assert rig.aggregators.carrier("as0")[2]


def _probe(aggregators: Aggregators, as_name: str) -> Awaitable[object]:
    return aggregators.probe(as_name, 1, "10.77.0.1", "02:00:00:00:01:01", deadline_s=PATIENCE_S)


CALLS: dict[str, Callable[[Aggregators, str], Awaitable[object]]] = {
    "audit": lambda aggregators, name: aggregators.audit(name),
    "port_counters": lambda aggregators, name: aggregators.port_counters(name),
    "probe": _probe,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_to_one_that_is_away_or_unknown_says_so(
    rig: Rig, call: Callable[[Aggregators, str], Awaitable[object]]
) -> None:
    await rig.disconnect("as1")
    for name, code in (("as1", "unavailable"), ("as9", "not_found")):
        with pytest.raises(AggregatorError) as caught:
            await call(rig.aggregators, name)
        assert (caught.value.code, caught.value.obj) == (code, name)
