"""Serves NETCONF for an emulated Polatis: SSH, sessions, framing, notifications."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from datetime import UTC, datetime
from itertools import count
from typing import Any

import asyncssh
import structlog

from base import clock
from testbed.ocs_emulator.alarms import AlarmKind, Happening
from testbed.ocs_emulator.faults import Trick
from testbed.ocs_emulator.matrix import MatrixSwitch
from testbed.ocs_emulator.netconf_framing import Deframer, FramingError, frame
from testbed.ocs_emulator.netconf_rpc import NetconfDialect
from testbed.ocs_emulator.netconf_xml import (
    Element,
    RpcError,
    hello,
    hollow_reply,
    name,
    notification,
    parse,
    refusal,
    reply,
)
from testbed.ocs_emulator.sessions import SessionRules

_log = structlog.get_logger(__name__)

_READ_SIZE = 65536
_BASE_1_1 = "urn:ietf:params:netconf:base:1.1"
_KEY = "ssh-ed25519"


class NetconfServer:
    """One listening socket. ``password`` None accepts every user name."""

    def __init__(self, matrix: MatrixSwitch, *, password: str | None) -> None:
        self.matrix = matrix
        self.dialect = NetconfDialect(matrix)
        self.password = password
        self.rules = SessionRules(matrix.model.personality.behaviour, matrix.switch.faults)
        self.numbers = count(1)
        self._key = asyncssh.generate_private_key(_KEY)
        self._server: Any = None
        self._serving = False
        self._sessions: set[_Session] = set()
        self._connections: set[Any] = set()
        matrix.switch.listeners.append(self._notify)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the bound address (port 0 selects a free port)."""
        self._serving = True
        self._server = await asyncssh.listen(
            host,
            port,
            server_host_keys=[self._key],
            server_factory=lambda: _Gate(self, self._connections),
            process_factory=self._serve,
            encoding=None,
            agent_forwarding=False,
            allow_scp=False,
        )
        bound = self._server.sockets[0].getsockname()
        return bound[0], bound[1]

    async def stop(self) -> None:
        """Close the socket and end all sessions."""
        if self._server is None:
            return
        self._serving = False
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        for session in list(self._sessions):
            await session.end()
        await self._server.wait_closed()
        self._server = None

    @property
    def serving(self) -> bool:
        """False once the server is being stopped."""
        return self._serving

    async def _serve(self, process: Any) -> None:
        if process.subsystem != "netconf" or not self.rules.enter():
            process.exit(1)
            return
        session = _Session(self, process)
        self._sessions.add(session)
        try:
            await session.run()
        except (OSError, asyncssh.Error, asyncio.CancelledError, TimeoutError) as error:
            _log.debug("session ended", why=repr(error))
        except (FramingError, ValueError) as error:
            _log.info("session ended after an error", why=str(error))
        finally:
            self.rules.leave()
            self._sessions.discard(session)
            process.close()

    def _notify(self, happening: Happening) -> None:
        if happening.kind is AlarmKind.CHANGED:
            event = "activity-log-notification"
            fields = {
                "username": happening.user,
                "ip": "127.0.0.1",
                "protocol": "netconf",
                "activity": f"cross-connect {happening.obj}",
            }
        else:
            raised = happening.kind is AlarmKind.RAISED
            event = "port-power-alarm" if raised else "port-power-alarm-clear"
            fields = {"port-id": happening.obj, "port-label": ""}
        stamp = datetime.fromtimestamp(clock.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        data = notification(stamp, event, fields)
        for session in self._sessions:
            session.notify(data)


class _Gate(asyncssh.SSHServer):  # type: ignore[misc]
    """Checks passwords."""

    def __init__(self, server: NetconfServer, connections: set[Any]) -> None:
        self._server = server
        self._password = server.password
        self._connections = connections
        self._connection: Any = None

    def connection_made(self, conn: Any) -> None:
        """Store the connection, so that it can be ended."""
        self._connection = conn
        self._connections.add(conn)
        if not self._server.serving:
            conn.abort()  # accepted just before the server was stopped

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        del exc
        self._connections.discard(self._connection)

    def begin_auth(self, username: str) -> bool:
        """Require a password from every user."""
        del username
        return True

    def password_auth_supported(self) -> bool:
        """Allow passwords, the only method."""
        return True

    def validate_password(self, username: str, password: str) -> bool:
        """Compare with the configured password."""
        del username
        return self._password is None or hmac.compare_digest(
            password.encode(), self._password.encode()
        )


class _Session:
    """One NETCONF session."""

    def __init__(self, server: NetconfServer, process: Any) -> None:
        self._server = server
        self._faults = server.matrix.switch.faults
        self._process = process
        self._user: str = process.get_extra_info("username")
        self._deframer = Deframer()
        self._subscribed = False
        self._task = asyncio.current_task()

    async def run(self) -> None:
        behaviour = self._server.matrix.model.personality.behaviour
        self._write(hello(next(self._server.numbers), behaviour.pair_node))
        theirs = await self._receive()
        if theirs is None:
            return
        greeting = parse(theirs)
        if name(greeting) != "hello":
            raise ValueError("no hello")
        self._deframer.chunked = _BASE_1_1 in [(e.text or "").strip() for e in greeting.iter()]
        while (message := await self._receive()) is not None:
            if not await self._handle(parse(message)):
                return

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def notify(self, data: bytes) -> None:
        if self._subscribed:
            self._write(data)

    async def _receive(self) -> bytes | None:
        while (message := self._deframer.next()) is None:
            async with asyncio.timeout(self._server.rules.idle_logout_s):
                data = await self._process.stdin.read(_READ_SIZE)
            if not data:
                return None
            self._deframer.feed(data)
        return message

    def _write(self, message: bytes) -> None:
        data = frame(message, chunked=self._deframer.chunked)
        for segment in self._faults.segments(data):
            with contextlib.suppress(OSError, BrokenPipeError):
                self._process.stdout.write(segment)

    async def _handle(self, rpc: Element) -> bool:
        """Execute one request; return False when the session must end."""
        message_id = rpc.get("message-id", "")
        if name(rpc) != "rpc" or len(rpc) != 1:
            self._write(refusal(message_id, RpcError("malformed-message", "one rpc expected")))
            return True
        operation = rpc[0]
        changes = name(operation) == "edit-config"
        rule = self._faults.trick(name(operation), changes=changes)
        trick = rule.trick if rule else None
        if self._faults.delay_s:
            await asyncio.sleep(self._faults.delay_s)
        if trick is Trick.CUT_BEFORE:
            return self._cut()
        try:
            if rule is not None and trick is Trick.DENY:
                raise RpcError("operation-failed", rule.code)
            content = None
            if rule is not None and trick is Trick.HOLLOW:
                self._write(hollow_reply(message_id, rule.code))
                return True
            if trick is not Trick.NO_EFFECT:
                content = await self._carry_out(name(operation), operation)
            data = reply(message_id, content)
        except RpcError as error:
            data = refusal(message_id, error)
        if trick is Trick.CUT_AFTER:
            return self._cut()
        if trick is Trick.HALF_REPLY:
            framed = frame(data, chunked=self._deframer.chunked)
            self._process.stdout.write(framed[: len(framed) // 2])
            await asyncio.sleep(0.01)
            return self._cut()
        if trick is not Trick.NO_REPLY:
            self._write(data)
        return name(operation) != "close-session"

    async def _carry_out(self, verb: str, operation: Element) -> list[Element] | None:
        if verb == "create-subscription":
            self._subscribed = True
            return None
        if verb == "close-session":
            return None
        return await self._server.dialect.carry_out(verb, operation, self._user)

    def _cut(self) -> bool:
        connection = self._process.get_extra_info("connection")
        connection.abort()
        return False
