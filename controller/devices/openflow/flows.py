"""The keeper of flows: it keeps every aggregator equal to the intent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from controller.base.errors import ServiceError
from controller.base.pools import Pool
from controller.base.tasks import seen
from controller.devices.aggregators import AggregatorError, AttachPoint
from controller.devices.counters import PortBlock
from controller.devices.openflow.rules.compiler import Compiled, Compiler
from controller.devices.openflow.rules.program import FlowProgram
from controller.state.state import State

INSTALL_TIMEOUT_S = 8.0


class Aggregators(Protocol):
    """The part of ``OpenFlowAggregators`` that the controller uses."""

    def connected(self) -> frozenset[str]:
        """Return the aggregators whose session is up."""

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        """Return the carrier of every port."""

    def lacking(self, programs: Mapping[str, FlowProgram]) -> frozenset[str]:
        """Return the aggregators that are not known to hold exactly their program."""

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        """Make every aggregator in ``programs`` hold its program."""

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        """ARP probe out of a port."""

    async def port_counters(self, as_name: str) -> PortBlock:
        """Read the port counters."""

    async def audit(self, as_name: str) -> list[str]:
        """Read the tables afresh and list what differs from what was installed last."""


_Question = tuple[
    Compiled,
    int,
    dict[str, AttachPoint],
    dict[str, tuple[str, ...]],
    frozenset[str],
]
"""What the compiler is asked: where it goes on from, epoch, attachments, jobs, who is held."""


def _alike(one: _Question, other: _Question) -> bool:
    return one[0] is other[0] and one[1:] == other[1:]


class FlowKeeper:
    """Compiles the intent into flow programs and has them installed."""

    def __init__(self, state: State, aggregators: Aggregators) -> None:
        self._state = state
        self._aggregators = aggregators
        self._installing = asyncio.Lock()
        self._compiler = Compiler(state.site)
        self._compiled = Compiled()
        self._pool = Pool("flows", 2)  # the present intent, and what is foreseen
        self._foreseen: tuple[_Question, asyncio.Future[Compiled]] | None = None
        """What the intent is expected to be next, and its flows as soon as they are compiled."""
        self._spared: dict[str, tuple[FlowProgram, FlowProgram]] = {}
        """Programs as compiled, and as they are installed while something is spared."""

    async def programs(
        self, attachments: Mapping[str, AttachPoint]
    ) -> tuple[Mapping[str, FlowProgram], Mapping[str, FlowProgram]]:
        """Return the flows that the intent asks for now, and would ask for with ``attachments``.

        A program that would stay as it is is the same object in both.
        """
        now = await self._compile(self._compiled)
        then = await self._compile(now, attachments)
        before = self._sparing(now.programs)
        return before, {
            name: before[name] if program is now.programs[name] else program
            for name, program in then.programs.items()
        }

    def _sparing(self, programs: Mapping[str, FlowProgram]) -> Mapping[str, FlowProgram]:
        """Return the programs with what they spare; the same object for the same program."""
        cables = self._state.cables
        spared = frozenset(
            address
            for endpoint in self._state.spared
            for address in (cables[endpoint].mac.lower(), cables[endpoint].ip)
        )
        if not spared:
            self._spared.clear()
            return programs
        for name, program in programs.items():
            known = self._spared.get(name)
            if known is None or known[0] is not program or known[1].spared != spared:
                self._spared[name] = (program, replace(program, spared=spared))
        return {name: self._spared[name][1] for name in programs}

    async def _compile(
        self, last: Compiled, attachments: Mapping[str, AttachPoint] | None = None
    ) -> Compiled:
        state = self._state
        present, jobs, held = state.flow_view()
        points = present if attachments is None else dict(attachments)
        question = (last, state.epoch, points, jobs, held)
        if self._foreseen is not None and _alike(question, self._foreseen[0]):
            return await asyncio.shield(self._foreseen[1])
        # In a thread: thousands of endpoints take long enough to keep others waiting.
        return await self._pool.run(self._compiler.next, *question)

    def foresee(self, target: Mapping[str, AttachPoint | None]) -> None:
        """Begin to compile what the intent will be when ``target`` has come true.

        While light moves there is nothing else to do. What is compiled is used by an ``install``
        that finds the intent to be exactly that, and by no other.
        """
        state = self._state
        points, jobs, held = state.flow_view()
        for endpoint, point in target.items():
            if point is None:
                points.pop(endpoint, None)
            else:
                points[endpoint] = point
        question = (self._compiled, state.epoch + 1, points, jobs, held - target.keys())
        answer = self._pool.run(self._compiler.next, *question)
        answer.add_done_callback(seen)
        self._foreseen = (question, answer)

    async def install(self, needed: frozenset[str] = frozenset()) -> None:
        """Bring all aggregators to the intent. ServiceError when one in ``needed`` is not there.

        An aggregator that is away gets its flows when it comes back.
        """
        self._state.require_command()
        async with self._installing:
            self._compiled = await self._compile(self._compiled)
            self._foreseen = None
            programs = self._sparing(self._compiled.programs)
            lacking = sorted(self._aggregators.lacking(programs))
            results = await asyncio.gather(
                *(
                    self._aggregators.install({name: programs[name]}, deadline_s=INSTALL_TIMEOUT_S)
                    for name in lacking
                ),
                return_exceptions=True,
            )
        for name, error in zip(lacking, results, strict=True):
            if isinstance(error, AggregatorError):
                if name in needed:
                    raise ServiceError(
                        "unavailable", str(error), object=f"aggregator/{name}", hint=error.hint
                    )
            elif isinstance(error, BaseException):
                raise error
