"""Performs a transaction's instructions on the real devices and returns the answers as events.

A transaction acts on devices only here. Every call has a time-out, every error becomes the event
that reports it, and optical switches work in parallel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Protocol

import structlog

from base import clock
from base.clock import SteadyClock
from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.engine import (
    FREEZE_TIMEOUT_S,
    EngineError,
    ExecutionEngine,
    Fenced,
    RankStatus,
)
from controller.devices.errors import DEVICE_ERRORS
from controller.devices.switches import Switches
from controller.fabric.intent import FabricIntent
from controller.fabric.link_times import LinkTimes
from controller.fabric.quiet import QuietWatch
from controller.ranks.calls import freeze_processes, thaw_processes
from controller.ranks.starter import RankStarter
from controller.state.records import JobRecord
from controller.state.state import State
from controller.transaction.circuits import (
    End,
    Link,
    SwitchChange,
    endpoint_of,
    of_endpoints,
)
from controller.transaction.instructions import (
    AwaitLull,
    AwaitQuiet,
    Drain,
    FailJob,
    Instruction,
    Qualify,
    QuiesceJob,
    ResumeJob,
    Route,
    SetDeadline,
    Switch,
    WriteLog,
)
from controller.transaction.model import (
    DeadlinePassed,
    Drained,
    Event,
    JobNotQuiesced,
    JobNotResumed,
    JobQuiesced,
    JobResumed,
    Lull,
    NotDrained,
    NotQualified,
    NotRouted,
    NotSwitched,
    NotWritten,
    Phase,
    Qualified,
    Quiet,
    Routed,
    Switched,
    Transaction,
    Written,
)
from ocs_driver.base import (
    CircuitMap,
    CircuitOutcome,
    CircuitRequest,
    CircuitState,
)
from ocs_driver.errors import OcsError, OcsTimeout, OcsUnreachable
from ocs_driver.light import lit
from scheduler.model import Policy

_KILLED, _TERMINATED = 128 + 9, 128 + 15
"""Exit codes of a process that a signal ended, as Docker and shells write them."""

log = structlog.get_logger(__name__)

SETTLE_LIMIT_S = 0.25
"""How long frozen ranks may wait for acknowledgements: longer than Linux ever delays one."""
RESTART_GRACE_S = 10.0
"""Time after SIGTERM for a ``restart`` job that states none for its checkpoint."""
SWITCH_TIMEOUT_S = 8.0
CONFIRM_TIMEOUT_S = 4.0
"""How long the agents may take to confirm that this controller still commands them."""
QUALIFY_TIMEOUT_S = 4.0
"""Time for an answer, once there is a carrier; also for a carrier that comes at once."""
POWER_TIMEOUT_S = 3.0
FIRST_PROBE_S = 0.005
"""Time-out of a path's first probe: most paths work by then, and the others soon will."""
PROBE_TIMEOUT_S = 0.05
"""Each further probe waits twice as long, up to this, until the path answers or QUALIFY_TIMEOUT_S
is over. An answer that arrives after the time-out of its probe counts for the next probe."""
OBSERVE_AFTER_S = 0.5
"""After this long without an answer, check whether the container still runs."""
RETURN_WAIT_S = 20.0
"""When rolling back: how long one attempt waits for a vanished switch; the machine repeats it."""
AWAY_PAUSE_S = 2.0


class CarrierWatch:
    """How long to wait for a path: for its carrier first, then for an answer."""

    def __init__(self, began: float, up_s: float) -> None:
        """``up_s``: how long the link may need from light to carrier."""
        self.began = began
        self._up_s = up_s
        self._rose: float | None = None
        self._was_down = False

    @property
    def up(self) -> bool:
        """Whether there was a carrier at the last look."""
        return self._rose is not None

    @property
    def rose_after_s(self) -> float | None:
        """How long the carrier took; None while it is down, or when it was never seen down."""
        return self._rose - self.began if self._rose is not None and self._was_down else None

    def observe(self, now: float, *, up: bool) -> float:
        """Return when to give up. A carrier that goes again is waited for again."""
        if not up:
            self._rose, self._was_down = None, True
            return self.began + max(self._up_s, QUALIFY_TIMEOUT_S)
        if self._rose is None:
            self._rose = now
        return min(self._rose, self.began + self._up_s) + QUALIFY_TIMEOUT_S


