"""Whether a transaction is open: what the parent has to know when the controller dies."""

from __future__ import annotations

import asyncio

from tests.parts.controller.rack import Rack, crash


async def test_a_transaction_is_open_from_its_begin_to_its_end(rack: Rack) -> None:
    assert not rack.service.moving
    reached, go, apply = asyncio.Event(), asyncio.Event(), rack.switch.apply

    async def later(*args: object, **kwargs: object) -> object:
        reached.set()
        await go.wait()
        return await apply(*args, **kwargs)  # type: ignore[arg-type]

    rack.switch.apply = later  # type: ignore[method-assign, assignment]
    await rack.desks.plans.attach("gpu0", "as1", wait_s=0)
    await reached.wait()
    assert rack.service.moving
    go.set()
    await rack.until(lambda: not rack.service.moving)


async def test_what_a_predecessor_left_open_is_open_until_it_is_put_right(rack: Rack) -> None:
    reached, apply = asyncio.Event(), rack.switch.apply

    async def never(*_args: object, **_kwargs: object) -> object:
        reached.set()
        return await asyncio.Event().wait()

    rack.switch.apply = never  # type: ignore[method-assign, assignment]
    await rack.desks.plans.attach("gpu0", "as1", wait_s=0)
    await reached.wait()
    await crash(rack)
    rack.switch.apply = apply  # type: ignore[method-assign]
    rack.switch.away = True
    dead = rack.service
    up = asyncio.create_task(rack.up())
    await rack.until(lambda: rack.service is not dead and rack.service.moving)
    assert not rack.service.recovered.is_set()
    rack.switch.away = False
    await up
    await rack.until(rack.service.recovered.is_set)
    assert not rack.service.moving
