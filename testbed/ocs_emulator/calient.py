"""Implements Calient's TL1 verbs on the optical model, with rows as on an S162 (software 6.0-3)."""

from __future__ import annotations

from testbed.ocs_emulator.model import Crosspoint, Fault, Mirrors, ModelError, OpticalModel
from testbed.ocs_emulator.switch import EmulatedSwitch
from testbed.ocs_emulator.tl1_text import Tl1Answer, Tl1Request, refusal

# The real error table is not public; these are the generic codes of GR-833.
_CODES = {
    Fault.NO_SUCH_PORT: "IIAC",
    Fault.SAME_PORT: "IDNV",
    Fault.BUSY: "SARB",
    Fault.NO_SUCH_CIRCUIT: "IDNV",
    Fault.ACTIVE: "SNVS",
    Fault.NOT_ACTIVE: "SNVS",
}
_CIRCUIT_STATE = {
    Mirrors.IDLE: "AS=UMA,OS=OOS,OC=INIT",
    Mirrors.TUNING: "AS=UMA,OS=RDY,OC=INIT",
    Mirrors.TUNED: "AS=UMA,OS=RDY,OC=OK",
    Mirrors.FAILED: "AS=UMA,OS=RDY,OC=FAIL",
}


class CalientDialect:
    """Handles the known verbs of a Calient S-series; ICNV for all others."""

    prompt = "agent>"
    login_comment = "NOTICE This is a private computer system. Unauthorized access is prohibited."
    greeting = b""
    rows_per_block = 0
    reports = True

    def __init__(self, switch: EmulatedSwitch) -> None:
        self._switch = switch
        self._model: OpticalModel = switch.model
        self.sid = self._model.personality.sid
        self._verbs = {
            "RTRV-NE": self._identify,
            "RTRV-PORT": self._ports,
            "RTRV-PORT-SUM": self._port_summary,
            "RTRV-CRS": self._circuits,
            "ENT-CRS": self._enter,
            "ACT-CRS": self._activate,
            "CANC-CRS": self._cancel,
            "DLT-CRS": self._delete,
        }

    def changes(self, request: Tl1Request) -> bool:
        """Whether a command changes circuits."""
        return request.verb.endswith("-CRS") and not request.verb.startswith("RTRV-")

    async def answer(self, request: Tl1Request, user: str) -> Tl1Answer:
        """Execute one command."""
        verb = self._verbs.get(request.verb)
        if verb is None:
            return refusal("ICNV", "Input, Command Not Valid")
        await self._switch.work(f"{request.verb} {request.aid}", changes=self.changes(request))
        try:
            answer = await verb(request)
        except ModelError as error:
            return refusal(_CODES[error.fault], str(error))
        if request.verb in ("ACT-CRS", "DLT-CRS"):
            self._switch.changed(request.block(0).partition(",")[0], user)
        return answer

    # -- reading -------------------------------------------------------------------

    async def _identify(self, request: Tl1Request) -> Tl1Answer:
        del request
        p = self._model.personality
        return Tl1Answer(
            (
                f"{p.sid}:SERIALNUMBER={p.serial},SWPACKAGE={p.firmware},STATUS=OK,"
                f"CHASSISTYPE={p.model},PLATFORM={p.platform}",
            )
        )

    async def _ports(self, request: Tl1Request) -> Tl1Answer:
        """List all ports for ``RTRV-PORT::0``, one port for any other AID."""
        if request.aid in ("", "0", "ALL"):
            return Tl1Answer(tuple(self._port(port) for port in self._model.personality.ports))
        return Tl1Answer((self._port(self._known(request.aid)),))

    async def _port_summary(self, request: Tl1Request) -> Tl1Answer:
        port = self._known(request.aid)
        circuits = self._model.on_port(port)
        fields = ["ALIAS=NONE", f"INPWR={self._power(port, self._model.power_in_dbm(port))}"]
        fields.append(f"OUTPWR={self._power(port, self._model.power_out_dbm(port))}")
        for number in (1, 2):
            circuit = circuits[number - 1] if number <= len(circuits) else None
            active = circuit is not None and circuit.ready_at is not None
            fields.append(f"CONNNAME{number}={circuit.name if circuit else 'NONE'}")
            fields.append(f"CONNSTATE{number}={'ACT' if active else 'NONE'}")
        return Tl1Answer((f"{port}:{','.join(fields)}",))

    async def _circuits(self, request: Tl1Request) -> Tl1Answer:
        """List all circuits for ``RTRV-CRS:::ctag::ALL``, some for ``::group,name``."""
        wanted = request.block(0)
        group, _, name = wanted.partition(",")
        chosen = [
            circuit
            for circuit in self._model.circuits.values()
            if wanted in ("", "ALL")
            or (group in ("", circuit.group) and name in ("", circuit.name))
        ]
        return Tl1Answer(tuple(self._circuit(circuit) for circuit in chosen))

    # -- changing --------------------------------------------------------------------

    async def _enter(self, request: Tl1Request) -> Tl1Answer:
        """Provision a circuit: ``ENT-CRS::src,dst:ctag::group,2WAY``."""
        a, comma, b = request.aid.partition(",")
        group, _, kind = request.block(0).partition(",")
        if not comma or not group or kind not in ("1WAY", "2WAY"):
            return refusal("IPNV", "Input, Parameter Not Valid")
        duplex = kind == "2WAY"
        name = f"{a}{'-' if duplex else '>'}{b}"
        self._model.enter(name, a, b, duplex=duplex, group=group)
        return Tl1Answer()

    async def _activate(self, request: Tl1Request) -> Tl1Answer:
        """Drive the mirrors: ``ACT-CRS::src,dst:ctag::name,group``."""
        self._model.activate(request.block(0).partition(",")[0], self._switch.now())
        return Tl1Answer()

    async def _cancel(self, request: Tl1Request) -> Tl1Answer:
        self._model.deactivate(request.block(0))
        await self._switch.refresh()
        return Tl1Answer()

    async def _delete(self, request: Tl1Request) -> Tl1Answer:
        self._model.delete(request.block(0))
        return Tl1Answer()

    # -- rows ------------------------------------------------------------------------

    def _known(self, port: str) -> str:
        if port not in self._model.ports:
            raise ModelError(Fault.NO_SUCH_PORT, port)
        return port

    def _power(self, port: str, dbm: float) -> str:
        read = self._model.light.reading(port, dbm, self._switch.now())
        return "NONE" if read <= self._model.personality.light.floor_dbm else f"{read:.1f}"

    def _circuit(self, circuit: Crosspoint) -> str:
        return (
            f"{circuit.name}:SRCPORT={circuit.a},DSTPORT={circuit.b},GRPNAME={circuit.group},"
            f"CONNNAME={circuit.name},CONNTYPE={'2WAY' if circuit.duplex else '1WAY'},"
            f"{_CIRCUIT_STATE[self._model.state(circuit)]},PS=UPR,AL={self._alarm(circuit)}"
        )

    def _alarm(self, circuit: Crosspoint) -> str:
        standing = self._switch.alarms.standing
        ports = (circuit.a, circuit.b)
        return next((standing[p].severity for p in ports if p in standing), "CL")

    def _port(self, port: str) -> str:
        circuits = self._model.on_port(port)
        sources = {source for c in circuits for source, _ in c.pairs()}
        owner = "TRANSIT" if circuits else "NONE"
        sides = []
        for side, used in (("IN", port in sources), ("OUT", self._receives(port, circuits))):
            admin, operation = ("IS", "IS") if used else ("OOS-NP", "OOS")
            state = "OK"
            if port in self._model.failed:
                operation, state = "OOS", "FAIL"
            elif any(self._model.state(c) is Mirrors.TUNING for c in circuits):
                state = "INIT"
            sides.append(f"{side}AS={admin},{side}OS={operation},{side}OC={state},{side}RS=NPR")
        return f"{port}:WX,{owner},{owner}:{','.join(sides)}"

    @staticmethod
    def _receives(port: str, circuits: list[Crosspoint]) -> bool:
        return any(sink == port for c in circuits for _, sink in c.pairs())
