"""Tells the engine which of its endpoints are near each other, whenever light has moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from base import clock
from controller.devices.observed import (
    ObservedEngine,
    ObservedError,
    Published,
    ReadBack,
)
from controller.state.state import State

log = structlog.get_logger(__name__)

LOOK_S = 0.1
"""Between two looks at whether light has moved."""
LOOK_EVERY_S = 30.0
"""Between two looks at what the engine has, without a change of light."""
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
"""Pauses after a failure double up to this."""
SETTLE_S = 0.02
"""Light moves in bursts: one topology serves them all."""
CALM_S = 3.0
"""An engine that restarts to read its topology does so when no job began within this time: Slurm
before 25.05 holds a step that is created in the third of a second around ``scontrol reconfigure``
for SlurmctldTimeout, two minutes.

Nor does it while it ends a job: every slurmd of 24.11 restarts too, and the one that waits for the
job's last process forgets to say that it has gone. The job's nodes stay COMPLETING until slurmctld
asks again, up to a minute after KillWait and two MessageTimeouts."""
CALM_EVERY_S = 0.5
"""Between two looks at whether jobs begin or end."""
RESTLESS_S = 15.0
"""After this time the topology is published although jobs begin and end all the time."""
_NAMED = 10
"""Most nodes that one event names."""


@dataclass(slots=True, frozen=True)
class PublishedState:
    """What is known of the engine's topology. Times are seconds since 1970."""

    epoch: int | None = None
    """Of the topology that the engine has, as it was read back."""
    at: float | None = None
    took_s: float | None = None
    error: str = ""
    differences: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Nodes that the engine does not know; they are not published."""


def topology(endpoints: Iterable[str], homes: Mapping[str, str | None], epoch: int) -> Published:
    """Return which of the engine's endpoints are under which aggregator."""
    leaves: dict[str, list[str]] = {}
    dark: list[str] = []
    for endpoint in sorted(endpoints):
        home = homes.get(endpoint)
        if home is None:
            dark.append(endpoint)
        else:
            leaves.setdefault(home, []).append(endpoint)
    return Published(epoch, {a: tuple(leaves[a]) for a in sorted(leaves)}, tuple(dark))


class TopologyPublisher:
    """Keeps the engine's topology equal to the light; never stops looking, writes only changes."""

    def __init__(
        self,
        state: State,
        observed: ObservedEngine,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._observed = observed
        self._monotonic = monotonic
        self._wanted = asyncio.Event()
        self._done = asyncio.Condition()
        self._has: Published | None = None
        """What the engine was last seen to have."""
        self.state = PublishedState()

    def moved(self) -> None:
        """Note that light may have moved."""
        self._wanted.set()

    async def run(self) -> None:
        """Publish after every change of light, until cancelled."""
        pause_s, due = FIRST_PAUSE_S, 0.0
        epoch: int | None = None
        since: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wanted.wait()
            moved = self._wanted.is_set() or self._state.epoch != epoch
            if not moved and self._monotonic() < due:
                continue
            since = self._monotonic() if since is None else since
            if self._state.transactions.moving():
                await asyncio.sleep(LOOK_S)  # the event may be set already
                continue
            if self._monotonic() < since + RESTLESS_S and not await self._calm():
                await asyncio.sleep(CALM_EVERY_S)
                continue
            since = None
            await asyncio.sleep(SETTLE_S)
            epoch = self._state.epoch
            if await self.publish():
                pause_s, due = FIRST_PAUSE_S, self._monotonic() + LOOK_EVERY_S
            else:
                due = self._monotonic() + pause_s
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    async def _calm(self) -> bool:
        """Whether publishing now holds up no job.

        So it is when the engine does not restart, or needs no other topology, or when no job has
        just begun and none is ending.
        """
        if not self._observed.restarts_to_publish or self._is_current():
            return True
        now = self._state.clock()
        if any(
            job.owner.engine == self._observed.kind
            and job.started_at is not None
            and not job.ended
            and abs(now - job.started_at) < CALM_S
            for job in self._state.jobs.values()
        ):
            return False
        try:
            return not await self._observed.ends_jobs()
        except ObservedError:
            return True  # publishing says what is wrong

    async def current(self, limit_s: float) -> bool:
        """Wait until the engine has the topology of this moment; False when it has not in time."""
        self.moved()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s), self._done:
                await self._done.wait_for(self._is_current)
        return self._is_current()

    async def publish(self) -> bool:
        """Publish once; return whether the engine has the topology of this moment."""
        self._wanted.clear()
        state = self._state
        if state.transactions.moving() or state.suspect or state.command_lost:
            return self._is_current()  # the end of a transaction calls again
        wanted = self._topology()
        began = self._monotonic()
        try:
            read = await self._observed.publish(wanted)
        except ObservedError as error:
            if error.message != self.state.error:
                text = f"the topology of epoch {wanted.epoch} is not published: {error.message}"
                hint = f"; {error.hint}" if error.hint else ""
                state.events.add("warning", self._object, "NotPublished", text + hint)
            self.state = replace(self.state, error=error.message)
            return False
        await self._published(wanted, read, began)
        return self._is_current()

    async def _published(self, wanted: Published, read: ReadBack, began: float) -> None:
        now = self._state.clock()
        if read.unknown and read.unknown != self.state.unknown:
            names = ", ".join(read.unknown[:_NAMED])
            more = len(read.unknown) - _NAMED
            text = f"the engine does not know {names}{f' and {more} more' if more > 0 else ''}"
            hint = "they are not in its topology; correct engine.nodes, or the engine's own list"
            self._state.events.add("warning", self._object, "UnknownNodes", f"{text}: {hint}")
        if read.differences:
            text = f"the engine has another topology: {'; '.join(read.differences[:3])}"
            if read.differences != self.state.differences:
                self._state.events.add("warning", self._object, "NotPublished", text)
            self.state = PublishedState(read.epoch, now, None, text, read.differences, read.unknown)
            self._has = None
            return
        fresh = not self._has_light_of(wanted)
        self._has = wanted
        took_s = round(self._monotonic() - began, 6)
        self.state = PublishedState(read.epoch, now, took_s, unknown=read.unknown)
        if fresh:
            text = f"the engine has the topology of epoch {wanted.epoch}"
            self._state.events.add("info", self._object, "TopologyPublished", text)
        async with self._done:
            self._done.notify_all()

    def _topology(self) -> Published:
        state = self._state
        return topology(self._observed.endpoints, state.light.homes(), state.epoch)

    def _is_current(self) -> bool:
        return self._has_light_of(self._topology())

    def _has_light_of(self, wanted: Published) -> bool:
        """Whether the engine has this topology, whatever its epoch."""
        has = self._has
        return has is not None and (has.leaves, has.dark) == (wanted.leaves, wanted.dark)

    @property
    def _object(self) -> str:
        return f"engine/{self._observed.kind}"
