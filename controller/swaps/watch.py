"""Watches for lost servers, aggregators, switches and links, and has their jobs recovered."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.engine import ExecutionEngine
from controller.state.state import State
from controller.swaps.contract import Loss
from controller.swaps.losses import Lost, Seen, judge
from controller.swaps.swapper import Swapper

_RANK = ("endpoint", "server", "aggregator", "switch")
"""The larger loss names the cause of a recovery."""


class LossWatch:
    """Counts an object as lost once it has been so for the site's time."""

    def __init__(
        self,
        state: State,
        aggregators: Aggregators,
        engine: ExecutionEngine,
        swapper: Swapper,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._aggregators = aggregators
        self._engine = engine
        self._swapper = swapper
        self._monotonic = monotonic
        self._since: dict[str, float] = {}
        """By object: since when it is seen as lost."""
        self._told: set[str] = set()

    def look(self) -> None:
        """Look once. Nothing counts as lost while the controller itself may be cut off."""
        state = self._state
        if state.suspect or state.transactions.interrupted:
            self._since.clear()
            return
        now = self._monotonic()
        found = {lost.object: lost for lost in judge(state.site, self._places(), self._seen())}
        self._since = {name: self._since.get(name, now) for name in found}
        lasting = {
            name: lost
            for name, lost in found.items()
            if now - self._since[name] >= state.site.recovery.lost_after_s
        }
        self._tell(lasting)
        light, connections = state.light, state.connections
        by_cause = {
            cause: frozenset(lost.name for lost in lasting.values() if lost.cause == cause)
            for cause in ("aggregator", "switch")
        }
        light.lost = by_cause["aggregator"] | (light.lost - connections.aggregators())
        light.lost_switches = by_cause["switch"] | (light.lost_switches - connections.switches())
        if lasting:
            self._recover(list(lasting.values()), now)

    def _tell(self, lasting: Mapping[str, Lost]) -> None:
        events = self._state.events
        for name in lasting.keys() - self._told:
            lost = lasting[name]
            silent = "" if lost.cause == "endpoint" else "it is silent, and "
            text = f"{silent}{', '.join(lost.endpoints)} cannot work: no carrier, or a stall"
            events.add("error", name, "ObjectLost", text)
        for name in self._told - lasting.keys():
            events.add("info", name, "ObjectBack", "its jobs can work again, or have moved on")
        self._told = set(lasting)

    def _recover(self, lasting: Sequence[Lost], now: float) -> None:
        state = self._state
        reasons = {e: lost for lost in lasting for e in lost.endpoints}
        for job in list(state.jobs.values()):
            mine = {e: reasons[e] for e in job.endpoints if e in reasons}
            if not mine or not job.ours or job.state not in ("running", "paused"):
                continue
            causes = {lost.cause for lost in mine.values()}
            since = min(self._since[lost.object] for lost in mine.values())
            loss = Loss(
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

    def _seen(self) -> Seen:
        state = self._state
        sessions = self._aggregators.connected()
        running = {
            job.name: state.cabled(job)
            for job in state.jobs.values()
            if job.state == "running"
            and state.transactions.of_job(job.name) is None
            and not self._swapper.has(job.name)
        }
        return Seen(
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
