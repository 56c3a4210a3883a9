"""Implements Glimmerglass TL1 verbs on the optical model, with rows as in a 2016 transcript."""

from __future__ import annotations

from testbed.ocs_emulator.faults import Firmware
from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.matrix_dialect import MatrixDialect
from testbed.ocs_emulator.model import Crosspoint, Fault, Mirrors, ModelError
from testbed.ocs_emulator.tl1_text import Tl1Answer, Tl1Request, refusal

_STATE = {
    Mirrors.IDLE: "CONNSTATE=single,CONNCAUSE=none",
    Mirrors.TUNING: "CONNSTATE=single,CONNCAUSE=none",
    Mirrors.TUNED: "CONNSTATE=steady,CONNCAUSE=none",
    Mirrors.FAILED: "CONNSTATE=fault,CONNCAUSE=initial_connection_timer_expired",
}
_BAND_NM = 1550


class GlimmerglassDialect(MatrixDialect):
    """Handles the verbs of public drivers and transcripts; ICNV for all others."""

    prompt = "\n;\r\n"
    login_comment = "Glimmerglass intelligent optical switch"
    greeting = b"\x1b[2J\x1b[H\x1b[0m"
    """The real switch sends escape sequences for about 10 ms after the connection is made."""
    rows_per_block = 10
    changing = frozenset({"ENT-CRS-FIBER", "DLT-CRS-FIBER"})

    def __init__(self, matrix: MatrixSwitch) -> None:
        super().__init__(matrix)
        self._verbs = {
            "RTRV-SYSTEM-INFO": self._system,
            "RTRV-CRS-FIBER": self._circuits,
            "RTRV-PORT-POWER": self._power,
            "ENT-CRS-FIBER": self._enter,
            "DLT-CRS-FIBER": self._delete,
        }

    async def _system(self, request: Tl1Request, user: str) -> Tl1Answer:
        del request, user
        p = self._personality
        return Tl1Answer(
            (
                f"{p.sid}:SerialNumber={p.serial},SystemType={p.platform},"
                f"LicensedPortMatrix={self._matrix.size},SoftwareActiveVersion={p.firmware}",
            )
        )

    async def _circuits(self, request: Tl1Request, user: str) -> Tl1Answer:
        del user
        chosen = None if request.aid.lower() in ("", "all") else request.aid.split("&")
        rows = [
            self._row(number, circuit)
            for number, circuit in enumerate(self._matrix.circuits())
            if chosen is None or circuit.a in chosen
        ]
        return Tl1Answer(tuple(rows))

    async def _power(self, request: Tl1Request, user: str) -> Tl1Answer:
        del user
        every = request.aid.lower() in ("", "all")
        ports = self._personality.ports if every else tuple(request.aid.split("&"))
        for port in ports:
            if port not in self._matrix.model.ports:
                raise ModelError(Fault.NO_SUCH_PORT, port)
        failed = self._matrix.model.failed
        return Tl1Answer(
            tuple(
                f"{self.sid}:PORTID={port},PORTPOWER={self._matrix.reading(port):.2f},"
                f"PORTHEALTH={'bad' if port in failed else 'good'}"
                for port in ports
            )
        )

    async def _enter(self, request: Tl1Request, user: str) -> Tl1Answer:
        """Connect inputs to outputs in order, all or none: ``10001&10004,20004&20001``."""
        inputs, comma, outputs = request.aid.partition(",")
        sources, sinks = inputs.split("&"), outputs.split("&")
        if not comma or len(sources) != len(sinks):
            return refusal("IDNV", "Input, Data Not Valid")
        self._matrix.connect(list(zip(sources, sinks, strict=True)), user)
        return Tl1Answer()

    async def _delete(self, request: Tl1Request, user: str) -> Tl1Answer:
        await self._matrix.disconnect(request.aid.split("&"), user)
        return Tl1Answer()

    def _row(self, number: int, circuit: Crosspoint) -> str:
        a, b = circuit.a, circuit.b
        model, floor = self._matrix.model, self._personality.light.floor_dbm
        before, after = self._matrix.reading(a), self._matrix.reading(b)
        loss = f"{before - after:.2f}" if after > floor else ""
        name_in = f"IN{int(a) % 10000}"
        # The row of 2005 had 12 fields, the one of 2016 has 18.
        old = self._matrix.switch.faults.firmware is Firmware.OLD
        port_in = f"IPORTGROUP=OpenGroup,IPORTNAME={name_in},IPORTCOMMENT=,"
        port_out = f"OPORTGROUP=OpenGroup,OPORTNAME=OUT{int(b) % 10000},OPORTCOMMENT=,"
        return (
            f"{self.sid}:IPORTID={a},{'' if old else port_in}INPWR={before:.2f},"
            f"OPORTID={b},{'' if old else port_out}OUTPWR={after:.2f},SIGBAND={_BAND_NM},"
            f"PWRLOSS={loss},CONNID={number},CONNNAME={name_in},"
            f"{_STATE[model.state(circuit)]},CONNLOCK=0,CONNLOCKUSER=admin"
        )
