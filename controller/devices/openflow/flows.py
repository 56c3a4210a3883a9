"""Aggregators by intent over OpenFlow: compiles forwarding into flow programs and installs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from base.pools import Pool
from controller.base.tasks import seen
from controller.devices.aggregators import (
    AggregatorError,
    Forwarding,
    ForwardingChanges,
)
from controller.devices.counters import PortBlock
from controller.devices.openflow.rules.compiler import Compiled, Compiler
from controller.devices.openflow.rules.program import FlowProgram, diff
from controller.devices.profile import Profile
from sitefile import CabledSite

INSTALL_TIMEOUT_S = 8.0


class FlowTables(Protocol):
    """The aggregators' tables, as :class:`OpenFlowAggregators` keeps them."""

    async def start(self) -> tuple[str, int]:
        """Accept sessions; return the address."""

    async def stop(self) -> None:
        """End all sessions."""

    def connected(self) -> frozenset[str]:
        """Return the aggregators whose session is up."""

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """Return the carrier of every port."""

    def lacking(self, programs: Mapping[str, FlowProgram]) -> frozenset[str]:
        """Return the aggregators that are not known to hold exactly their program."""

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        """Make every aggregator in ``programs`` hold its program. AggregatorError."""

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        """Send an ARP probe out of a port. AggregatorError."""

    async def port_counters(self, as_name: str) -> PortBlock:
        """Read the port counters. AggregatorError."""

    async def profile(self, as_name: str) -> Profile:
        """Measure what the switch is and can do. AggregatorError."""

    async def audit(self, as_name: str) -> list[str]:
        """Read the tables; list what differs from what was installed last. AggregatorError."""


_Question = tuple[Compiled, Forwarding]
"""Input of the compiler: the result to continue from, and what must be forwarded."""


def _alike(one: _Question, other: _Question) -> bool:
    """Whether two questions have the same answer; spared endpoints do not matter."""
    return one[0] is other[0] and replace(one[1], spared=other[1].spared) == other[1]


def _counted(changed: Iterable[tuple[FlowProgram, FlowProgram]]) -> ForwardingChanges:
    """Count the flows between pairs of programs, before and after."""
    steps = [diff(before, after) for before, after in changed]
    return ForwardingChanges(
        add=sum(len(step.add) for step in steps),
        delete=sum(len(step.remove) for step in steps),
    )


class FlowKeeper:
    """Implements :class:`controller.devices.aggregators.Aggregators` over flow tables."""

    def __init__(self, site: CabledSite, tables: FlowTables) -> None:
        self._tables = tables
        self._addresses = {e.name: (e.mac.lower(), e.ip) for e in site.endpoints}
        self._installing = asyncio.Lock()
        self._compiler = Compiler(site)
        self._wanted: Forwarding | None = None
        """By the latest call; earlier calls that still wait install it too."""
        self._compiled = Compiled()
        self._pool = Pool("flows", 2)  # the present intent, and the foreseen one
        self._foreseen: tuple[_Question, asyncio.Future[Compiled]] | None = None
        """What is expected next, and its flows as soon as they are compiled."""
        self._spared: dict[str, tuple[FlowProgram, FlowProgram]] = {}
        """Programs as compiled, and as they are installed while something is spared."""

    async def start(self) -> tuple[str, int]:
        """Accept sessions; return the address that listens."""
        return await self._tables.start()

    async def stop(self) -> None:
        """End all sessions; tables stay as they are."""
        await self._tables.stop()

    def connected(self) -> frozenset[str]:
        """Return the aggregators whose session is up."""
        return self._tables.connected()

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """Return the carrier of every port whose carrier is known."""
        return self._tables.carrier(as_name)

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        """Send an ARP probe out of a port; return the round trip in seconds. AggregatorError."""
        return await self._tables.probe(as_name, port, ip, mac, deadline_s=deadline_s)

    async def port_counters(self, as_name: str) -> PortBlock:
        """Read the port counters. AggregatorError."""
        return await self._tables.port_counters(as_name)

    async def profile(self, as_name: str) -> Profile:
        """Measure what the switch is and can do. AggregatorError."""
        return await self._tables.profile(as_name)

    async def audit(self, as_name: str) -> list[str]:
        """Read the tables; list what differs from what was installed last. AggregatorError."""
        return await self._tables.audit(as_name)

    async def changes(self, now: Forwarding, then: Forwarding) -> ForwardingChanges:
        """Count the flows to add and to delete; one that would only get a new cookie stays."""
        compiled = await self._compile(self._compiled, now)
        before = self._sparing(compiled.programs, now.spared)
        after = (await self._compile(compiled, then)).programs
        changed = [
            (before[name], program)
            for name, program in after.items()
            if program is not compiled.programs[name]
        ]
        return await self._pool.run(_counted, changed)

    def foresee(self, wanted: Forwarding) -> None:
        """Begin to compile ``wanted``.

        Light moves meanwhile. Only a ``converge`` to exactly this intent uses the result.
        """
        question = (self._compiled, wanted)
        answer = self._next(self._compiled, wanted)
        answer.add_done_callback(seen)
        self._foreseen = (question, answer)

    async def converge(self, wanted: Forwarding, needed: frozenset[str] = frozenset()) -> None:
        """Bring all aggregators to what is wanted. AggregatorError when one in ``needed`` is away.

        An aggregator that is away gets its flows when it comes back.
        """
        self._wanted = wanted
        async with self._installing:
            wanted = self._wanted
            self._compiled = await self._compile(self._compiled, wanted)
            self._foreseen = None
            programs = self._sparing(self._compiled.programs, wanted.spared)
            lacking = sorted(self._tables.lacking(programs))
            results = await asyncio.gather(
                *(
                    self._tables.install({name: programs[name]}, deadline_s=INSTALL_TIMEOUT_S)
                    for name in lacking
                ),
                return_exceptions=True,
            )
        for name, error in zip(lacking, results, strict=True):
            if error is None or (isinstance(error, AggregatorError) and name not in needed):
                continue
            raise error

    def _sparing(
        self, programs: Mapping[str, FlowProgram], endpoints: frozenset[str]
    ) -> Mapping[str, FlowProgram]:
        """Return the programs with what they spare; the same object for the same program."""
        spared = frozenset(address for e in endpoints for address in self._addresses[e])
        if not spared:
            self._spared.clear()
            return programs
        for name, program in programs.items():
            known = self._spared.get(name)
            if known is None or known[0] is not program or known[1].spared != spared:
                self._spared[name] = (program, replace(program, spared=spared))
        return {name: self._spared[name][1] for name in programs}

    async def _compile(self, last: Compiled, wanted: Forwarding) -> Compiled:
        if self._foreseen is not None and _alike((last, wanted), self._foreseen[0]):
            return await asyncio.shield(self._foreseen[1])
        return await self._next(last, wanted)

    def _next(self, last: Compiled, wanted: Forwarding) -> asyncio.Future[Compiled]:
        """Compile in a thread, because thousands of endpoints would block the loop."""
        return self._pool.run(self._compiler.next, last, wanted)
