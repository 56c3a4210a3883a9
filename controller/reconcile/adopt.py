"""Reconciles circuits found on the optical switches: adopts, ignores or restores them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import structlog

from base import clock
from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.devices.errors import DEVICE_ERRORS
from controller.devices.switches import Switches
from controller.fabric.intent import FabricIntent
from controller.fabric.mover import Mover
from controller.state.intend import keys
from controller.state.state import State
from controller.transaction.circuits import (
    Cabling,
    End,
    EndpointEnd,
    Recognised,
    Rewiring,
    endpoint_of,
    is_ours,
    ours,
    recognise,
    subject,
)
from controller.transaction.model import (
    Cause,
    Outcome,
)
from ocs_driver.base import CircuitMap, CircuitRequest
from ocs_driver.diff import LIGHT

log = structlog.get_logger(__name__)

REPAIR_ATTEMPTS = 3
"""After so many failures in a row an idle endpoint stays where it is; a job's is moved later."""
REPAIR_AGAIN_S = 30.0
"""Between two further attempts to move a job's endpoint."""
SHOWN = 20
"""Most new foreign circuits with an event of their own; a switch may report any number."""
READINGS = 3
"""Most readings of a switch in a row, when transactions end while it is read."""
NOTHING_FOREIGN = Recognised({}, (), taken_points=frozenset(), taken_endpoints=frozenset())


