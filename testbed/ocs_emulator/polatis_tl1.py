"""Implements Polatis TL1 verbs on the optical model: patches are pairs of port numbers."""

from __future__ import annotations

from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.matrix_dialect import MatrixDialect
from testbed.ocs_emulator.model import Fault, ModelError
from testbed.ocs_emulator.tl1_text import Tl1Answer, Tl1Request, refusal

_WAVELENGTH_NM = 1550.0


class PolatisTl1Dialect(MatrixDialect):
    """Handles the verbs of public drivers of Polatis switches; ICNV for all others."""

    prompt = ""
    login_comment = "Polatis network interface"
    greeting = b""
    rows_per_block = 0
    changing = frozenset({"ENT-PATCH", "DLT-PATCH"})

    def __init__(self, matrix: MatrixSwitch) -> None:
        super().__init__(matrix)
        self._verbs = {
            "RTRV-NETYPE": self._type,
            "RTRV-INV": self._inventory,
            "RTRV-EQPT": self._equipment,
            "ED-EQPT": self._edit,
            "RTRV-PATCH": self._patches,
            "ENT-PATCH": self._enter,
            "DLT-PATCH": self._delete,
            "RTRV-PORT-POWER": self._power,
            "RTRV-PORT-PMON": self._monitors,
            "RTRV-PORT-LABEL": self._labels,
        }

    # -- reading -------------------------------------------------------------------

    async def _type(self, request: Tl1Request, user: str) -> Tl1Answer:
        del request, user
        p = self._personality
        return Tl1Answer((f"{p.vendor},{p.model},{p.platform},{p.firmware}",))

    async def _inventory(self, request: Tl1Request, user: str) -> Tl1Answer:
        del request, user
        p = self._personality
        return Tl1Answer((f"OCS:TYPE={p.platform},SN={p.serial},HWVER=1,SWVER={p.firmware}",))

    async def _equipment(self, request: Tl1Request, user: str) -> Tl1Answer:
        del user
        match request.aid.upper(), request.block(1).upper():
            case "SYSTEM", "PARAMETER=SIZE":
                return Tl1Answer((f"SYSTEM:SIZE={self._matrix.size}",))
            case "PMON", "PARAMETER=CONFIG":
                ports = self._personality.ports
                return Tl1Answer(tuple(f"PMON::PORT={port},MODE=OUTPUT" for port in ports))
            case _:
                return refusal("IPNV", "Input, Parameter Not Valid")

    async def _edit(self, request: Tl1Request, user: str) -> Tl1Answer:
        """Set the idle time of sessions in seconds: ``ED-EQPT::TIMEOUT:ctag:::ADMIN=<n>``."""
        del user
        _, _, value = request.block(1).partition("=")
        if request.aid.upper() != "TIMEOUT" or not value.isdigit():
            return refusal("IPNV", "Input, Parameter Not Valid")
        self._matrix.switch.faults.idle_logout_s = float(value)
        return Tl1Answer()

    async def _patches(self, request: Tl1Request, user: str) -> Tl1Answer:
        del user
        chosen = None if request.aid in ("", "ALL") else set(self._ports(request.aid))
        pairs = self._matrix.pairs()
        return Tl1Answer(
            tuple(f"{a},{b}" for a, b in pairs if chosen is None or a in chosen or b in chosen)
        )

    async def _power(self, request: Tl1Request, user: str) -> Tl1Answer:
        del user
        return Tl1Answer(
            tuple(f"{p}:{self._matrix.reading(p):.2f}" for p in self._ports(request.aid))
        )

    async def _monitors(self, request: Tl1Request, user: str) -> Tl1Answer:
        del user
        return Tl1Answer(tuple(f"{p}:{_WAVELENGTH_NM:.1f},0.0,5" for p in self._ports(request.aid)))

    async def _labels(self, request: Tl1Request, user: str) -> Tl1Answer:
        del user
        return Tl1Answer(tuple(f'{p}:\\"\\"' for p in self._ports(request.aid)))

    # -- changing --------------------------------------------------------------------

    async def _enter(self, request: Tl1Request, user: str) -> Tl1Answer:
        """Make a patch: ``ENT-PATCH::lower,higher:ctag:``; the lower number comes first."""
        a, comma, b = request.aid.partition(",")
        if not comma or not a.isdigit() or not b.isdigit() or int(a) >= int(b):
            return refusal("IDNV", "Input, Data Not Valid")
        self._matrix.connect([(a, b)], user)
        return Tl1Answer()

    async def _delete(self, request: Tl1Request, user: str) -> Tl1Answer:
        """Remove patches: ``DLT-PATCH::port&port:ctag:`` or ``DLT-PATCH::ALL``."""
        if request.aid.upper() == "ALL":
            await self._matrix.clear(user)
        else:
            await self._matrix.disconnect(self._ports(request.aid), user)
        return Tl1Answer()

    def _ports(self, aid: str) -> list[str]:
        """Parse ``1&3`` and ``1&&48``. Raises ModelError for unknown ports."""
        chosen: list[str] = []
        for part in aid.replace("&&", "-").split("&"):
            first, dash, last = part.partition("-")
            if dash and first.isdigit() and last.isdigit():
                chosen += [str(n) for n in range(int(first), min(int(last), 99999) + 1)]
            else:
                chosen.append(first)
        for port in chosen:
            if port not in self._matrix.model.ports:
                raise ModelError(Fault.NO_SUCH_PORT, port or "nothing")
        return chosen
