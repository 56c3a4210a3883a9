"""Controls Glimmerglass switches over TL1 (port 10034).

A duplex circuit is two pairs in one list, which the switch makes completely or not at all.
The state of the connection shows whether it carries light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ocs_driver.base import Pair
from ocs_driver.errors import OcsError
from ocs_driver.glimmerglass import rows
from ocs_driver.matrix import Identity
from ocs_driver.pairs import WirePair
from ocs_driver.tl1.linked import Tl1MatrixDriver
from ocs_driver.tl1.messages import Tl1Command
from ocs_driver.tl1.session import refusals


class GlimmerglassTl1Driver(Tl1MatrixDriver):
    """One Glimmerglass switch on one TL1 session."""

    default_port = 10034

    # -- reading -------------------------------------------------------------------------

    async def _identify(self) -> Identity:
        answer = await self._session.ask(Tl1Command("rtrv-system-info"))
        row, ports = rows.parse_system(answer.rows)
        return Identity(
            "Glimmerglass",
            row.get("LICENSEDPORTMATRIX"),
            row.need("SERIALNUMBER"),
            row.get("SOFTWAREACTIVEVERSION"),
            ports,
        )

    async def facts(self) -> Mapping[str, Any]:
        """Add the name and the type of the switch."""
        answer = await self._session.ask(Tl1Command("rtrv-system-info"))
        row, _ = rows.parse_system(answer.rows)
        platform = row.get("SYSTEMTYPE")
        return {**await super().facts(), "sid": self._session.sid, "platform": platform}

    async def _pairs(self) -> list[WirePair]:
        answer = await self._session.ask(Tl1Command("rtrv-crs-fiber", "all"))
        return rows.parse_circuits(answer.rows)

    async def _light(self) -> Mapping[str, float | None]:
        answer = await self._session.ask(Tl1Command("rtrv-port-power", "all"))
        return rows.parse_powers(answer.rows)[0]

    async def _leaves(self, port: str) -> bool:
        answer = await self._session.ask(Tl1Command("rtrv-port-power", port))
        return rows.parse_powers(answer.rows)[0].get(port) is not None

    async def _failed_ports(self) -> frozenset[str]:
        answer = await self._session.ask(Tl1Command("rtrv-port-power", "all"))
        return rows.parse_powers(answer.rows)[1]

    # -- changing ------------------------------------------------------------------------

    async def _connect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        lists = f"{'&'.join(p.a for p in pairs)},{'&'.join(p.b for p in pairs)}"
        return await self._bulk("ent-crs-fiber", lists, pairs, timeout_s)

    async def _disconnect(self, pairs: Sequence[Pair], timeout_s: float) -> list[OcsError | None]:
        lists = "&".join(p.a for p in pairs)
        return await self._bulk("dlt-crs-fiber", lists, pairs, timeout_s)

    async def _bulk(
        self, verb: str, lists: str, pairs: Sequence[Pair], timeout_s: float
    ) -> list[OcsError | None]:
        """Send one list; a refused list changes nothing, so its pairs are then sent one by one."""
        command = Tl1Command(verb, lists)
        (answer,) = await self._session.bulk([command], timeout_s)
        if answer.ok:
            return [None] * len(pairs)
        singles = [
            Tl1Command(verb, f"{p.a},{p.b}" if verb.startswith("ent") else p.a) for p in pairs
        ]
        answers = [answer] if len(pairs) == 1 else await self._session.bulk(singles, timeout_s)
        return refusals(singles, answers, self.name)
