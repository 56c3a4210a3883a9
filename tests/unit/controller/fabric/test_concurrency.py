"""Transactions on disjoint endpoints run concurrently; overlapping ones are refused."""

from __future__ import annotations

import asyncio

import pytest

from controller.base.errors import ServiceError
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack

TO_AS1, DARK = "as1", None


def block_switch(rack: Rack) -> asyncio.Event:
    """Block optical changes until the event is set."""
    go, apply = asyncio.Event(), rack.switch.apply

    async def later(*args: object, **kwargs: object) -> object:
        await go.wait()
        return await apply(*args, **kwargs)  # type: ignore[arg-type]

    rack.switch.apply = later  # type: ignore[method-assign, assignment]
    return go


async def ended(rack: Rack, *idents: str) -> list[str]:
    async def done() -> bool:
        return not rack.see.transactions.running

    await rack.until(done)
    return [rack.desks.plans.transaction(ident).state for ident in idents]


async def test_disjoint_transactions_run_concurrently(rack: Rack) -> None:
    go = block_switch(rack)
    first = await rack.desks.plans.attach("gpu0", TO_AS1, wait_s=0)
    second = await rack.desks.plans.attach("gpu5", DARK, wait_s=0)

    async def both_at_the_light() -> bool:
        views = [rack.desks.plans.transaction(t.id) for t in (first, second)]
        return {view.phase for view in views} == {"switch"}

    await rack.until(both_at_the_light)
    go.set()
    assert await ended(rack, first.id, second.id) == ["committed", "committed"]
    light = rack.aggregators.light()
    assert light["gpu0"].aggregator == "as1"
    assert "gpu5" not in light
    assert light == rack.see.light.attachments


async def test_two_transactions_never_choose_the_same_port(rack: Rack) -> None:
    """as1 has one free port: the second transaction is refused before a device is touched."""
    go = block_switch(rack)
    first = await rack.desks.plans.attach("gpu0", TO_AS1, wait_s=0)
    asked = len(rack.switch.applied)
    with pytest.raises(ServiceError) as caught:
        await rack.desks.plans.attach("gpu1", TO_AS1, wait_s=0)
    assert (caught.value.code, len(rack.switch.applied)) == ("conflict", asked)
    go.set()
    assert await ended(rack, first.id) == ["committed"]


async def test_the_same_endpoint_or_the_same_job_is_a_conflict(rack: Rack) -> None:
    await submit(rack, "red", 2, endpoints=["gpu0", "gpu2"])
    await rack.state("red", "running")
    go = block_switch(rack)
    first = await rack.desks.plans.attach("gpu0", TO_AS1, wait_s=0)
    for endpoint, to in (("gpu0", "as1"), ("gpu2", "as0")):
        with pytest.raises(ServiceError) as caught:
            await rack.desks.plans.attach(endpoint, to, wait_s=0)
        assert caught.value.code == "conflict"
    go.set()
    assert await ended(rack, first.id) == ["committed"]
    assert rack.engine.calls.count(("freeze", "red")) == 1


async def test_many_operators_at_once_lose_no_update(rack: Rack) -> None:
    """Of all requests for the same move, one succeeds and the others get a conflict."""
    plans = [rack.desks.plans.attach("gpu0", TO_AS1, wait_s=60) for _ in range(20)]
    results = await asyncio.gather(*plans, return_exceptions=True)
    refused = [r for r in results if isinstance(r, ServiceError)]
    assert len(refused) == 19
    assert {error.code for error in refused} == {"conflict"}
    assert len(rack.see.transactions.finished) == 2  # the site's first homes, and this one
