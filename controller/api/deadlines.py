"""Time limits of the API's calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from controller.base.errors import ServiceError

Result = TypeVar("Result")


async def within(seconds: float, what: str, work: Awaitable[Result]) -> Result:
    """Await a read for at most ``seconds``, then cancel it. ServiceError ``timeout``."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise ServiceError(
            "timeout",
            f"no answer within {seconds:g} s",
            object=what,
            hint="the controller is busy; try again",
        ) from None


async def change(seconds: float, what: str, work: Awaitable[Result]) -> Result:
    """Await a change for at most ``seconds``. After that it continues: half a change is worse."""
    task = asyncio.ensure_future(work)
    try:
        return await within(seconds, what, asyncio.shield(task))
    except ServiceError as error:
        if error.code == "timeout" and not task.done():
            error.hint = "the change continues in the controller; check the object's state"
            task.add_done_callback(_swallow)
        raise


def _swallow(task: asyncio.Future[Result]) -> None:
    """Retrieve the result after its caller left; the service has logged it as an event."""
    if not task.cancelled():
        task.exception()
