"""Hands notices over to their receivers, each at its own pace.

A notice leaves the store when its receiver has confirmed it. When the outcome is unknown (no
answer, or the controller ended in between) it is sent again with the same id, so that a
receiver can drop the second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from base import clock
from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.state.kept.kinds import row_of
from controller.state.notices import identity
from controller.state.records import Notice
from controller.state.state import State
from sitefile import CabledSite

log = structlog.get_logger(__name__)

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 600.0
KEEP_TRYING_S = 24 * 3600.0
"""A notice older than this is given up after its next failure."""
AT_ONCE = 8
"""Deliveries at the same time; one receiver gets one at a time."""


class NoticeTransport(Protocol):
    """A way to one receiver."""

    async def deliver(self, notice: Notice, now: float) -> str:
        """Deliver a notice, in bounded time; ``now`` is in seconds since 1970.

        Returns why the receiver may not have it; empty when it has confirmed it. The text is shown
        to the project's users, so it holds neither addresses nor secrets.
        """
        ...


def ways_of(site: CabledSite) -> Mapping[str, NoticeTransport]:
    """Return the way to each receiver. Reads the system's certificates: not for the event loop."""
    # Loaded when a site has receivers: an HTTP client takes a part of the start's time.
    from controller.notices.command import Command  # noqa: PLC0415
    from controller.notices.webhook import Webhook, make_client  # noqa: PLC0415

    client = make_client()
    return {
        identity(r): Webhook(client, r.url, r.secret) if r.url else Command(r.command)
        for r in site.notices
    }


@dataclass(slots=True, frozen=True)
class _Failed:
    """How often a delivery has failed, and when the next is due on the steady clock."""

    times: int
    due: float


_NEVER = _Failed(0, float("-inf"))


class Courier:
    """Delivers the notices of the state's outbox."""

    def __init__(
        self,
        state: State,
        ways: Callable[[CabledSite], Mapping[str, NoticeTransport]] = ways_of,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._ways = ways
        self._monotonic = monotonic
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._failed: dict[str, _Failed] = {}
        """By notice."""

    def start(self, tasks: Tasks) -> None:
        """Deliver beside everything else, until ``tasks`` stop."""
        tasks.spawn(self._give_up_unknown(), "notices without a receiver")
        if self._state.site.notices:
            tasks.keep("notices", self._run)

    async def _give_up_unknown(self) -> None:
        for notice in list(self._state.outbox.values()):
            if notice.receiver not in self._state.outbox.wake:
                await self._give_up(notice, "the site file no longer names its receiver")

    async def _run(self) -> None:
        ways = await asyncio.to_thread(self._ways, self._state.site)
        async with asyncio.TaskGroup() as group:
            for receiver, way in ways.items():
                group.create_task(self._serve(receiver, way))

    async def _serve(self, receiver: str, way: NoticeTransport) -> None:
        wake = self._state.outbox.wake[receiver]
        while True:
            wake.clear()
            waiting = [n for n in self._state.outbox.values() if n.receiver == receiver]
            notice = min(waiting, key=lambda n: self._failed.get(n.id, _NEVER).due, default=None)
            due = float("inf")
            if notice is not None:
                due = self._failed.get(notice.id, _NEVER).due
            left_s = due - self._monotonic()
            if notice is not None and left_s <= 0:
                await self._deliver(way, notice)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if notice is None else left_s):
                    await wake.wait()

    async def _deliver(self, way: NoticeTransport, notice: Notice) -> None:
        async with self._slots, failpoints.around("notice"):
            problem = await way.deliver(notice, self._state.clock())
        if not problem:
            await self._forget(notice)
            return
        if notice.id not in self._state.outbox:
            return  # given up meanwhile
        times = self._failed.get(notice.id, _NEVER).times + 1
        age_s = self._state.clock() - notice.created_at
        if age_s > KEEP_TRYING_S:
            await self._give_up(notice, f"{problem}; tried for {age_s / 3600:.0f} h")
            return
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(times - 1, 20))
        self._failed[notice.id] = _Failed(times, self._monotonic() + pause_s)
        if times == 1:
            text = f"the notice of its end is not delivered yet: {problem}"
            self._state.events.add("warning", f"job/{notice.job}", "NoticeDelayed", text)

    async def _give_up(self, notice: Notice, why: str) -> None:
        text = f"the notice of its end is given up: {why}"
        self._state.events.add("error", f"job/{notice.job}", "NoticeLost", text)
        await self._forget(notice)

    async def _forget(self, notice: Notice) -> None:
        self._failed.pop(notice.id, None)
        self._state.outbox.remove(notice.id)
        try:
            async with failpoints.around("save-notice"):
                await self._state.record(row_of(notice))
        except ServiceError as error:  # the journal retries
            log.error("delivery_not_durable_yet", job=notice.job, error=error.message)
