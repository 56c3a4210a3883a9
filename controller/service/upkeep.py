"""Keeps the fabric as intended: the loops that compare the devices with the intent."""

from __future__ import annotations

import asyncio
import contextlib

from controller.devices.aggregators import AggregatorConnected, AggregatorEvent
from controller.service.features import Features, Loops
from controller.state.writes import TrimUsage

OBSERVE_EVERY_S = 1.0
FLUSH_EVERY_S = 1.0
TRIM_USAGE_EVERY_S = 60.0
REPAIR_EVERY_S = 2.0
DRIFT_EVERY_S = 5.0
WATCH_EVERY_S = 1.0


class Upkeep:
    """Takes the events of devices, and runs the loops that no single feature has."""

    def __init__(self, features: Features) -> None:
        core, reconciled = features.core, features.reconciled
        self._state = core.state
        self._switches = core.switches
        self._tasks = core.tasks
        self._intent = core.intent
        self._interrupted = reconciled.interrupted
        self._adopter = reconciled.adopter
        self._drift = reconciled.drift
        self._links = reconciled.links
        self._profiles = reconciled.profiles
        self._jobs = features.jobs
        self._stalls = features.figures.stalls
        self._taken_over = asyncio.Event()
        """Set when a device reconnects: it can be repaired now."""
        self.recovered = asyncio.Event()
        """Set when no transaction of an earlier controller is open."""

    @property
    def loops(self) -> Loops:
        """What goes on once containers are known."""
        return {
            "observe": self._observe,
            "flush": self._flush,
            "usage": self._trim_usage,
            "repair": self._repair,
            "watch": self._watch_ourselves,
            "drift": self._look_for_drift,
        }

    async def _observe(self) -> None:
        settled: frozenset[str] | None = None
        while True:
            await self._jobs.watch.observe()
            self._interrupted.release()
            self._stalls.check()
            await self._jobs.swaps.check()
            spared = self._state.light.spared
            if spared is not settled:  # no container needs their flows any more
                await self._intent.converge()
                settled = spared
            await asyncio.sleep(OBSERVE_EVERY_S)

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_EVERY_S)
            self._state.usage.update(self._state.jobs)
            await self._state.journal.flush()

    async def _trim_usage(self) -> None:
        while True:
            await asyncio.sleep(TRIM_USAGE_EVERY_S)
            await self._state.commit(TrimUsage(self._state.usage.now))

    async def _repair(self) -> None:
        while True:
            self._taken_over.clear()
            if not self._state.suspect:
                await self._adopter.repair()
            if self._interrupted and self._adopter.settled(self._interrupted.owed):
                await self._interrupted.close(self._jobs.recovery.wake_up)
            if not self._interrupted:
                self.recovered.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPAIR_EVERY_S):
                    await self._taken_over.wait()

    async def _watch_ourselves(self) -> None:
        while True:
            self._drift.suspect()
            self._links.calm()
            self._jobs.limits.check()
            await asyncio.sleep(WATCH_EVERY_S)

    async def _look_for_drift(self) -> None:
        while True:
            await asyncio.sleep(DRIFT_EVERY_S)
            await self._drift.check()

    # --- events of devices ----------------------------------------------------------------

    def switch_changed(self, switch: str, connected: bool) -> None:
        """Note that an optical switch answers, or has stopped to, and take its circuits over."""
        word = "SwitchConnected" if connected else "SwitchLost"
        text = "its circuits are being read" if connected else self._switches.error(switch)
        severity = "info" if connected else "error"
        self._state.events.add(severity, f"switch/{switch}", word, text)  # type: ignore[arg-type]
        if connected:
            self._tasks.spawn(self._adopted(switch), f"adopt {switch}")

    async def _adopted(self, switch: str) -> None:
        if await self._adopter.take_over(switch):
            self._adopter.unsettled.set()

    async def take_over(self) -> None:
        """Make the circuits of reconnected switches durable, and converge the flows to them.

        At a start all switches connect at once: many share one durable write and one set of flows.
        """
        while True:
            await self._adopter.unsettled.wait()
            await self._adopter.settle()  # if it raises, the task restarts after a pause
            self._taken_over.set()

    def aggregator_event(self, event: AggregatorEvent) -> None:
        """Note an event of a packet switch."""
        self._links.handle(event)
        if isinstance(event, AggregatorConnected):
            self._taken_over.set()
            self._profiles.greeted(event.as_name)
