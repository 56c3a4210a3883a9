"""The conversation with one aggregator: requests, answers, and what its tables hold.

Lives on the asyncio loop. os-ken's threads reach it only through ``OpenFlowAggregators``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from base import clock
from controller.devices.aggregators import AggregatorError
from controller.devices.counters import PortBlock
from controller.devices.openflow.rules.program import FlowDiff, FlowProgram, diff
from controller.devices.openflow.session import messages
from controller.devices.openflow.session.app import ProbeAnswered
from controller.devices.openflow.session.osken import OpenFlowSession, ofproto
from controller.devices.openflow.session.trials import (
    attempts,
    description_of,
    facts_of,
    group_attempts,
    is_of_width,
    is_scratch,
    looks,
    read_trial,
    width_of,
)
from controller.devices.openflow.wire import arp
from controller.devices.openflow.wire.port_stats import block_of
from controller.devices.openflow.wire.table_features import TABLES
from controller.devices.profile import Profile, Trial

PROBE_INTERVAL_S = 0.25
SAID_S = 5.0
"""Longest wait for what a switch says of itself; then it is unknown."""
TRIALS_S = 3.0
"""Longest time that trial rules wait for answers; and again for their removal."""
SETTLE_S = 0.5
"""Wait for rules that are not there when the barrier is answered."""
REFUSALS = 16
"""Refusals of one change that an error names."""
ENTRIES = 1 << 16
"""Flows or ports in one answer; no aggregator has as many."""
PORTS = 1 << 13
"""Ports whose carrier is remembered."""


@dataclass(slots=True)
class _Request:
    """A request without its answer yet. A multipart answer comes in pieces."""

    done: asyncio.Future[list[Any]]
    pieces: list[Any] = field(default_factory=list)


class Conversation:
    """With one aggregator. ``wanted``: the program it was last asked to hold, connected or not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted: FlowProgram | None = None
        self.ports: dict[int, bool] = {}
        self.ready = False
        self._session: OpenFlowSession | None = None
        self._installed: FlowProgram | None = None
        self._asked: FlowProgram | None = None
        """What the tables were last asked to hold; its outcome may be unknown."""
        self._converging = 0
        """Calls that change the tables, or wait to do so."""
        self._settled: FlowProgram | None = None
        """The program object that the tables are known to hold."""
        self._spares = False
        """The tables hold rules besides those of that program, which it spares."""
        self._busy = asyncio.Lock()
        self._requests: dict[int, _Request] = {}
        self._watched: list[tuple[int, messages.MessageBatch]] = []
        """The batches being sent, with the first of their consecutive transaction ids."""
        self._refusals: list[str] = []
        """The first refusals of the batches being sent."""
        self._probes: dict[tuple[int, str, str], set[asyncio.Future[float]]] = {}

    # --- what the threads post

    def attach(self, session: OpenFlowSession, ports: Mapping[int, bool]) -> None:
        """Take a new session; nothing is known about the tables behind it."""
        if (
            self._session is not None
        ):  # the end of the old one is reported after the begin of the new one
            self.detach()
        self._session = session
        self._installed = None
        self.ports = dict(ports)
        self.ready = False

    def detach(self) -> None:
        """Drop the session; its open requests end with ``unavailable``."""
        self._session = None
        self._installed = None
        self.ready = False
        for request in self._requests.values():
            if not request.done.done():
                request.done.set_exception(self._no_session("the session was lost"))
        self._requests.clear()

    def holds(self, session: OpenFlowSession) -> bool:
        """Whether ``session`` is the current one."""
        return session is self._session

    def reply(self, xid: int, msg: Any) -> None:
        """Take an answer, or one piece of it."""
        request = self._requests.get(xid)
        if request is None or request.done.done():
            return
        body = getattr(msg, "body", ())
        request.pieces.extend(body if isinstance(body, list) else [body] if body else ())
        if len(request.pieces) > ENTRIES:
            request.done.set_exception(self._no_session("its answer is endless"))
            if self._session is not None:
                self._session.close()
            return
        if not getattr(msg, "flags", 0) & ofproto.OFPMPF_REPLY_MORE:
            request.done.set_result(request.pieces)

    def port_changed(self, port: int, *, up: bool) -> None:
        """Note a port's carrier; ignore new ports beyond a limit."""
        if port in self.ports or len(self.ports) < PORTS:
            self.ports[port] = up

    def rejected(self, xid: int, reason: str) -> None:
        """Take a refusal of a watched message or of a request."""
        for first, batch in self._watched:
            place = (xid - first) & ofproto.MAX_XID
            if place < len(batch) and len(self._refusals) < REFUSALS:
                self._refusals.append(f"{batch.about[place]}: {reason}")
        request = self._requests.get(xid)
        if request is not None and not request.done.done():
            request.done.set_exception(self._failed(reason))

    def probe_answered(self, answer: ProbeAnswered) -> None:
        """Wake the probes that wait for this address at this port."""
        key = (answer.port, answer.reply.ip, answer.reply.mac)
        for waiter in self._probes.get(key, ()):
            if not waiter.done():
                waiter.set_result(answer.time)

    # --- what the controller asks

    def settled(self, program: FlowProgram) -> bool:
        """Whether the tables are known to hold this program object, so that nothing is to do."""
        return self._installed is not None and self._settled is program

    async def converge(self, program: FlowProgram | None = None, *, deadline_s: float) -> FlowDiff:
        """Make the tables hold ``program``, or else what was wanted; return what had to change.

        ``program`` is wanted from now on, connected or not. Reads the tables first unless they are
        known. After any error they are unknown.
        """
        self.wanted = program or self.wanted
        self._converging += 1
        try:
            async with self._exclusive(deadline_s):
                session, wanted = self._current(), self.wanted
                installed = self._installed
                if installed is None or self._spares_others_than(wanted):
                    installed = await self._read(session)
                    self._spares = False
                self._installed = installed
                if wanted is None:
                    return FlowDiff()
                self._asked = wanted
                steps = diff(installed, wanted)
                self._spares |= steps.spared > 0
                if steps:
                    self._installed = None
                    await self._push(session, steps)
                self._installed = self._settled = wanted
                return steps
        finally:
            self._converging -= 1

    async def compare(self, *, deadline_s: float) -> FlowDiff:
        """Read the tables and return how they differ from the wanted program.

        While a call waits to change them, they are compared with the previous program.
        """
        async with self._exclusive(deadline_s):
            self._installed = None
            found = await self._read(self._current())
            due = self._asked if self._converging else self.wanted
            wanted = due or FlowProgram(self.name, 0)
            steps = diff(found, wanted)
            self._spares = steps.spared > 0
            # Equal except for epochs; the wanted one is folded, so the next comparison is faster.
            self._installed = found if steps else wanted
            if steps:
                self._settled = None
            return steps

    async def counters(self, *, deadline_s: float) -> PortBlock:
        """Read the counters of all physical ports."""
        async with self._deadline(deadline_s):
            session = self._current()
            return block_of(await self._ask(session, messages.ports_request(session)))

    async def profile(self, *, deadline_s: float) -> Profile:
        """Measure what the switch is and can do; what it does not answer stays unknown.

        The trials change the tables for a moment, and no change of forwarding goes on meanwhile.
        """
        session = self._current()
        said = await self._said(session, messages.description_request(session))
        features = await self._said(session, messages.table_features_request(session))
        ports = block_of(await self._said(session, messages.ports_request(session)) or [])
        async with self._exclusive(deadline_s):
            trials, barrier = await self._try_out(session)
        outcomes = {trial.name: trial.outcome for trial in trials}
        return Profile(
            **(description_of(said[0]) if said else {}),
            tables=len(features) if features else None,
            facts=tuple(facts_of(table) for table in features or () if table.table < TABLES),
            trials=tuple(trial for trial in trials if not is_of_width(trial)),
            metadata_bits=width_of(outcomes),
            barrier=barrier,
            durations=any(c.has_duration for c in ports.values()) if ports else None,
        )

    async def _said(self, session: OpenFlowSession, msg: Any) -> list[Any] | None:
        """Return the answer; None when it is refused or does not come in time."""
        try:
            async with asyncio.timeout(SAID_S):
                return await self._ask(session, msg)
        except TimeoutError:
            return None
        except AggregatorError as error:
            if error.code != "failed":
                raise
            return None

    async def _try_out(self, session: OpenFlowSession) -> tuple[list[Trial], bool | None]:
        """Try rules and groups; remove them in any case."""
        port = min(self.ports, default=1)
        rules, groups = attempts(port), group_attempts(port)
        tried = (*groups, *rules)
        try:
            async with asyncio.timeout(TRIALS_S):
                refusals = await self._send(session, [a.add for a in tried])
                seen = await self._seen(session)
                kept = [a for a, why in zip(tried, refusals, strict=True) if why is None]
                early = {a.name for a in kept if a.look in seen}
                if len(early) < len(kept):
                    await asyncio.sleep(SETTLE_S)
                    seen = await self._seen(session)
        except TimeoutError:
            return [Trial(name=a.name, outcome="unknown") for a in tried], None
        finally:
            await self._clear(session, [a.remove for a in (*rules, *groups)])
        late = {a.name for a in kept if a.look in seen} - early
        trials = [read_trial(a, why, seen) for a, why in zip(tried, refusals, strict=True)]
        return trials, not late if kept else None

    async def _seen(self, session: OpenFlowSession) -> set[tuple[Any, ...]]:
        rules = await self._ask(session, messages.flows_request(session))
        groups = await self._ask(session, messages.groups_request(session))
        return {looks(entry) for entry in (*rules, *groups) if is_scratch(entry)}

    async def _clear(self, session: OpenFlowSession, removals: Sequence[bytes]) -> None:
        """Remove all trials; where that fails the tables are unknown, and are read again."""
        installed, self._installed = self._installed, None
        with suppress(TimeoutError, AggregatorError):
            async with asyncio.timeout(TRIALS_S):
                await self._send(session, removals)
                if not await self._seen(session):
                    self._installed = installed

    async def _send(self, session: OpenFlowSession, batch: Sequence[bytes]) -> list[str | None]:
        """Send messages and a barrier; return the refusal of each, None for one that was taken."""
        waiting: list[asyncio.Future[list[Any]]] = []
        xids = session.take_xids(len(batch))
        for xid in xids:
            future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
            self._requests[xid] = _Request(future)
            waiting.append(future)
        try:
            stamped = [m[:4] + x.to_bytes(4) + m[8:] for m, x in zip(batch, xids, strict=True)]
            session.send(b"".join(stamped))
            await self._ask(session, messages.barrier(session))
            return [_refusal(future) for future in waiting]
        finally:
            for xid, future in zip(xids, waiting, strict=True):
                self._requests.pop(xid, None)
                _ = future.exception() if future.done() else future.cancel()

    async def probe(
        self, port: int, ip: str, mac: str, sender: str, *, deadline_s: float
    ) -> float | None:
        """Ask out of ``port`` who has ``ip``, until ``mac`` answers at that port or time is up.

        Returns the round trip in seconds, counted from the last probe sent.
        """
        frame = arp.probe_frame(ip, sender)
        key = (port, ip, mac.lower())
        waiter: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._probes.setdefault(key, set()).add(waiter)
        try:
            async with asyncio.timeout(deadline_s):
                while True:
                    session = self._current()
                    sent = clock.monotonic()
                    session.send_msg(messages.packet_out(session, port, frame))
                    with suppress(TimeoutError):
                        async with asyncio.timeout(PROBE_INTERVAL_S):
                            return max(0.0, await asyncio.shield(waiter) - sent)
        except TimeoutError:
            return None
        finally:
            waiters = self._probes[key]
            waiters.discard(waiter)
            if not waiters:
                del self._probes[key]

    def _spares_others_than(self, wanted: FlowProgram | None) -> bool:
        """Whether the tables must be read again, because other endpoints are spared now."""
        return (
            self._spares
            and wanted is not None
            and self._installed is not None
            and self._installed.spared != wanted.spared
        )

    async def _read(self, session: OpenFlowSession) -> FlowProgram:
        # Changes that an earlier, timed-out call sent must not take effect after the reading.
        await self._ask(session, messages.barrier(session))
        rules = await self._ask(session, messages.flows_request(session))
        groups = await self._ask(session, messages.groups_request(session))
        return FlowProgram(
            self.name,
            0,
            tuple(messages.read_rule(entry) for entry in rules),
            tuple(messages.read_group(entry) for entry in groups),
        )

    async def _push(self, session: OpenFlowSession, steps: FlowDiff) -> None:
        try:
            for batch in messages.batches(steps):
                xids = session.take_xids(len(batch))
                self._watched.append((xids[0], batch))
                session.send(batch.stamped(xids))
                await self._ask(session, messages.barrier(session))
                if self._refusals:
                    raise self._failed("; ".join(self._refusals))
        finally:
            self._watched.clear()
            self._refusals.clear()

    async def _ask(self, session: OpenFlowSession, msg: Any) -> list[Any]:
        """Return the answer of ``session``, which is the current one before and after.

        An aggregator may have reconnected before the caller is woken. Messages of the old session
        say nothing about the tables behind the new one.
        """
        self._require(session)
        xid = session.set_xid(msg)
        request = _Request(asyncio.get_running_loop().create_future())
        self._requests[xid] = request
        try:
            if not session.send_msg(msg):
                raise self._no_session("the session is closing")
            answer = await request.done
        finally:
            self._requests.pop(xid, None)
        self._require(session)
        return answer

    def _current(self) -> OpenFlowSession:
        if self._session is None:
            raise self._no_session("not connected")
        return self._session

    def _require(self, session: OpenFlowSession) -> None:
        if not self.holds(session):
            raise self._no_session("the session was lost")

    @asynccontextmanager
    async def _exclusive(self, deadline_s: float) -> AsyncIterator[None]:
        async with self._deadline(deadline_s), self._busy:
            yield

    @asynccontextmanager
    async def _deadline(self, deadline_s: float) -> AsyncIterator[None]:
        self._current()
        try:
            async with asyncio.timeout(deadline_s):
                yield
        except TimeoutError:
            raise AggregatorError(
                "timeout",
                self.name,
                f"no answer within {deadline_s:g} s; the outcome is unknown",
                "audit the aggregator before anything else is changed",
            ) from None

    def _no_session(self, why: str) -> AggregatorError:
        hint = (
            "check the aggregator and its controller address; its tables are read on reconnection"
        )
        return AggregatorError("unavailable", self.name, why, hint)

    def _failed(self, reason: str) -> AggregatorError:
        return AggregatorError(
            "failed",
            self.name,
            f"the aggregator refused {reason}",
            "free table space or roll back; lightloom reads the tables before the next change",
        )


def _refusal(answer: asyncio.Future[list[Any]]) -> str | None:
    """Return why a message was refused; None when it was not."""
    if not answer.done():
        return None
    error = answer.exception()
    return None if error is None else str(error).rpartition("the aggregator refused ")[2]
