"""Serves SCPI for an emulated Polatis: one TCP port, no login, no replies to writes."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque

import structlog

from testbed.ocs_emulator.faults import FaultRule, Trick
from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.model import Fault, ModelError
from testbed.ocs_emulator.scpi_text import LineScanner, Scpi, ScpiError, channels, parse_line
from testbed.ocs_emulator.sessions import SessionRules

_log = structlog.get_logger(__name__)

_READ_SIZE = 65536
_ERRORS_KEPT = 32
# Codes of SCPI-99; the switch's own table is not public.
_CODES = {
    Fault.NO_SUCH_PORT: -222,
    Fault.SAME_PORT: -222,
    Fault.BUSY: -221,
    Fault.NO_SUCH_CIRCUIT: -221,
}
_USER = "scpi"
_MODE = re.compile(r"\)\s+[A-Za-z0-9]+\s*\Z")
"""The optional mode after the channel lists; its meaning is not documented."""


class ScpiServer:
    """One listening socket; all connections share the error queue, as in SCPI-99."""

    def __init__(self, matrix: MatrixSwitch) -> None:
        self._matrix = matrix
        self._faults = matrix.switch.faults
        self._rules = SessionRules(matrix.model.personality.behaviour, self._faults)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: deque[tuple[int, str]] = deque(maxlen=_ERRORS_KEPT)
        self._disabled: set[str] = set()

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the bound address (port 0 selects a free port)."""
        self._server = await asyncio.start_server(self.serve, host, port)
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Close the socket and end all connections."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
            await asyncio.wait([task])
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        if self._server is None or not self._server.is_serving():
            writer.close()  # accepted just before the server was stopped
            return
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        entered = self._rules.enter()
        try:
            if entered:
                await self._converse(reader, writer)
        except (OSError, asyncio.CancelledError, TimeoutError) as error:
            _log.debug("connection ended", why=repr(error))
        finally:
            if entered:
                self._rules.leave()
            if task is not None:
                self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scanner = LineScanner()
        while True:
            # Without a login, an idle connection is closed.
            async with asyncio.timeout(self._rules.idle_logout_s):
                data = await reader.read(_READ_SIZE)
            if not data:
                return
            for line in scanner.feed(data):
                if not await self._line(line, reader, writer):
                    return

    async def _line(
        self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Execute one line; return False when the connection must end."""
        commands = parse_line(line)
        rule = self._faults.trick(line, changes=any(map(_changes, commands)))
        trick = rule.trick if rule else None
        if self._faults.delay_s:
            await asyncio.sleep(self._faults.delay_s)
        if trick is Trick.CUT_BEFORE:
            return False
        replies = await self._replies(commands, rule, reader)
        if trick is Trick.CUT_AFTER:
            return False
        if replies and trick is not Trick.NO_REPLY:
            data = (";".join(replies) + "\r\n").encode("latin-1")
            if trick is Trick.HALF_REPLY:
                writer.write(data[: len(data) // 2])
                await writer.drain()
                return False
            for segment in self._faults.segments(data):
                writer.write(segment)
                if self._faults.segment:
                    await asyncio.sleep(0)
            await writer.drain()
        return True

    async def _replies(
        self, commands: list[Scpi], rule: FaultRule | None, reader: asyncio.StreamReader
    ) -> list[str]:
        if rule is not None and rule.trick is Trick.HOLLOW:
            return [rule.code for command in commands if command.query]
        replies = []
        for command in commands:
            try:
                reply = await self._carry_out(command, rule, reader)
            except ScpiError as error:
                self._errors.append((error.code, error.text))
            except ModelError as error:
                self._errors.append((_CODES.get(error.fault, -200), str(error)))
            else:
                if reply is not None:
                    replies.append(reply)
        return replies

    async def _carry_out(
        self, command: Scpi, rule: FaultRule | None, reader: asyncio.StreamReader
    ) -> str | None:
        changes = _changes(command)
        await self._matrix.switch.work(":".join(command.words), changes=changes)
        if changes:
            if rule is not None and rule.trick is Trick.DENY:
                raise ScpiError(-200, f"Execution error;{rule.code}")
            if rule is None or rule.trick is not Trick.NO_EFFECT:
                await self._change(command)
            return None
        if command.words == ("*OPC",):
            await self._operation_complete(reader)
            return "1"
        return self._query(command)

    async def _change(self, command: Scpi) -> None:
        switch = ("OXC", "SWITch")
        lists = channels(_MODE.sub(")", command.arguments))
        if command.named(*switch, "DISConnect", "ALL"):
            await self._matrix.clear(_USER)
        elif command.named(*switch, "PORT", "DISable"):
            self._disabled |= set(lists[0])
        elif command.named(*switch, "PORT", "ENABle"):
            self._disabled -= set(lists[0])
        elif len(lists) != 2:
            raise ScpiError(-109, "Missing parameter")
        elif command.named(*switch, "CONNect", "SUB") and not lists[1]:
            await self._matrix.disconnect(lists[0], _USER)
        elif len(lists[0]) != len(lists[1]):
            raise ScpiError(-220, "Parameter error")
        else:
            pairs = list(zip(lists[0], lists[1], strict=True))
            if command.named(*switch, "CONNect", "SUB"):
                await self._matrix.remove(pairs, _USER)
                return
            if command.named(*switch, "CONNect", "ONLY"):
                await self._matrix.clear(_USER)
            self._matrix.connect(pairs, _USER)

    def _query(self, command: Scpi) -> str | None:
        personality = self._matrix.model.personality
        match command.words:
            case ("*IDN",):
                return ",".join((personality.vendor, personality.model, personality.serial,
                                 personality.firmware))  # fmt: skip
            case ("*CLS",) | ("*RST",):
                self._errors.clear()
                return None
        if command.words[:1] == ("OXC",):
            return self._matrix_query(command)
        if command.named("SYSTem", "ERRor") or command.named("SYSTem", "ERRor", "NEXT"):
            code, text = self._errors.popleft() if self._errors else (0, "No error")
            return f'{code}, "{text}"'
        if command.named("SYSTem", "ERRor", "ALL"):
            found = list(self._errors) or [(0, "No error")]
            self._errors.clear()
            return ",".join(f'{code}, "{text}"' for code, text in found)
        raise ScpiError(-113, "Undefined header")

    def _matrix_query(self, command: Scpi) -> str:
        personality = self._matrix.model.personality
        switch = ("OXC", "SWITch")
        if command.named(*switch, "SIZE"):
            shape = personality.shape
            both = (shape.get("inputs", shape.get("any")), shape.get("outputs", shape.get("any")))
            return f"{both[0]},{both[1]}"
        if command.named(*switch, "CONNect", "STATe"):
            pairs = [pair.split() for pair in self._faults.ordered(
                [f"{a} {b}" for a, b in self._matrix.pairs()])]  # fmt: skip
            sources, sinks = ",".join(p[0] for p in pairs), ",".join(p[1] for p in pairs)
            return f"(@{sources}),(@{sinks})"
        if command.named(*switch, "CONNect", "PORT"):
            return f'"{self._faces(command.arguments)}"'
        if command.named(*switch, "PORT", "STATe"):
            (ports,) = channels(command.arguments) or [list(personality.ports)]
            return "(" + ",".join(self._health(port) for port in ports) + ")"
        raise ScpiError(-113, "Undefined header")

    def _faces(self, port: str) -> str:
        for a, b in self._matrix.pairs():
            if port in (a, b):
                return b if port == a else a
        return ""

    def _health(self, port: str) -> str:
        if port not in self._matrix.model.ports:
            raise ModelError(Fault.NO_SUCH_PORT, port)
        if port in self._matrix.model.failed:
            return "F"
        return "D" if port in self._disabled else "E"

    async def _operation_complete(self, reader: asyncio.StreamReader) -> None:
        """Wait until all mirrors have settled, as ``*OPC?`` requires (IEEE 488.2)."""
        while not reader.at_eof() and any(
            c.ready_at is not None and not c.tuned for c in self._matrix.circuits()
        ):
            event = self._matrix.model.next_event(self._matrix.switch.now())
            pause = 0.05 if event is None else max(event - self._matrix.switch.now(), 0.0)
            await asyncio.sleep(min(pause, 0.05) + 0.0005)


def _changes(command: Scpi) -> bool:
    return not command.query and command.words[:1] in (("OXC",), (":OXC",))