class Adopter:
    """Compares the intent with the circuits that exist, and brings one in line with the other."""

    def __init__(
        self,
        state: State,
        switches: Switches,
        mover: Mover,
        intent: FabricIntent,
        *,
        owed: Mapping[str, AttachPoint | None],
        dark: Collection[str],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``owed`` maps, at any time, endpoints of interrupted transactions to where they belong.

        These are never adopted where they are found: all old places or all new ones, never a mix.
        ``dark`` are those of them that belong in the dark.
        """
        self._owed = owed
        self._dark = dark
        self._monotonic = monotonic
        self._state = state
        self._switches = switches
        self._mover = mover
        self._intent = intent
        self._endpoints: dict[str, list[EndpointEnd]] = defaultdict(list)
        """Per switch: the endpoints on it."""
        for cable in state.site.endpoints:
            self._endpoints[cable.fiber.device].append(EndpointEnd(cable.name))
        self._wanted: dict[str, str | None] = {}
        """Endpoints to move, and their homes, None for dark; done as soon as devices answer."""
        self._repairs: dict[str, int] = {}
        """Failures in a row, by endpoint."""
        self._later: dict[str, float] = {}
        """Endpoints of jobs whose move has failed, and when it is tried again, monotonic."""
        self._foreign: dict[str, frozenset[tuple[str, str]]] = {}
        """Per switch: foreign circuits that were reported."""
        self._fresh: dict[str, object] = {}
        """Switches taken over since the last ``settle``, so neither durable nor in the flows yet;
        every takeover has an object of its own."""
        self.unsettled = asyncio.Event()
        """Set when ``settle`` must be called."""

    def wants(self, endpoint: str) -> bool:
        """Whether the endpoint is known to be in the wrong place and will be moved."""
        return endpoint in self._wanted

    async def adopt(self, switch: str, as_found: frozenset[str] = frozenset()) -> None:
        """Take over a switch (see ``take_over``) and ``settle``. ServiceError."""
        if await self.take_over(switch, as_found):
            await self.settle()

    async def take_over(self, switch: str, as_found: frozenset[str] = frozenset()) -> bool:
        """Read a switch, adopt its circuits, and remember the endpoints to restore.

        Uplinks, idle endpoints and those in ``as_found`` stay as they are found; endpoints of a job
        go back to where the intent has them; dark ones go to their last home, or else their first.
        False when the switch does not answer.
        """
        state, owed = self._state, self._owed
        try:
            seen, moving = await self._read(switch)
            if await self._reclaimed(switch, seen):
                seen, moving = await self._read(switch)
        except DEVICE_ERRORS as error:
            log.warning("switch_not_read", switch=switch, error=str(error))
            return False
        found = recognise(state.site, switch, ours(seen))
        self._note_foreign(switch, seen, found)
        holders = state.jobs.holders()
        mine = [end for end in self.ends(switch, found) if end not in moving]
        was = {end: state.light.far(end) for end in mine}
        if state.light.relocate({end: found.circuits.get(end) for end in mine}):
            state.next_epoch()
        for end in mine:
            is_at = found.circuits.get(end)
            if is_at != was[end] and is_at is not None:
                state.events.add("info", subject(end, is_at), "Adopted", f"found at {is_at}")
            if not (name := endpoint_of(end)):
                continue
            state.light.held.pop(name, None)
            belongs = owed.get(name, was[end])
            if name in as_found:
                self._wanted.pop(name, None)
            else:
                self._remember(name, is_at, belongs, busy=name in holders or name in owed)
        self._fresh[switch] = object()
        return True

    def ends(self, switch: str, found: Recognised) -> list[End]:
        """Return the ends on a switch: its endpoints, and those of uplinks intended or found."""
        light = self._state.light
        intended = {near for near in light.uplinks if light.ports[near] == switch}
        return [*self._endpoints[switch], *sorted(intended | found.uplinks.keys())]

    async def settle(self) -> None:
        """Save what was taken over and update the flows. ServiceError.

        Sets ``unsettled`` when that fails, so that it is tried again.
        """
        self.unsettled.clear()
        state, settled = self._state, dict(self._fresh)
        try:
            async with failpoints.around("save-intent"):
                await state.record(keys.FACTS, keys.ATTACHMENTS)
            state.jobs.wake.set()
            await self._intent.converge()
        except BaseException:
            self.unsettled.set()
            raise
        self._fresh = {s: time for s, time in self._fresh.items() if settled.get(s) is not time}

    async def _reclaimed(self, switch: str, seen: CircuitMap) -> bool:
        """Reclaim circuits that the store knows and the driver's list of own circuits lacks.

        Only lit circuits without a known owner, exactly where the intent has one: they carry
        running jobs. Returns whether there was one.
        """
        about = self._switches.capabilities(switch)
        if about is None or about.stores_owner:
            return False
        cabling, light = Cabling(self._state.site), self._state.light
        lit = ((end, light.far(end)) for end in self.ends(switch, NOTHING_FOREIGN))
        links = [cabling.link(end, point) for end, point in lit if point is not None]
        wanted = [CircuitRequest(link.a, link.b) for link in links if link is not None]
        found = ((request, seen.find(request)) for request in wanted)
        lost = [r for r, c in found if c is not None and not c.owner and c.state in LIGHT]
        if lost:
            await self._switches.adopt(switch, lost)
            text = f"{len(lost)} circuits of own endpoints were missing in the list of own circuits"
            self._state.events.add("warning", f"switch/{switch}", "Reclaimed", text)
        return bool(lost)

    async def _read(self, switch: str) -> tuple[CircuitMap, frozenset[End]]:
        """Return a map that is as new as the intent, and the ends moved while it was read.

        The transaction itself records where these are: a map read before its end would set the
        intent back to a place that the light has left.
        """
        state = self._state
        for _ in range(READINGS):
            epoch, moving = state.epoch, state.transactions.ends()
            seen = await self._switches.read(switch)
            if state.epoch == epoch:
                break
        return seen, moving | state.transactions.ends()

    def _remember(
        self, name: str, is_at: AttachPoint | None, belongs: AttachPoint | None, *, busy: bool
    ) -> None:
        """Note where an endpoint has to move, if it has to."""
        home = belongs.aggregator if belongs else self._state.site.homes.get(name)
        right = is_at is not None and (not busy or belongs is None or is_at.aggregator == home)
        device = self._state.cables[name].fiber.device
        state = self._state
        unusable = name in state.light.quarantine or name in state.light.foreign_endpoints[device]
        dark = name in self._dark
        if dark and is_at is not None and not unusable:
            self._wanted[name] = None
        elif home is None or right or unusable or dark or name in state.light.detached:
            self._wanted.pop(name, None)
        else:
            self._wanted[name] = home

    def note_foreign(self, switch: str, seen: CircuitMap) -> Recognised:
        """Return what a switch's circuits mean; avoid the ports of those that are not intended.

        Each new foreign circuit is reported once.
        """
        light, found = self._state.light, recognise(self._state.site, switch, ours(seen))
        self._note_foreign(switch, seen, found)
        new = found.uplinks.items() - light.uplinks.items()
        light.foreign_points[switch] |= {point for pair in new for point in pair}
        return found

    def _note_foreign(self, switch: str, seen: CircuitMap, found: Recognised) -> None:
        state, unknown = self._state, found.foreign
        foreign = tuple((c.a, c.b) for c in seen.circuits if not is_ours(c))
        pairs = frozenset((*unknown, *foreign))
        taken = NOTHING_FOREIGN
        if pairs:
            taken = recognise(state.site, switch, (*unknown, *_as_foreign(foreign)))
        state.light.foreign_points[switch] = taken.taken_points
        state.light.foreign_endpoints[switch] = taken.taken_endpoints
        about = self._switches.capabilities(switch)
        hint = ""
        if about is not None and not about.stores_owner:
            hint = "; to take it over, see `lightloom ocs connect URL A B --mode overwrite`"
        fresh = sorted(pairs - self._foreign.get(switch, frozenset()))
        for a, b in fresh[:SHOWN]:
            text = f"circuit {a:.40}-{b:.40} is foreign; its ports are not used{hint}"
            state.events.add("warning", f"switch/{switch}", "ForeignCircuit", text)
        if len(fresh) > SHOWN:
            text = f"{len(fresh) - SHOWN} more circuits are foreign; see `lightloom get circuits`"
            state.events.add("warning", f"switch/{switch}", "ForeignCircuit", text)
        self._foreign[switch] = pairs

    def settled(self, endpoints: Iterable[str]) -> bool:
        """Whether the endpoints' switches are settled and their light is where it belongs.

        Those whose move has failed count as settled: see ``misplaced``.
        """
        read = self._state.light.foreign_points.keys()
        optical = {switch.name for switch in self._state.site.switches}
        unread = (optical - read) | self._fresh.keys()
        moving = self._wanted.keys() - self._later.keys()
        return not any(
            e in moving or self._state.cables[e].fiber.device in unread for e in endpoints
        )

    def misplaced(self) -> dict[str, str]:
        """Return jobs' endpoints whose light could not be moved, and where it belongs."""
        return {e: self._wanted[e] or "the dark" for e in sorted(self._later)}

    async def repair(self) -> None:
        """Move the endpoints that are not where they belong, as far as devices answer."""
        state = self._state
        aggregators, switches = state.connections.aggregators(), state.connections.switches()
        locked, holders, busy = (
            state.transactions.locked(),
            state.jobs.holders(),
            self._mover.busy_jobs(),
        )
        now = self._monotonic()
        moves: dict[str, str | None] = {}
        self._later = {e: due for e, due in self._later.items() if e in self._wanted}
        for e, home in self._wanted.items():  # one that cannot move now does not delay the others
            at, job = state.light.attachments.get(e), holders.get(e)
            if (
                (home is None or home in aggregators)
                and (at is None or at.aggregator in aggregators)
                and state.cables[e].fiber.device in switches
                and e not in locked
                and self._later.get(e, now) <= now
                and (job is None or job.name not in busy)
            ):
                moves[e] = home
        if not moves:
            return
        rewiring: Rewiring | None = None
        try:
            rewiring = await self._mover.foreseen(moves)
        except ServiceError:
            if not (moves := await self._with_ports(moves)):
                return
        try:
            running = self._mover.begin(Cause.HOMES, moves, rewiring=rewiring)
        except ServiceError as error:
            log.warning("endpoints_not_connected_yet", error=error.message)
            return
        tx = await self._mover.carry_out(running)
        for endpoint in moves:
            self._tried(endpoint, done=tx.ending is Outcome.COMMITTED)

    async def _with_ports(self, moves: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the moves for which there are ports: one without does not hold up the others."""
        refused = await self._mover.without_ports(moves)
        for endpoint, why in refused.items():
            log.warning("endpoint_stays_dark", endpoint=endpoint, error=why)
            self._tried(endpoint, done=False)
        return {e: home for e, home in moves.items() if e not in refused}

    def _tried(self, endpoint: str, *, done: bool) -> None:
        """Count an attempt. After some that failed, an endpoint without a job is given up."""
        failed = self._repairs[endpoint] = 0 if done else self._repairs.get(endpoint, 0) + 1
        state = self._state
        job = state.jobs.holders().get(endpoint)
        if done or (failed >= REPAIR_ATTEMPTS and job is None):
            self._wanted.pop(endpoint, None)
        if done or job is None or failed < REPAIR_ATTEMPTS:
            self._later.pop(endpoint, None)
            return
        if endpoint not in self._later:
            text = (
                f"{failed} attempts to move its light to {self._wanted.get(endpoint)} failed:"
                f" job {job.name} lacks it; tried again every {REPAIR_AGAIN_S:g} s"
            )
            state.events.add("error", f"endpoint/{endpoint}", "LightMisplaced", text)
        self._later[endpoint] = self._monotonic() + REPAIR_AGAIN_S


def _as_foreign(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Split foreign circuits, so that one between an endpoint and a port is not taken for ours."""
    return [(port, port) for pair in pairs for port in pair]
