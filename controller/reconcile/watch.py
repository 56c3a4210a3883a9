"""Watches for drift: reads circuits, flows and containers periodically, and acts by policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

from controller.base.errors import ServiceError
from controller.devices.aggregators import Aggregators
from controller.devices.engine import FREEZE_TIMEOUT_S, ExecutionEngine
from controller.devices.errors import DEVICE_ERRORS
from controller.devices.switches import Switches
from controller.fabric.intent import FabricIntent
from controller.ranks.calls import observe_containers
from controller.reconcile.adopt import Adopter
from controller.reconcile.drift import LightDrift, LossDetector, is_mass, light_drift, stray_ranks
from controller.reconcile.drift_policy import DriftPolicy
from controller.state.state import State
from controller.transaction.circuits import endpoint_of, subject

log = structlog.get_logger(__name__)

AUDIT_ROUND = 12
"""Rounds in which the flow tables of the whole site are read once."""
AUDIT_TIMEOUT_S = 35.0
SHOWN = 5
"""Most differences named in one event; the rest is counted."""


class DriftWatch:
    """Compares the devices with the intent, emits events, and corrects what the policy allows."""

    def __init__(
        self,
        state: State,
        intent: FabricIntent,
        adopter: Adopter,
        *,
        switches: Switches,
        aggregators: Aggregators,
        engine: ExecutionEngine,
        policy: DriftPolicy,
    ) -> None:
        self._state = state
        self._switches = switches
        self._aggregators = aggregators
        self._engine = engine
        self._intent = intent
        self._adopter = adopter
        self._policy = policy
        self._losses = LossDetector()
        self._reported: dict[str, tuple[str, ...]] = {}
        self._stray: Mapping[str, tuple[str, str]] = {}
        self._next_audit = 0

    # --- the controller itself ------------------------------------------------------------

    def suspect(self) -> bool:
        """Check which devices answer; True while the controller itself seems to be cut off."""
        state, there = self._state, self._state.connections
        names = {f"aggregator/{name}" for name in there.aggregators()}
        names |= {f"switch/{name}" for name in there.switches()}
        names |= {f"server/{name}" for name, answers in there.servers().items() if answers}
        why = self._losses.observe(names, state.clock())
        if state.command_lost:
            return True  # permanently
        if why and not state.suspect:
            text = f"{why}: the controller itself may be cut off; it suspends repairs and starts"
            state.events.add("error", "controller", "SuspectOurselves", text)
        elif state.suspect and not why:
            state.events.add("info", "controller", "SuspicionOver", "the devices answer again")
            state.jobs.wake.set()
        state.suspect = why
        return bool(why)

    # --- one round ------------------------------------------------------------------------

    async def check(self) -> None:
        """Compare all circuits and containers once, and the next share of the flow tables."""
        if self._state.suspect:
            return
        for switch in sorted(self._switches.connected()):
            await self._light(switch)
            await asyncio.sleep(0)  # a map that was read lately takes no turn of the loop
        await self._flows()
        await self._containers()

    async def _light(self, switch: str) -> None:
        state = self._state
        if switch not in state.light.foreign_points:
            return  # not taken over yet
        begun = state.transactions.number
        try:
            seen = await self._switches.read(switch)
        except DEVICE_ERRORS:
            return  # the switch's own session reports it
        if state.transactions.number != begun or any(
            switch in {change.switch for change in r.tx.changes}
            for r in state.transactions.moving().values()
        ):
            return  # a transaction is moving its light
        found = self._adopter.note_foreign(switch, seen)
        expected = {end: state.light.far(end) for end in self._adopter.ends(switch, found)}
        drifts = [
            d
            for d in light_drift(expected, found.circuits)
            if not self._adopter.wants(endpoint_of(d.end))
        ]
        if self._is_new(f"switch/{switch}", [f"{d.end}: {d}" for d in drifts]):
            lit = sum(at is not None for at in expected.values())
            await self._light_drifted(switch, drifts, lit)

    async def _light_drifted(self, switch: str, drifts: Sequence[LightDrift], lit: int) -> None:
        state = self._state
        for drift in drifts[:SHOWN]:
            text = f"its light was changed from outside: {drift}"
            about = subject(drift.end, drift.expected or drift.found)
            state.events.add("warning", about, "CircuitDrift", text)
        dark = sum(drift.found is None for drift in drifts)
        if is_mass(dark, lit):
            text = (
                f"{dark} of {lit} circuits vanished at once; they are not repaired automatically:"
                f" check the switch, then run `lightloom repair {switch}`"
            )
            state.events.add("error", f"switch/{switch}", "CircuitsVanished", text)
        elif self._policy is DriftPolicy.REPAIR:
            await self.accept(switch)
        elif self._policy is DriftPolicy.ADOPT:
            await self.accept(switch, frozenset(endpoint_of(d.end) for d in drifts))

    async def accept(self, switch: str, as_found: frozenset[str] = frozenset()) -> None:
        """Adopt the map of a switch; the repair loop moves jobs' endpoints back.

        Endpoints in ``as_found`` stay where they are found, even those of a job.
        """
        await self._adopter.adopt(switch, as_found)
        self._reported.pop(f"switch/{switch}", None)

    async def repair(self, switch: str) -> None:
        """Accept a map whose difference was too large for automatic repair. ServiceError."""
        what = f"switch/{switch}"
        if switch not in {s.name for s in self._state.site.switches}:
            raise ServiceError("not_found", f"the site has no optical switch {switch}", object=what)
        if switch not in self._switches.connected():
            raise ServiceError(
                "unavailable",
                f"{switch} does not answer",
                object=what,
                hint="its map is taken over automatically when it comes back",
            )
        self._state.events.add("info", what, "RepairAsked", "by the operator")
        await self.accept(switch)

    async def _flows(self) -> None:
        names = [a.name for a in self._state.site.aggregators]
        share = -(-len(names) // AUDIT_ROUND)
        turn = [names[(self._next_audit + i) % len(names)] for i in range(share)]
        self._next_audit = (self._next_audit + share) % len(names)
        there = self._aggregators.connected()
        for name in turn:
            if name in there:
                await self._audit(name)

    async def _audit(self, name: str) -> None:
        try:
            async with asyncio.timeout(AUDIT_TIMEOUT_S):
                wrong = await self._aggregators.audit(name)
        except DEVICE_ERRORS as error:
            log.warning("aggregator_not_audited", aggregator=name, error=str(error))
            return
        if not self._is_new(f"aggregator/{name}", wrong):
            return
        more = f" and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        text = f"its flows were changed from outside: {'; '.join(wrong[:SHOWN])}{more}"
        self._state.events.add("warning", f"aggregator/{name}", "FlowDrift", text)
        if self._policy is not DriftPolicy.ALARM:
            # The audit recorded the tables as they are, so this sends only the difference.
            await self._intent.converge()
            self._reported.pop(f"aggregator/{name}", None)

    async def _containers(self) -> None:
        """Correct the jobs whose containers are wrong in two rounds in a row."""
        state = self._state
        if not await observe_containers(state, self._engine):
            return
        jobs = [job for job in state.jobs.values() if not state.in_transaction(job.name)]
        stray = stray_ranks(jobs, state.jobs.statuses)
        for job, (call, why) in stray.items():
            if self._stray.get(job, ("", ""))[0] == call and self._is_for(job, call):
                await self._correct(job, call, why)
        for job in self._stray.keys() - stray.keys():
            self._reported.pop(f"job/{job}", None)
        self._stray = stray

    def _is_for(self, name: str, call: str) -> bool:
        """Whether a call still suits the job, which may change while others are corrected."""
        job = self._state.jobs.get(name)
        wanted = "running" if call == "thaw" else "paused"
        return (
            job is not None
            and job.state == wanted
            and self._state.transactions.of_job(name) is None
        )

    async def _correct(self, job: str, call: str, why: str) -> None:
        if self._is_new(f"job/{job}", [why]):
            text = f"a container was changed from outside: {why}"
            self._state.events.add("warning", f"job/{job}", "ContainerDrift", text)
        if self._policy is DriftPolicy.ALARM:
            return
        act = self._engine.thaw if call == "thaw" else self._engine.freeze
        try:
            async with asyncio.timeout(FREEZE_TIMEOUT_S):
                await act(job)
        except DEVICE_ERRORS as error:
            log.warning("container_not_put_right", job=job, error=str(error))

    def _is_new(self, obj: str, wrong: Sequence[str]) -> bool:
        """Whether there is a difference that was not reported yet; each one is reported once."""
        new = tuple(wrong)
        if not new:
            self._reported.pop(obj, None)
            return False
        unknown = self._reported.get(obj) != new
        self._reported[obj] = new
        return unknown
