"""Controls Polatis switches over SCPI (port 5025): no login, no power readings.

Writes get no reply, so ``:SYST:ERR?`` follows each write, and the result is read back. A pair
has no readable state, so ``*OPC?`` (IEEE 488.2) shows when mirrors have settled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ocs_driver.address import OcsAddress
from ocs_driver.base import GROUP, CircuitRequest, CircuitState, Pair
from ocs_driver.errors import OcsBadReply, OcsDenied, OcsError, OcsTimeout, OcsUnreachable
from ocs_driver.linked import LinkedDriver
from ocs_driver.matrix import Identity
from ocs_driver.pairs import WirePair
from ocs_driver.polatis.model import numbering
from ocs_driver.scpi.codec import channels, parse_channels, parse_error, parse_states
from ocs_driver.scpi.session import ScpiSession, ScpiTiming

_SWITCH = ":OXC:SWIT"
_SETTLE_ASK_S = 0.3
"""Timeout of one ``*OPC?`` query: longer than any bulk should take."""


class PolatisScpiDriver(LinkedDriver):
    """One Polatis switch on one SCPI connection."""

    default_port = 5025
    _session: ScpiSession

    def __init__(
        self, address: OcsAddress, *, group: str = GROUP, timing: ScpiTiming | None = None
    ) -> None:
        super().__init__(address, group)
        self._unsettled: set[Pair] = set()
        self._session = ScpiSession(
            address.host, self._port, timing=timing, turns=self._turns, on_link=self._on_link
        )

    @classmethod
    def from_address(
        cls, address: OcsAddress, password: str | None, group: str
    ) -> PolatisScpiDriver:
        """Build a driver for ``polatis+scpi://host:port``; SCPI has no users or passwords."""
        del password
        return cls(address, group=group)

    # -- reading -------------------------------------------------------------------------

    async def _identify(self) -> Identity:
        name, size = await self._session.ask(f"*IDN?;{_SWITCH}:SIZE?", 2)
        parts = [part.strip() for part in name.split(",")]
        if len(parts) < 4:
            raise OcsError("wrong_dialect", self.name, f"*IDN? returned {name[:60]!r}")
        return Identity(parts[0], parts[1], parts[2], parts[3], numbering(parts[1], size))

    async def _pairs(self) -> list[WirePair]:
        pairs = await self._read_pairs()
        if not self.changing:  # else this read may predate the circuits being made
            self._unsettled &= set(pairs)
            if self._unsettled:
                await self._ask_settled()
        # Read the port states last: a port without light fails after its mirror has settled.
        failed = await self._failed_among(sorted({p for q in pairs for p in (q.a, q.b)}, key=int))
        return [self._state(pair, failed) for pair in pairs]

    async def _read_pairs(self, timeout_s: float | None = None) -> list[Pair]:
        (state,) = await self._session.ask(f"{_SWITCH}:CONN:STAT?", 1, timeout_s)
        lists = parse_channels(state)
        if len(lists) != 2 or len(lists[0]) != len(lists[1]):
            raise OcsBadReply(self.name, f"CONNect:STATe? returned {state[:60]!r}")
        return [Pair(a, b) for a, b in zip(*lists, strict=True)]

    def _state(self, pair: Pair, failed: frozenset[str]) -> WirePair:
        broken = sorted(failed & {pair.a, pair.b}, key=int)
        if broken:
            return WirePair(pair, CircuitState.FAILED, f"port {broken[0]} has failed")
        if pair in self._unsettled:
            return WirePair(pair, CircuitState.TUNING, "no response to *OPC? yet")
        return WirePair(pair)

    async def _may_be_lit(self, request: CircuitRequest) -> bool:
        """Wait for the mirrors with ``*OPC?`` instead of polling."""
        del request
        await self._ask_settled()
        return not self._unsettled

    async def _ask_settled(self) -> None:
        asked = set(self._unsettled)
        try:
            (settled,) = await self._session.send("*OPC?", 1, _SETTLE_ASK_S)
        except (OcsTimeout, OcsUnreachable):
            return
        if settled.strip() != "1":
            raise OcsBadReply(self.name, f"*OPC? returned {settled[:60]!r}, not 1")
        self._unsettled -= asked

    async def _failed_ports(self) -> frozenset[str]:
        return await self._failed_among((await self.identity()).ports.all)

    async def _failed_among(self, ports: Sequence[str]) -> frozenset[str]:
        if not ports:
            return frozenset()
        (answer,) = await self._session.ask(f"{_SWITCH}:PORT:STAT? {channels(ports)}")
        states = parse_states(answer, len(ports))
        return frozenset(p for p, s in zip(ports, states, strict=True) if s == "F")

    async def _light(self) -> Mapping[str, float | None]:
        return {}

    # -- changing ------------------------------------------------------------------------

    async def _connect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        self._unsettled.update(pairs)
        return await self._write("ADD", pairs, timeout_s, present=True)

    async def _disconnect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        return await self._write("SUB", pairs, timeout_s, present=False)

    async def _write(
        self, verb: str, pairs: Sequence[Pair], timeout_s: float, *, present: bool
    ) -> list[OcsError | None]:
        """Write all pairs at once; if the switch reports an error, write them one by one."""
        error = await self._write_some(verb, pairs, timeout_s)
        if error is None:
            return [None] * len(pairs)
        there = set(await self._read_pairs(timeout_s))
        results: list[OcsError | None] = []
        for pair in pairs:
            done = (pair in there) is present
            results.append(
                None
                if done
                else error
                if len(pairs) == 1
                else await self._write_some(verb, [pair], timeout_s)
            )
        return results

    async def _write_some(
        self, verb: str, pairs: Sequence[Pair], timeout_s: float
    ) -> OcsError | None:
        lists = f"{channels(p.a for p in pairs)},{channels(p.b for p in pairs)}"
        line = f"*CLS;{_SWITCH}:CONN:{verb} {lists};:SYST:ERR?"
        (reply,) = await self._session.send(line, 1, timeout_s)
        code, text = parse_error(reply)
        return OcsDenied(str(code), self.name, text) if code else None
