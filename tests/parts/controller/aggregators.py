"""Aggregators in memory: they answer a probe only where light leads and a program admits it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    Callable,
    Mapping,
)

from controller.devices.aggregators import AggregatorError, AggregatorEvent, AttachPoint
from controller.devices.counters import PortBlock, PortCounters
from controller.devices.openflow.rules.program import FlowProgram
from controller.devices.openflow.rules.rule import ToController
from controller.devices.profile import Profile
from controller.transaction.circuits import End, of_endpoints, recognise
from sitefile import CabledSite
from tests.parts.controller.engine import FakeEngine
from tests.parts.controller.switch import FakeOcs


class FakeAggregators:
    """All aggregators of a site, cabled to the fake optical switches and the fake engine."""

    def __init__(
        self,
        site: CabledSite,
        switches: Mapping[str, FakeOcs],
        post: Callable[[AggregatorEvent], None],
    ) -> None:
        self._site = site
        self._switches = switches
        self.post = post
        self.engine: FakeEngine | None = None
        self.away: set[str] = set()
        self.edited: dict[str, list[str]] = {}
        """Foreign changes of the tables, until the next install."""
        self.programs: dict[str, FlowProgram] = {}
        self.history: list[Mapping[str, FlowProgram]] = []
        self.counters: dict[AttachPoint, int] = {}
        self.sent: Callable[[AttachPoint], int] = lambda point: 0
        """Frames that a port has transmitted."""
        self.profiles: dict[str, Profile] = {}
        """What a probe finds, where it is not the same as of all."""
        self.reads: Counter[str] = Counter()
        self.probes: list[AttachPoint] = []

    async def start(self) -> tuple[str, int]:
        raise AssertionError("nothing listens here")

    async def stop(self) -> None: ...

    def connected(self) -> frozenset[str]:
        return frozenset(a.name for a in self._site.aggregators) - self.away

    def carrier(self, as_name: str) -> Mapping[int, bool]:
        lit = self._recognised(lambda ocs: ocs.carrying())
        ends = lit.keys() | lit.values()
        cable = self._site.aggregator(as_name)
        return {port: AttachPoint(as_name, port) in ends for port in cable.fibers}

    def light(self) -> dict[str, AttachPoint]:
        """Return the port to which every endpoint's light leads."""
        return of_endpoints(self._circuits())

    def _circuits(self) -> dict[End, AttachPoint]:
        return self._recognised(lambda ocs: ocs.lit())

    def _recognised(
        self, pairs: Callable[[FakeOcs], list[tuple[str, str]]]
    ) -> dict[End, AttachPoint]:
        found: dict[End, AttachPoint] = {}
        for name, ocs in self._switches.items():
            found.update(recognise(self._site, name, pairs(ocs)).circuits)
        return found

    def lacking(self, programs: Mapping[str, FlowProgram]) -> frozenset[str]:
        held = self.programs
        wrong = self.away | self.edited.keys()
        return frozenset(n for n, p in programs.items() if held.get(n) is not p or n in wrong)

    async def install(self, programs: Mapping[str, FlowProgram], *, deadline_s: float) -> None:
        for name, program in programs.items():
            if name in self.away:
                raise AggregatorError("unavailable", name, "no session", "wait")
            self.programs[name] = program
            self.edited.pop(name, None)
        self.history.append(dict(self.programs))

    async def probe(
        self, as_name: str, port: int, ip: str, mac: str, *, deadline_s: float
    ) -> float | None:
        if as_name in self.away:
            raise AggregatorError("unavailable", as_name, "no session", "wait")
        point = AttachPoint(as_name, port)
        self.probes.append(point)
        endpoint = next(e for e in self._site.endpoints if e.ip == ip)
        assert self.engine is not None
        answers = (
            self.light().get(endpoint.name) == point
            and self.engine.holds(endpoint.name)
            and self.admits_probe(point, ip)
        )
        if not answers:
            await asyncio.sleep(deadline_s)
            return None
        return 0.001

    def admits_probe(self, point: AttachPoint, ip: str) -> bool:
        return any(
            ToController() in rule.actions
            and ("in_port", point.port) in rule.match
            and ("arp_spa", ip) in rule.match
            for rule in self.programs[point.aggregator].rules
        )

    async def audit(self, as_name: str) -> list[str]:
        if as_name in self.away:
            raise AggregatorError("unavailable", as_name, "no session", "wait")
        return list(self.edited.get(as_name, ()))

    async def profile(self, as_name: str) -> Profile:
        if as_name in self.away:
            raise AggregatorError("unavailable", as_name, "no session", "wait")
        return self.profiles.get(as_name, Profile(hardware="fake", metadata_bits=64))

    async def port_counters(self, as_name: str) -> PortBlock:
        if as_name in self.away:
            raise AggregatorError("unavailable", as_name, "no session", "wait")
        self.reads[as_name] += 1
        counters = {
            port: PortCounters(
                rx_bytes=(count := self.counters.get(AttachPoint(as_name, port), 0)),
                tx_bytes=2 * count,
                rx_packets=0,
                tx_packets=self.sent(AttachPoint(as_name, port)),
                duration_s=float(self.reads[as_name]),
            )
            for port in self._site.aggregator(as_name).fibers
        }
        return PortBlock.made(counters)
