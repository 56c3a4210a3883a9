"""Controls Calient S-series switches over TL1 (port 3082 raw, 3083 with prompt).

Making a circuit takes two commands, ENT-CRS to provision and ACT-CRS to drive the
mirrors; removing one takes CANC-CRS and DLT-CRS. The group name marks own circuits.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from base import clock
from base.addresses import join_address
from ocs_driver.address import OcsAddress
from ocs_driver.base import (
    GROUP,
    Alarm,
    Capabilities,
    Circuit,
    CircuitMap,
    CircuitRequest,
    CircuitState,
    EventKind,
    OcsEvent,
    PortHealth,
    PortInfo,
    PortPower,
)
from ocs_driver.calient import rows
from ocs_driver.converge import ConvergingDriver
from ocs_driver.errors import OcsBadReply, OcsConflict, OcsDenied, OcsError, wrong_dialect
from ocs_driver.events import EventFeed
from ocs_driver.light import finite
from ocs_driver.ports import MOST_PORTS
from ocs_driver.profile import SwitchProfile
from ocs_driver.tl1.fields import ReplyRow, parse_row
from ocs_driver.tl1.messages import Response, Tl1Command, Tl1Report
from ocs_driver.tl1.session import Login, Tl1Session, Tl1Timing, accept_list, refusals

_T = TypeVar("_T")

_INVENTORY_S = 120.0
"""Timeout of RTRV-PORT for all ports, which took about 60 s on older chassis."""
_STRIDE = 16
"""Circuits entered or cancelled at a time; their mirrors move while the next are sent."""
_PORT = re.compile(r"[A-Za-z0-9]+(\.[A-Za-z0-9]+)+\Z")
_GROUP = re.compile(r"[A-Za-z0-9_.\-]+\Z")
_NAME = re.compile(r"[^\s:;,&\"]+\Z")

_PROFILE = SwitchProfile(switch_time_s=0.05, bulk_time_s=0.2)
"""Bulk time from the S320 hardware guide p. 44, if the controller resolves conflicts."""


class CalientTl1Driver(ConvergingDriver):
    """One Calient switch on one TL1 session."""

    default_port: ClassVar[int] = 3082

    def __init__(
        self,
        host: str,
        port: int,
        login: Login,
        *,
        group: str = GROUP,
        timing: Tl1Timing | None = None,
        profile: SwitchProfile | None = None,
    ) -> None:
        super().__init__(join_address(host, port), group)
        if not _GROUP.match(group):
            raise OcsError("bad_group", group, "use letters, digits, '_', '.' and '-'")
        self._feed = EventFeed()
        self._user = login.user
        self._profile = profile or _PROFILE
        self._session = Tl1Session(
            host,
            port,
            login,
            timing=timing,
            turns=self._turns,
            on_report=self._on_report,
            on_link=self._on_link,
        )

    @classmethod
    def from_address(
        cls, address: OcsAddress, password: str | None, group: str
    ) -> CalientTl1Driver:
        """Build a driver for ``calient+tl1://user@host:port``. Raises OcsLogin without login."""
        login = Login.of(address, password)
        return cls(
            address.host,
            address.port or cls.default_port,
            login,
            group=group,
            profile=address.profile(_PROFILE),
        )

    # -- session -------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the session. Raises OcsUnreachable or OcsLogin on failure."""
        await self._session.open()
        try:
            await self._session.ask(Tl1Command("RTRV-NE"))
        except OcsDenied as error:
            await self._session.close()
            raise wrong_dialect(self.name, error) from None

    async def close(self) -> None:
        """Log out and close; circuits stay as they are."""
        await self._session.close()
        self._feed.close()

    def subscribe(self) -> AsyncIterator[OcsEvent]:
        """Yield the switch's reports and session state changes from now on."""
        return self._feed.subscribe()

    def _on_report(self, report: Tl1Report) -> None:
        kind = EventKind.REPORT
        if report.verb.startswith("REPT ALM"):
            kind = EventKind.CLEAR if report.severity == "none" else EventKind.ALARM
        elif report.verb.startswith("REPT DBCHG"):
            kind = EventKind.CIRCUIT
        for text in report.rows or ("",):
            row = parse_row(text)
            if kind is EventKind.CIRCUIT and row.get("USER") == self._user:
                continue
            said = " ".join((report.verb, text, *report.comments, *report.text)).strip()
            self._feed.publish(OcsEvent(kind, row.aid, report.severity, said))

    def _on_link(self, up: bool) -> None:
        self._feed.link(self.name, up=up)

    # -- reading -------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        """Return the RTRV-NE facts, completed by the known behaviour of the series."""
        row = await self._element()
        return Capabilities(
            vendor="Calient",
            model=row.get("CHASSISTYPE"),
            serial=row.need("SERIALNUMBER"),
            firmware=row.get("SWPACKAGE"),
            duplex=True,
            stores_owner=True,
            stores_name=False,
            busy_port=self._profile.busy_port,
            switch_time_s=self._profile.switch_time_s,
            bulk_time_s=self._profile.bulk_time_s,
        )

    async def facts(self) -> Mapping[str, Any]:
        """Return name and platform, and the grid of the ports."""
        row = await self._element()
        shape = rows.grid([port.aid for port in await self._ports()])
        return {"sid": row.aid, "platform": row.get("PLATFORM"), "ports": shape}

    async def inventory(self) -> tuple[PortInfo, ...]:
        """Return all ports with label and light."""
        ports = await self._ports()
        summaries = await self._summaries([row.aid for row in ports])
        return tuple(
            PortInfo(
                row.aid,
                rows.health(row),
                rows.label(summary),
                finite(summary.get("INPWR")),
                finite(summary.get("OUTPWR")),
            )
            for row, summary in zip(ports, summaries, strict=True)
        )

    async def read(self) -> CircuitMap:
        """Return the circuits as RTRV-CRS lists them."""
        answer = await self._session.ask(Tl1Command("RTRV-CRS", tail="::ALL"))
        return CircuitMap(rows.circuits(answer.rows), clock.time())

    async def power(self, ports: Sequence[str]) -> tuple[PortPower, ...]:
        """Return the light on the given ports (RTRV-PORT-SUM)."""
        summaries = await self._summaries([_port(port) for port in ports])
        return tuple(
            PortPower(port, finite(row.get("INPWR")), finite(row.get("OUTPWR")))
            for port, row in zip(ports, summaries, strict=True)
        )

    async def alarms(self) -> tuple[Alarm, ...]:
        """Return failed ports, failed circuits and circuits with an active alarm."""
        failed = [
            Alarm(row.aid, "critical", "the port has failed")
            for row in await self._ports()
            if rows.health(row) is PortHealth.FAILED
        ]
        answer = await self._session.ask(Tl1Command("RTRV-CRS", tail="::ALL"))
        for row in map(parse_row, answer.rows):
            circuit = rows.circuit(row)
            alarm = row.get("AL", "CL")
            if circuit.state is CircuitState.FAILED:
                failed.append(Alarm(circuit.name, "major", f"no light ({circuit.detail})"))
            elif alarm != "CL":
                severity = {"CR": "critical", "MJ": "major"}.get(alarm, "minor")
                failed.append(Alarm(circuit.name, severity, circuit.detail))
        return tuple(failed)

    async def _element(self) -> ReplyRow:
        """Read the switch's own description."""
        answer = await self._session.ask(Tl1Command("RTRV-NE"))
        return parse_row(_one(answer, self.name))

    async def _ports(self) -> list[ReplyRow]:
        """Read all ports. Each is later read by name, so their number is bounded."""
        answer = await self._session.ask(Tl1Command("RTRV-PORT", aid="0"), _INVENTORY_S)
        ports = [row for row in map(parse_row, answer.rows) if _PORT.match(row.aid)]
        if not ports:
            raise OcsBadReply(self.name, "the list of ports has no port")
        if len(ports) > MOST_PORTS:
            raise OcsBadReply(self.name, f"{len(ports)} ports: too many for a switch")
        return ports

    async def _summaries(self, ports: Sequence[str]) -> list[ReplyRow]:
        commands = [Tl1Command("RTRV-PORT-SUM", aid=port) for port in ports]
        answers = await self._session.read_bulk(commands, _INVENTORY_S)
        found = []
        for command, answer in zip(commands, answers, strict=True):
            at = f"{self.name}/{command.aid}"
            row = parse_row(_one(accept_list(command, answer, at), at))
            row.need("INPWR"), row.need("OUTPWR")
            found.append(row)
        return found

    async def _may_be_lit(self, request: CircuitRequest) -> bool:
        (summary,) = await self._summaries([request.b])
        return finite(summary.get("OUTPWR")) is not None

    # -- changing --------------------------------------------------------------------

    def _validate(self, requests: Sequence[CircuitRequest]) -> None:
        for request in requests:
            if _port(request.a) == _port(request.b):
                raise OcsConflict("same_port", request.a, "a circuit needs two different ports")

    async def _delete_bulk(
        self, circuits: Sequence[Circuit], timeout_s: float
    ) -> list[OcsError | None]:
        errors: list[OcsError | None] = []
        cancelled: Sequence[Circuit] = ()
        for some in _strides(circuits):
            active = [c for c in some if c.state is not CircuitState.PROVISIONED]
            cancel = [_by_name("CANC-CRS", c.name) for c in active]
            delete = [_by_name("DLT-CRS", c.name) for c in cancelled]
            answers = await self._session.bulk([*delete, *cancel], timeout_s)
            # DLT-CRS decides about a refused cancel: an active circuit cannot be deleted.
            errors += refusals(delete, answers[: len(delete)], self.name)
            cancelled = some
        return errors

    async def _make_bulk(
        self, requests: Sequence[CircuitRequest], timeout_s: float
    ) -> list[OcsError | None]:
        """Enter circuits while earlier ones are driven, so that mirrors do not wait."""
        errors: list[OcsError | None] = []
        entered: list[tuple[int, CircuitRequest]] = []
        half_made: list[Tl1Command] = []
        for some in _strides(requests):
            activate = [self._activate(request) for _, request in entered]
            enter = [self._enter(request) for request in some]
            answers = await self._session.bulk([*activate, *enter], timeout_s)
            refused = refusals([*activate, *enter], answers, self.name)
            for (i, request), error in zip(entered, refused, strict=False):
                errors[i] = error
                if error is not None:
                    half_made.append(_by_name("DLT-CRS", _connection_name(request)))
            fresh = refused[len(activate) :]
            entered = [
                (len(errors) + i, request)
                for i, (request, error) in enumerate(zip(some, fresh, strict=True))
                if error is None
            ]
            errors += fresh
        if half_made:
            # Provisioned but not activated: it would hold both ports without light.
            await self._session.bulk(half_made, timeout_s)
        return errors

    def _enter(self, request: CircuitRequest) -> Tl1Command:
        kind = "2WAY" if request.duplex else "1WAY"
        ports = f"{request.a},{request.b}"
        return Tl1Command("ENT-CRS", aid=ports, tail=f"::{self.group},{kind}")

    def _activate(self, request: CircuitRequest) -> Tl1Command:
        ports = f"{request.a},{request.b}"
        return Tl1Command("ACT-CRS", aid=ports, tail=f"::{_connection_name(request)},{self.group}")


def _strides(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Split a bulk into parts plus an empty one: the second half of a part goes with the next."""
    yield from (items[i : i + _STRIDE] for i in range(0, len(items), _STRIDE))
    yield ()


def _connection_name(request: CircuitRequest) -> str:
    """Return the switch's name of a circuit: ``src-dst`` for 2WAY, ``src>dst`` for 1WAY."""
    return f"{request.a}{'-' if request.duplex else '>'}{request.b}"


def _one(answer: Response, name: str) -> str:
    """Return the row of a read that has at least one. Raises OcsBadReply without any."""
    if not answer.rows:
        raise OcsBadReply(name, "the reply has no row")
    return answer.rows[0]


def _by_name(verb: str, name: str) -> Tl1Command:
    if not _NAME.match(name):
        raise OcsError("bad_name", name, "the circuit's name cannot be written in TL1")
    return Tl1Command(verb, tail=f"::{name}")


def _port(port: str) -> str:
    if not _PORT.match(port):
        raise OcsError("bad_port", port, "ports have the form 1.2.3 (bank.row.column)")
    return port
