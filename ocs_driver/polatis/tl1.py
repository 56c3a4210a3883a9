"""Controls Polatis switches over TL1 (port 3082): ENT-PATCH, DLT-PATCH, RTRV-PATCH.

Port numbers and verbs follow public drivers; a patch is written with the lower number
first. The power monitors, if present, show whether a circuit carries light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ocs_driver.base import Pair
from ocs_driver.errors import OcsDenied, OcsError
from ocs_driver.light import lit
from ocs_driver.matrix import Identity
from ocs_driver.pairs import WirePair
from ocs_driver.polatis.rows import parse_patch, parse_power, parse_serial, parse_type
from ocs_driver.ports import parse_size
from ocs_driver.tl1.linked import Tl1MatrixDriver
from ocs_driver.tl1.messages import Response, Tl1Command
from ocs_driver.tl1.session import accept_list, refusals

_NOT_SUPPORTED = frozenset({"ICNV", "IICM", "ENEQ", "SNVS"})
"""Error codes of a switch without power monitors when they are read."""


class PolatisTl1Driver(Tl1MatrixDriver):
    """One Polatis switch on one TL1 session."""

    default_port = 3082
    tail = ":"
    _measures = True
    """False once the switch reports that it has no power monitors."""

    # -- reading -------------------------------------------------------------------------

    async def _identify(self) -> Identity:
        kind = await self._session.ask(self._command("RTRV-NETYPE"))
        stock = await self._session.ask(self._command("RTRV-INV", "OCS"))
        size = await self._session.ask(self._command("RTRV-EQPT", "SYSTEM", ":::PARAMETER=SIZE"))
        vendor, model, firmware = parse_type(kind.rows)
        return Identity(
            vendor,
            model,
            parse_serial(stock.rows),
            firmware,
            parse_size((size.rows or ("",))[0].partition("SIZE=")[2]),
        )

    async def facts(self) -> Mapping[str, Any]:
        """Add the name and the type of the switch."""
        kind = await self._session.ask(self._command("RTRV-NETYPE"))
        platform = (kind.rows or (",,",))[0].split(",")[2]
        return {**await super().facts(), "sid": self._session.sid, "platform": platform}

    async def _pairs(self) -> list[WirePair]:
        patches = self._command("RTRV-PATCH")
        if not self._measures:
            answer = await self._session.ask(patches)
            return [WirePair(pair) for pair in parse_patch(answer.rows)]
        answer, power = await self._session.read_bulk([patches, self._power_command()])
        found = parse_patch(accept_list(patches, answer, self.name).rows)
        light = self._powers(power)
        return [self._judge_light(pair, light) for pair in found]

    async def _light(self) -> Mapping[str, float | None]:
        if not self._measures:
            return {}
        (answer,) = await self._session.read_bulk([self._power_command()])
        return self._powers(answer)

    async def _leaves(self, port: str) -> bool:
        if not self._measures:
            return True
        (answer,) = await self._session.read_bulk([self._command("RTRV-PORT-POWER", port)])
        return self._powers(answer).get(port) is not None

    def _powers(self, answer: Response) -> Mapping[str, float | None]:
        if not answer.ok:
            if answer.code in _NOT_SUPPORTED:
                self._measures = False
                return {}
            raise OcsDenied(answer.code, self.name, f"port powers: {answer.reason}")
        rows = accept_list(self._power_command(), answer, self.name).rows
        return {port: lit(dbm) for port, dbm in parse_power(rows).items()}

    def _power_command(self) -> Tl1Command:
        if self._identity is None:
            raise OcsError("not_connected", self.name, "connect first")
        ports = self._identity.ports.all
        return self._command("RTRV-PORT-POWER", f"{ports[0]}&&{ports[-1]}")

    # -- changing ------------------------------------------------------------------------

    async def _connect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        return await self._bulk(
            [self._command("ENT-PATCH", ",".join(_ordered(pair))) for pair in pairs], timeout_s
        )

    async def _disconnect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        """Send one list; if it is refused, read the pairs and send the rest one by one."""
        ports = [_ordered(pair)[0] for pair in pairs]
        (error,) = await self._bulk([self._command("DLT-PATCH", "&".join(ports))], timeout_s)
        if error is None or len(pairs) == 1:
            return [error] * len(pairs)
        there = {wire.pair for wire in await self._pairs()}
        left = [port for port, pair in zip(ports, pairs, strict=True) if pair in there]
        refused = await self._bulk([self._command("DLT-PATCH", p) for p in left], timeout_s)
        errors = dict(zip(left, refused, strict=True))
        return [errors.get(port) for port in ports]

    async def _bulk(
        self, commands: Sequence[Tl1Command], timeout_s: float
    ) -> list[OcsError | None]:
        return refusals(commands, await self._session.bulk(commands, timeout_s), self.name)

    def _command(self, verb: str, aid: str = "", tail: str = ":") -> Tl1Command:
        sid = self._session.sid
        # An unnamed switch reports its name as "( nil )": then the target stays blank.
        known = sid and "nil" not in sid.lower() and '"' not in sid
        return Tl1Command(verb, aid, tail, tid=f'"{sid}"' if known else "")


def _ordered(pair: Pair) -> tuple[str, str]:
    first, second = sorted((pair.a, pair.b), key=int)
    return first, second