class JobOwners(Protocol):
    """Owns the jobs that transactions touch."""

    def unresumed(self, name: str, why: str) -> None:
        """Take over a job that cannot go on after its regroup."""
        ...

    async def still(self, job: JobRecord) -> None:
        """Raise ServiceError when another engine's job is not as it was last seen."""
        ...


class Executor:
    """Carries out single instructions; ``controller.fabric.runner`` hands them out."""

    def __init__(
        self,
        state: State,
        switches: Switches,
        aggregators: Aggregators,
        engine: ExecutionEngine,
        *,
        intent: FabricIntent,
        starter: RankStarter,
        links: LinkTimes,
    ) -> None:
        self._state = state
        self._switches = switches
        self._aggregators = aggregators
        self._engine = engine
        self._intent = intent
        self._starter = starter
        self._links = links
        self.owners: JobOwners
        """Set before the first transaction."""
        self._holds: dict[str, tuple[int, asyncio.Task[None]]] = {}
        """Per transaction: the step whose endpoints are held for probing; requested once a step."""
        self._observing: asyncio.Task[None] | None = None
        self._quiet = QuietWatch(self._attached, aggregators)

    def _attached(self, endpoint: str) -> AttachPoint | None:
        return self._state.light.attachments.get(endpoint)

    def forget(self, ident: str) -> None:
        """Drop the data kept for a transaction."""
        self._holds.pop(ident, None)
        self._quiet.forget(ident)

    async def perform(
        self, tx: Transaction, order: Instruction, steady: SteadyClock
    ) -> Event | None:
        """Carry out one instruction; errors become events.

        A controller that was replaced touches no device: it only writes its own log.
        """
        lost = self._state.command_lost
        if lost and not isinstance(order, WriteLog | SetDeadline):
            return _given_up(order, lost)
        try:
            return await self._perform(tx, order, steady)
        except Fenced as error:
            self._state.lose_command(str(error))
            return _given_up(order, self._state.command_lost)
        except (ServiceError, *DEVICE_ERRORS) as error:
            return _failure(order, str(error) or "time-out")
        except Exception as error:
            # No error may leave frozen jobs behind: the transaction rolls back.
            log.exception("instruction_broke", transaction=tx.id, instruction=repr(order))
            return _failure(order, f"internal error: {type(error).__name__}")

    async def _perform(
        self, tx: Transaction, order: Instruction, steady: SteadyClock
    ) -> Event | None:
        event: Event | None = None
        match order:
            case WriteLog():
                if tx.phase is Phase.ADMIT:
                    await self._light_is_free(tx)
                    await self._still_there(tx)
                await self._intent.write_log(tx)
                event = Written(order.step)
            case AwaitLull():
                await self._quiet.await_lull(tx, order)
                event = Lull(order.step)
            case QuiesceJob():
                event = await self._quiesce(order)
            case AwaitQuiet():
                await self._quiet.await_quiet(tx, order)
                event = Quiet(order.step)
            case Drain():
                async with failpoints.around("drain"):
                    await self._intent.hold(of_endpoints(order.target))
                event = await self._drained(tx, order)
            case Switch():
                act = self._switch_back if tx.back else self._switch
                event = await act(order, steady)
            case Qualify():
                async with failpoints.around("qualify"):
                    event = await self._qualify(tx, order, steady)
            case Route():
                async with failpoints.around("route"):
                    await self._intent.release(tx)
                event = Routed(order.step)
            case ResumeJob():
                event = await self._resume(order)
            case FailJob():
                self.owners.unresumed(order.job, order.reason)
            case SetDeadline():
                await asyncio.sleep(order.after_s)
                event = DeadlinePassed(order.step)
        return event

    # --- jobs -----------------------------------------------------------------------------

    async def _quiesce(self, order: QuiesceJob) -> Event:
        if order.policy is Policy.RESTART:
            grace_s = order.checkpoint_s or RESTART_GRACE_S
            async with (
                failpoints.around("stop-for-restart"),
                asyncio.timeout(grace_s + FREEZE_TIMEOUT_S),
            ):
                ended = await self._engine.stop(order.job, grace_s)
            reason = unwritten(order.job, ended, grace_s) if order.checkpoint_s else ""
            if reason:
                return JobNotQuiesced(order.step, order.job, reason)
            return JobQuiesced(order.step, order.job)
        async with failpoints.around("freeze"), asyncio.timeout(FREEZE_TIMEOUT_S):
            settled = await freeze_processes(self._engine, self._state, order.job, SETTLE_LIMIT_S)
        return JobQuiesced(order.step, order.job, bool(settled))

    async def _drained(self, tx: Transaction, order: Drain) -> Event:
        """Look for traffic that still passes, although the aggregators have acknowledged."""
        if await self._quiet.drained(tx):
            return Drained(order.step)
        return NotDrained(order.step, "the old ports of live jobs still transmit after the drain")

    async def _resume(self, order: ResumeJob) -> Event:
        if order.policy is Policy.RESTART:
            await self._starter.restart(order.job)
        else:
            async with failpoints.around("thaw"), asyncio.timeout(FREEZE_TIMEOUT_S):
                await thaw_processes(self._engine, self._state, order.job)
        return JobResumed(order.step, order.job)

    # --- light ----------------------------------------------------------------------------

    async def _forbidden(self, order: Switch) -> NotSwitched | None:
        """Ask the agents of the touched servers whether a newer controller has taken over.

        Switches do not know terms: without this check a suspended controller would continue here.
        Returns the event when one has, or when no agent answers: light must not be touched then.
        """
        change = order.change
        endpoints = {link.endpoint for link in (*change.delete, *change.make) if link.endpoint}
        servers = {self._state.cables[endpoint].server for endpoint in endpoints}
        try:
            await self._engine.confirm_command(sorted(servers), CONFIRM_TIMEOUT_S)
        except Fenced as error:
            self._state.lose_command(str(error))
            return NotSwitched(order.step, change.switch, self._state.command_lost)
        except EngineError as error:
            return NotSwitched(order.step, change.switch, str(error), away=True)
        return None

    async def _light_is_free(self, tx: Transaction) -> None:
        """Check, before anything is touched, that the switches would accept the change.

        A foreign circuit may be newer than the plan. OcsError when a switch would refuse.
        """
        checks = [self._switches.check(change.switch, *_requests(change)) for change in tx.changes]
        await asyncio.gather(*checks)

    async def _still_there(self, tx: Transaction) -> None:
        """Ask other engines whether their jobs are as they were. ServiceError when one is not."""
        jobs = [self._state.jobs.get(job.name) for job in tx.jobs]
        theirs = [job for job in jobs if job is not None and not job.owner.judges]
        await asyncio.gather(*(self.owners.still(job) for job in theirs))

    async def _switch(self, order: Switch, steady: SteadyClock) -> Event:
        return await self._forbidden(order) or await self._change(order, steady)

    async def _change(self, order: Switch, steady: SteadyClock) -> Event:
        change = order.change
        began = steady() if change.delete else None
        delete, make = _requests(change)
        try:
            async with failpoints.around("switch"):
                result = await self._switches.apply(
                    change.switch, delete, make, deadline_s=SWITCH_TIMEOUT_S
                )
        except (OcsTimeout, TimeoutError):
            # Sent, outcome unknown: read the map; never repeat a change without that.
            try:
                async with asyncio.timeout(SWITCH_TIMEOUT_S):
                    seen = await self._switches.read(change.switch)
            except (OcsError, OSError, TimeoutError) as error:
                reason = str(error) or f"{change.switch} does not answer"
                return NotSwitched(order.step, change.switch, reason, began, away=True)
            if _as_asked(seen, change):
                return Switched(order.step, change.switch, began)
            reason = f"{change.switch} did not answer and its map differs from the request"
            return NotSwitched(order.step, change.switch, reason, began)
        except OcsUnreachable as error:  # nothing was sent
            return NotSwitched(order.step, change.switch, str(error), away=True)
        failed = [r for r in result.results if r.outcome is CircuitOutcome.FAILED]
        if not failed:
            return Switched(order.step, change.switch, began)
        pairs = {frozenset((r.a, r.b)) for r in failed}
        suspects = tuple(link.point for link in change.make if frozenset((link.a, link.b)) in pairs)
        reason = "; ".join(f"{change.switch} {r.a}-{r.b}: {r.message or r.code}" for r in failed)
        return NotSwitched(order.step, change.switch, reason, began, suspects)

    async def _switch_back(self, order: Switch, steady: SteadyClock) -> Event:
        """Restore the old circuits; wait, bounded, for a switch that has vanished."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETURN_WAIT_S):
                await self._switches.back(order.change.switch)
        event = await self._switch(order, steady)
        if isinstance(event, NotSwitched) and event.away:
            await asyncio.sleep(AWAY_PAUSE_S)  # its session has not noticed yet
        return event

    async def _qualify(self, tx: Transaction, order: Qualify, steady: SteadyClock) -> Event:
        """Prove the path with a packet; the switch step has read back the circuit state."""
        point, near = order.point, order.end
        carrier = CarrierWatch(clock.monotonic(), self._links.of(near, point).up_s)
        try:
            await self._held(tx, order.step)
            observe_at = clock.monotonic() + OBSERVE_AFTER_S
            wait_s = FIRST_PROBE_S
            while True:
                end = carrier.observe(clock.monotonic(), up=self._has_carrier(near, point))
                # Once more when the time is over: this process may have stalled, not the path.
                last = clock.monotonic() >= end
                if await self._reached(near, point, QUALIFY_TIMEOUT_S / 8 if last else wait_s):
                    self._lit(near, point, carrier)
                    return Qualified(order.step, near, steady())
                if last:
                    break
                wait_s = min(2 * wait_s, PROBE_TIMEOUT_S)
                if clock.monotonic() >= observe_at:  # its container may have ended meanwhile
                    await self._observe_again()
                    observe_at = clock.monotonic() + OBSERVE_AFTER_S
        except (ServiceError, *DEVICE_ERRORS) as error:
            # The port is not to blame: its aggregator cannot be asked.
            return NotQualified(order.step, near, str(error) or "time-out", blame=False)
        answers = self._intent.answers(endpoint_of(near))
        what = "no answer through" if answers and carrier.up else "no carrier on"
        silent = "" if tx.back else await self._silent(near)
        reason = f"{near}: {what} {point}{silent and f': {silent}'}"
        # On the way back the path itself is lost, whatever the cause.
        return NotQualified(order.step, near, reason, blame=not silent)

    def _lit(self, end: End, point: AttachPoint, carrier: CarrierWatch) -> None:
        """Learn from a carrier that was seen to come."""
        carrier.observe(clock.monotonic(), up=self._has_carrier(end, point))
        if carrier.rose_after_s is None:
            return
        self._links.add(end, point, carrier.rose_after_s)
        log.info(
            "link_up",
            end=str(end),
            port=str(point),
            carrier_s=round(carrier.rose_after_s, 3),
            probe_s=round(clock.monotonic() - carrier.began - carrier.rose_after_s, 3),
        )

    async def _silent(self, end: End) -> str:
        """Return why a port cannot be blamed for silence; empty when light enters from ``end``."""
        endpoint = endpoint_of(end)
        if not endpoint:
            return ""
        fiber = self._state.cables[endpoint].fiber
        try:
            async with asyncio.timeout(POWER_TIMEOUT_S):
                measured = await self._switches.power(fiber.device, (fiber.port,))
        except (OcsError, OSError, TimeoutError):
            return "its light cannot be measured"
        if any(lit(power.in_dbm) is not None for power in measured):
            return ""
        dark = any(power.in_dbm is not None for power in measured)
        return "NIC silent" if dark else "NIC silent, or its light has no meter"

    async def _observe_again(self) -> None:
        """Observe the containers again: once for all paths that wait for it."""
        if self._observing is None or self._observing.done():
            self._observing = asyncio.ensure_future(self._intent.observe())
        await asyncio.shield(self._observing)

    async def _held(self, tx: Transaction, step: int) -> None:
        """Let probes through at the new places; one flow change for all paths of a step."""
        known = self._holds.get(tx.id)
        if known is None or known[0] != step:
            task = asyncio.ensure_future(self._intent.hold(of_endpoints(tx.target)))
            known = self._holds[tx.id] = (step, task)
        if known[1].done():  # as for all paths but the first
            known[1].result()
        else:
            await asyncio.shield(known[1])

    async def _reached(self, end: End, point: AttachPoint, wait_s: float) -> bool:
        endpoint = endpoint_of(end)
        if not self._intent.answers(endpoint):
            # No container has an address there: only light and carrier can be checked.
            if self._has_carrier(end, point):
                return True
            await asyncio.sleep(wait_s)
            return self._has_carrier(end, point)
        cable = self._state.cables[endpoint]
        async with asyncio.timeout(wait_s + 1.0):
            answer = await self._aggregators.probe(
                point.aggregator, point.port, cable.ip, cable.mac, deadline_s=wait_s
            )
        if answer is None and endpoint in self._state.theirs and wait_s >= PROBE_TIMEOUT_S:
            # Another engine's node may not use the address of the site file; its job still needs
            # the light.
            return self._intent.port_up(point)
        return answer is not None

    def _has_carrier(self, *ends: End) -> bool:
        return all(self._intent.port_up(end) for end in ends if isinstance(end, AttachPoint))


def _request(link: Link) -> CircuitRequest:
    return CircuitRequest(link.a, link.b, name=link.name)


def _requests(change: SwitchChange) -> tuple[list[CircuitRequest], list[CircuitRequest]]:
    """Return what a change deletes and what it makes."""
    return [_request(link) for link in change.delete], [_request(link) for link in change.make]


def _as_asked(seen: CircuitMap, change: SwitchChange) -> bool:
    made = [seen.find(_request(link)) for link in change.make]
    wanted = {frozenset((link.a, link.b)) for link in change.make}
    gone = [
        link
        for link in change.delete
        if frozenset((link.a, link.b)) not in wanted and seen.joining(link.a, link.b)
    ]
    return not gone and all(c is not None and c.state is CircuitState.TUNED for c in made)


def _given_up(order: Instruction, reason: str) -> Event | None:
    """Return the event for an instruction that is dropped; it blames no device."""
    if isinstance(order, Qualify):
        return NotQualified(order.step, order.end, reason, blame=False)
    return _failure(order, reason)


def _failure(order: Instruction, reason: str) -> Event | None:
    """Return the event that reports the failure of ``order``."""
    event: Event | None = None
    match order:
        case WriteLog():
            event = NotWritten(order.step, reason)
        case QuiesceJob():
            event = JobNotQuiesced(order.step, order.job, reason)
        case AwaitLull():
            event = Lull(order.step)
        case AwaitQuiet():
            event = Quiet(order.step)
        case Drain():
            event = NotDrained(order.step, reason)
        case Switch(change=change):
            event = NotSwitched(order.step, change.switch, reason)
        case Qualify():
            event = NotQualified(order.step, order.end, reason)
        case Route():
            event = NotRouted(order.step, reason)
        case ResumeJob():
            event = JobNotResumed(order.step, order.job, reason)
        case _:
            pass
    return event


def unwritten(job: str, ended: Iterable[RankStatus], grace_s: float) -> str:
    """Return which rank did not finish its checkpoint and why; empty when all did."""
    for rank in sorted(ended, key=lambda status: status.rank):
        code = rank.exit_code
        if code in (None, 0, _TERMINATED):
            continue
        what = (
            f"was killed after {grace_s:g} s before its checkpoint ended; raise checkpoint_grace_s"
            if code == _KILLED and not rank.oom
            else f"exited with code {code} during its checkpoint; see `lightloom logs {job}`"
        )
        return f"rank {rank.rank} of {job} {what}"
    return ""
