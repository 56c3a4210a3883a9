"""Orders servers to keep, close and drop: once, and again later while it is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from agentlink.checkpoints import Keep
from base import clock
from checkpoints.ledger import Key
from controller.base.tasks import Tasks
from controller.devices.checkpoints import CheckpointEngine
from controller.devices.engine import EngineError

log = structlog.get_logger(__name__)

CALL_TIMEOUT_S = 10.0
AGAIN_S = 2.0
"""Before a failed order is repeated; doubles with every repetition up to ``MOST_S``."""
REPEAT_S = 30.0
"""Before an order that was accepted and is still not done is repeated; doubles likewise."""
MOST_S = 300.0
AT_ONCE = 64
"""Calls under way."""
MOST_FAILURES = 6
"""Of transfers of one order that bring its repetition forward, each half as much as the last."""
MOST_KEYS = 256
"""Steps of one order."""


@dataclass(slots=True)
class _Given:
    """An order as it was given last."""

    what: frozenset[Hashable]
    again_at: float
    wait_s: float
    failures: int = 0
    under_way: bool = True


class KeepOrders:
    """The orders that servers have. An order replaces the last one of its kind for its folder."""

    def __init__(
        self,
        engine: CheckpointEngine,
        tasks: Tasks,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._engine = engine
        self._tasks = tasks
        self._monotonic = monotonic
        self._given: dict[tuple[str, str, str], _Given] = {}
        """By kind, folder and server."""
        self._gate = asyncio.Semaphore(AT_ONCE)

    def keep(self, folder: str, server: str, keeps: Sequence[Keep], pace_bps: int) -> None:
        """Have a server make ``keeps``; an empty order ends what it has queued."""
        at = "keep", folder, server
        given = self._given.get(at)
        if given is None and not keeps:
            return
        if given is not None and keeps and given.what > frozenset(keeps):
            given.what = frozenset(keeps)  # the others are done: nothing is new for the server
        call = partial(self._engine.keep, server, folder, tuple(keeps), pace_bps, CALL_TIMEOUT_S)
        self._give(at, frozenset(keeps), call)

    def done(self, folder: str, server: str) -> None:
        """Note that a server has kept everything: the next order is a new one."""
        given = self._given.get(("keep", folder, server))
        if given is not None and not given.under_way:
            del self._given["keep", folder, server]

    def drop(self, folder: str, server: str, keys: Sequence[Key]) -> None:
        """Have a server remove steps."""
        some = tuple(sorted(keys)[:MOST_KEYS])
        call = partial(self._engine.drop_steps, server, folder, some, CALL_TIMEOUT_S)
        self._give(("drop", folder, server), frozenset(some), call)

    def close(self, folder: str, server: str, keys: Sequence[Key]) -> None:
        """Have a server sum the steps that awaited their coordinator."""
        some = tuple(sorted(keys)[:MOST_KEYS])

        async def call() -> None:
            for key in some:
                await self._engine.close_step(server, folder, key, CALL_TIMEOUT_S)

        self._give(("close", folder, server), frozenset(some), call)

    def forget(self, folder: str) -> None:
        """Forget all orders of a folder."""
        for at in [at for at in self._given if at[1] == folder]:
            del self._given[at]

    def failed(self, folder: str, server: str) -> None:
        """Repeat a server's order to keep sooner: it says that a part of it did not succeed."""
        given = self._given.get(("keep", folder, server))
        if given is not None and given.failures < MOST_FAILURES:
            wait_s = AGAIN_S * 2**given.failures
            given.failures += 1
            given.again_at = min(given.again_at, self._monotonic() + wait_s)

    def _give(
        self,
        at: tuple[str, str, str],
        what: frozenset[Hashable],
        call: Callable[[], Awaitable[None]],
    ) -> None:
        now = self._monotonic()
        given = self._given.get(at)
        if given is not None and given.under_way:
            return  # the caller asks again
        if given is not None and given.what == what and now < given.again_at:
            return
        same = given if given is not None and given.what == what else _Given(what, now, 0.0)
        given = self._given[at] = _Given(what, now, same.wait_s, same.failures)
        self._tasks.spawn(self._carry_out(at, given, call), f"{at[0]} of {at[1]} on {at[2]}")

    async def _carry_out(
        self, at: tuple[str, str, str], given: _Given, call: Callable[[], Awaitable[None]]
    ) -> None:
        least = AGAIN_S
        try:
            async with self._gate:
                await call()
            least = REPEAT_S
        except EngineError as error:
            log.warning("checkpoint_order_failed", order=at[0], server=at[2], error=str(error))
        finally:
            given.wait_s = min(MOST_S, max(least, 2 * given.wait_s))
            given.again_at = self._monotonic() + given.wait_s
            given.under_way = False
            if not given.what:
                self._given.pop(at, None)
