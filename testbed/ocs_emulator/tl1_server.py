"""Serves TL1 for an emulated switch: connections, logins, framing; verbs are in the dialects."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
from itertools import count

import structlog

from testbed.ocs_emulator.alarms import AlarmKind, Happening
from testbed.ocs_emulator.faults import Trick
from testbed.ocs_emulator.sessions import SessionRules
from testbed.ocs_emulator.switch import EmulatedSwitch
from testbed.ocs_emulator.tl1_text import (
    CommandScanner,
    Tl1Answer,
    Tl1Dialect,
    Tl1Request,
    dated,
    frame,
    frame_answer,
    parse_command,
    refusal,
)

_log = structlog.get_logger(__name__)

_READ_SIZE = 65536
_SEVERITY = {"CR": "*C", "MJ": "**", "MN": "*^", "CL": "A "}


class Tl1Server:
    """One listening socket. ``password`` None accepts every user name."""

    def __init__(
        self, dialect: Tl1Dialect, switch: EmulatedSwitch, *, prompting: bool, password: str | None
    ) -> None:
        self.dialect = dialect
        self.switch = switch
        self.prompting = prompting
        self.password = password
        self.rules = SessionRules(switch.model.personality.behaviour, switch.faults)
        self._server: asyncio.Server | None = None
        self._sessions: set[_Session] = set()
        self._atags = count(1)
        switch.listeners.append(self._notify)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the bound address (port 0 selects a free port)."""
        self._server = await asyncio.start_server(self.serve, host, port)
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Close the socket and end all sessions."""
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions):
            await session.end()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def report(self, severity: str, verb: str, rows: tuple[str, ...]) -> None:
        """Send an autonomous message to all sessions that receive them."""
        text = self.report_text(severity, verb, rows)
        for session in self._sessions:
            session.report(text)

    def report_text(self, severity: str, verb: str, rows: tuple[str, ...]) -> str:
        """Return an autonomous message with its framing."""
        head = f"{severity:<2} {next(self._atags)} {verb}"
        return frame(self.dialect.sid, head, [f'   "{row}"' for row in rows])

    def _notify(self, happening: Happening) -> None:
        if not self.dialect.reports:
            return
        if happening.kind is AlarmKind.CHANGED:
            self.report("A", "REPT DBCHG", (f"{happening.obj}:USER={happening.user}",))
        else:
            row = f"{happening.obj}:{happening.severity},{happening.cause},SA"
            self.report(_SEVERITY[happening.severity], "REPT ALM EQPT", (row,))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        if self._server is None or not self._server.is_serving():
            writer.close()  # accepted just before the server was stopped
            return
        session = _Session(self, reader, writer)
        self._sessions.add(session)
        try:
            await session.run()
        except (OSError, asyncio.CancelledError) as error:
            _log.debug("session ended", why=repr(error))
        finally:
            session.log_out()
            self._sessions.discard(session)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Session:
    """One connection with at most one user."""

    def __init__(
        self, server: Tl1Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._server = server
        self._faults = server.switch.faults
        self._reader = reader
        self._writer = writer
        self._user = ""
        self._active_from = 0.0
        self._wants_reports = True
        self._unsent = bytearray()
        self._task = asyncio.current_task()

    async def run(self) -> None:
        scanner = CommandScanner()
        try:
            self._send(self._server.dialect.greeting)
            self._show_prompt()
            while data := await self._read():
                for text in scanner.feed(data):
                    if not await self._handle(text):
                        return
        finally:
            self._flush()

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def report(self, text: str) -> None:
        if self._user and self._wants_reports:
            self._send(text.encode("latin-1"))
            self._show_prompt()

    def log_out(self) -> None:
        if self._user:
            self._server.rules.leave()
        self._user = ""

    async def _read(self) -> bytes:
        """Read data; an idle user is logged out, but the connection stays."""
        while True:
            try:
                async with asyncio.timeout(self._server.rules.idle_logout_s):
                    return await self._reader.read(_READ_SIZE)
            except TimeoutError:
                self.log_out()

    async def _handle(self, text: str) -> bool:
        """Execute one command and respond; return False when the connection must end."""
        request = parse_command(text)
        changes = self._server.dialect.changes(request)
        rule = self._faults.trick(text, changes=changes) if self._user else None
        trick = rule.trick if rule else None
        if self._server.prompting:
            self._send(f"{text};".encode("latin-1"))
        if self._faults.delay_s:
            await asyncio.sleep(self._faults.delay_s)
        if trick is Trick.CUT_BEFORE:
            return False
        if rule is not None and trick is Trick.DENY:
            answer = refusal(rule.code, "refused by script")
        elif trick is Trick.NO_EFFECT:
            answer = Tl1Answer()
        elif rule is not None and trick is Trick.HOLLOW:
            answer = Tl1Answer(text=(rule.code,))
        else:
            answer = await self._answer(request)
        if trick is Trick.NO_REPLY:
            return True
        if trick is Trick.CUT_AFTER:
            return False
        return await self._reply(request.ctag, answer, half=trick is Trick.HALF_REPLY)

    async def _reply(self, ctag: str, answer: Tl1Answer, *, half: bool) -> bool:
        rows = [dated(row, self._faults.firmware) for row in self._faults.ordered(answer.rows)]
        answer = dataclasses.replace(answer, rows=tuple(rows))
        dialect = self._server.dialect
        text = frame_answer(dialect.sid, ctag, answer, dialect.rows_per_block)
        if self._faults.interleave and self._user:
            self._faults.interleave -= 1
            storm = self._server.report_text("A", "REPT EVT EQPT", ("storm:noise; more",))
            first, end_of_line, rest = text.rpartition("\r\n")
            text = first + storm + end_of_line + rest
        data = text.encode("latin-1")
        if half:
            self._send(data[: len(data) // 2])
            return False
        for segment in self._faults.segments(data):
            self._send(segment)
            if self._faults.segment:
                self._flush()
                await asyncio.sleep(0)
        self._show_prompt()
        await self._writer.drain()
        return True

    def _show_prompt(self) -> None:
        if self._server.prompting:
            self._send(f"\r\n{self._server.dialect.prompt}".encode("latin-1"))

    def _send(self, data: bytes) -> None:
        """Send data; consecutive calls without a pause are combined."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent += data

    def _flush(self) -> None:
        if self._unsent:
            self._writer.write(bytes(self._unsent))
            self._unsent.clear()

    async def _answer(self, request: Tl1Request) -> Tl1Answer:
        if request.verb == "ACT-USER":
            return self._log_in(request)
        if not self._user or self._server.switch.now() < self._active_from:
            return refusal("PLNA", "Login Not Active")
        match request.verb:
            case "CANC-USER":
                self.log_out()
            case "INH-MSG-ALL" | "INH-MSG":
                self._wants_reports = False
            case "ALW-MSG-ALL" | "ALW-MSG":
                self._wants_reports = True
            case "RTRV-HDR":
                pass
            case _:
                return await self._server.dialect.answer(request, self._user)
        return Tl1Answer()

    def _log_in(self, request: Tl1Request) -> Tl1Answer:
        user = request.aid.strip('"')
        given = request.block(0)
        if len(given) > 1 and given.startswith('"') and given.endswith('"'):
            given = given[1:-1].replace('\\"', '"').replace("\\\\", "\\")
        password = self._server.password
        if not user or (
            password is not None and not hmac.compare_digest(given.encode(), password.encode())
        ):
            return refusal("PIUI", "Invalid user name or password")
        if self._user == user:
            return refusal("SNVS", "Already logged in")
        if not self._server.rules.enter():
            return refusal("SSRE", "Maximum number of sessions reached")
        self.log_out()
        self._user = user
        self._active_from = self._server.switch.now() + self._server.rules.login_race_s
        return Tl1Answer((f"{user}:{user},2",), (self._server.dialect.login_comment,))
