"""Watches for lost servers, aggregators, switches and links, and has their jobs recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.engine import ExecutionEngine
from controller.devices.switches import Switches
from controller.state.state import State
from controller.swaps.contract import JobLoss
from controller.swaps.losses import HealthSnapshot, Lost, judge
from controller.swaps.swapper import Swapper

_RANK = ("endpoint", "server", "aggregator", "switch")
"""The larger loss names the cause of a recovery."""
SESSION_S = 7.0
"""Until the session of an aggregator without power is closed: its silence and a look."""


class LossWatch:
    """Counts an object as lost once it has been so for the site's time."""

    def __init__(
        self,
        state: State,
        aggregators: Aggregators,
        switches: Switches,
        engine: ExecutionEngine,
        swapper: Swapper,
    ) -> None:
        self._state = state
        self._aggregators = aggregators
        self._switches = switches
        self._engine = engine
        self._swapper = swapper
        self._since: dict[str, float] = {}
        """By object: since when it is seen as lost, in the monotonic time of the loop."""
        self._told: set[str] = set()

    def check(self) -> None:
        """Look once. Nothing counts as lost while the controller itself may be cut off."""
        state = self._state
        if state.suspect or state.transactions.interrupted:
            self._since.clear()
            return
        now = asyncio.get_running_loop().time()
        places, seen = self._places(), self._seen()
        found = {lost.object: lost for lost in judge(state.site, places, seen)}
        self._since = {name: self._began(lost, now) for name, lost in found.items()}
        lasting = {
            name: lost
            for name, lost in found.items()
            if self._sure(lost) and now - self._since[name] >= self._patience_s(lost, places, seen)
        }
        light, connections = state.light, state.connections
        by_cause = {
            cause: frozenset(lost.name for lost in lasting.values() if lost.cause == cause)
            for cause in ("aggregator", "switch")
        }
        light.lost = by_cause["aggregator"] | (light.lost - connections.aggregators())
        light.lost_switches = by_cause["switch"] | (light.lost_switches - connections.switches())
        self._report(lasting)
        if lasting:
            self._recover(list(lasting.values()), now)

    def _began(self, lost: Lost, now: float) -> float:
        """Return since when it is lost: a switch since the first of its endpoints is dark."""
        seen = [lost.object]
        if lost.cause == "switch":
            seen += [f"endpoint/{endpoint}" for endpoint in lost.endpoints]
        return min((self._since[name] for name in seen if name in self._since), default=now)

    def _sure(self, lost: Lost) -> bool:
        """Whether it is this object that is lost.

        A switch without power leaves endpoints dark before its silence is noticed: it is asked.
        """
        if lost.cause != "endpoint":
            return True
        switch = self._state.cables[lost.name].fiber.device
        away = switch not in self._state.connections.switches()
        return away or self._switches.answered_since(switch, self._since[lost.object])

    def _patience_s(
        self, lost: Lost, places: Mapping[str, AttachPoint], seen: HealthSnapshot
    ) -> float:
        """Return how long it must last.

        Longer for a dark NIC whose aggregator says that its port has light: it may be dead itself.
        """
        at = places.get(lost.name) if lost.cause == "endpoint" else None
        contradicted = at is not None and seen.carriers.get(at, False)
        return self._state.site.recovery.lost_after_s + (SESSION_S if contradicted else 0.0)

    def _report(self, lasting: Mapping[str, Lost]) -> None:
        events = self._state.events
        for name in lasting.keys() - self._told:
            lost = lasting[name]
            silent = "" if lost.cause == "endpoint" else "it is silent, and "
            text = f"{silent}{', '.join(lost.endpoints)} cannot work: no carrier, or a stall"
            events.add("error", name, "ObjectLost", text)
        light = self._state.light
        silent_still = {f"aggregator/{name}" for name in light.lost}
        silent_still |= {f"switch/{name}" for name in light.lost_switches}
        for name in self._told - lasting.keys() - silent_still:
            events.add("info", name, "ObjectBack", "its jobs can work again, or have moved on")
        self._told = lasting.keys() | (self._told & silent_still)

    def _recover(self, lasting: Sequence[Lost], now: float) -> None:
        state = self._state
        reasons = {e: lost for lost in lasting for e in lost.endpoints}
        for job in list(state.jobs.values()):
            mine = {e: reasons[e] for e in job.endpoints if e in reasons}
            if not mine or not job.owner.starts or job.state not in ("running", "paused"):
                continue
            causes = {lost.cause for lost in mine.values()}
            since = min(self._since[lost.object] for lost in mine.values())
            loss = JobLoss(
                cause=max(causes, key=_RANK.index),
                objects=tuple(dict.fromkeys(lost.object for lost in mine.values())),
                dead={e: lost.why for e, lost in mine.items()},
                failed_at=state.clock() - (now - since),
                healthy=causes == {"aggregator"},
            )
            self._swapper.lose(job.name, loss)

    def _places(self) -> Mapping[str, AttachPoint]:
        """Return where endpoints are, without those whose light a transaction moves."""
        locked = self._state.transactions.locked()
        return {e: at for e, at in self._state.light.attachments.items() if e not in locked}

    def _seen(self) -> HealthSnapshot:
        state = self._state
        sessions = self._aggregators.connected()
        running = {
            job.name: state.cabled(job)
            for job in state.jobs.values()
            if job.state == "running"
            and state.transactions.of_job(job.name) is None
            and not self._swapper.has(job.name)
        }
        return HealthSnapshot(
            answering=state.connections.servers(),
            sessions=sessions,
            switches=state.connections.switches(),
            carriers={
                AttachPoint(name, port): up
                for name in sorted(sessions)
                for port, up in self._aggregators.carrier(name).items()
            },
            nics=self._engine.carriers(),
            stalled={name: running[name] for name in state.jobs.stalled if name in running},
            endpoints=frozenset(e for endpoints in running.values() for e in endpoints),
        )
