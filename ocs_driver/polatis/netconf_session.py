"""Keeps one serialised NETCONF session per switch, with ncclient's blocking calls in threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from ncclient import manager, transport
from ncclient.devices.default import DefaultDeviceHandler
from ncclient.operations import RaiseMode, RPCError, TimeoutExpiredError

from base.addresses import join_address
from ocs_driver.errors import (
    OcsDenied,
    OcsError,
    OcsLogin,
    OcsTimeout,
    OcsUnreachable,
    unreachable,
)
from ocs_driver.polatis.xml import LONGEST, check_done
from ocs_driver.tl1.session import Login
from ocs_driver.turns import CommandTurns

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

_LATE_S = 0.5
"""Extra time after a response timeout before its thread counts as stuck."""
_NOTES = 1000
"""Notifications buffered until delivery; more are dropped."""
_NOTE_HEAD = 400
"""Length of the prefix that identifies a notification."""
_CHUNKED = 2
"""ncclient's number for the framing of NETCONF 1.1."""
_PING = '<system-config xmlns="http://www.polatis.com/yang/optical-switch"/>'


@dataclass(slots=True, frozen=True)
class NetconfTiming:
    """All waits of a session, in seconds."""

    connect_s: float = 10.0
    answer_s: float = 30.0
    notification_s: float = 0.25
    keepalive_s: float = 45.0
    backoff_first_s: float = 0.2
    backoff_longest_s: float = 30.0
    refused_login_s: float = 60.0


class _PromptTransport(transport.SSHSession):  # type: ignore[misc]
    """ncclient's transport without the up to 100 ms that a request waits in its queue.

    It also bounds the size of a message and the number of pending notifications.
    """

    _unended = 0

    def _transport_read(self) -> bytes:
        data: bytes = super()._transport_read()
        self._unended += len(data)
        if self._unended > LONGEST:
            raise transport.TransportError(f"a message exceeded {LONGEST} bytes")
        return data

    def _dispatch_message(self, raw: str) -> None:
        self._unended = 0
        if self._notification_q.qsize() < _NOTES or "notification" not in raw[:_NOTE_HEAD]:
            super()._dispatch_message(raw)

    def send(self, message: str) -> None:
        """Write immediately; the receiving thread would write only after its next tick."""
        if self._id is None:  # the hello: the framing is not agreed yet
            super().send(message)
            return
        if not self.connected:
            raise transport.TransportError("Not connected to NETCONF server")
        data = message.encode()
        if self._base == _CHUNKED:
            data = b"\n#%d\n%s\n##\n" % (len(data), data)
        else:
            data += b"]]>]]>"
        self._channel.sendall(data)


class NetconfSession:
    """Sends requests and returns replies; reconnects internally.

    ``turns`` orders the requests.
    ``host_key`` is the switch's public key in base64; without it any key is accepted.
    ``on_event`` gets notifications as text, ``on_link`` True when a session is established
    and False when it is lost; both are called on the loop.
    """

    def __init__(
        self,
        host: str,
        port: int,
        login: Login,
        *,
        timing: NetconfTiming | None = None,
        turns: CommandTurns | None = None,
        host_key: str | None = None,
        on_event: Callable[[str], None] = lambda text: None,
        on_link: Callable[[bool], None] = lambda up: None,
    ) -> None:
        self.name = join_address(host, port)
        self._host = host
        self._port = port
        self._login = login
        self._host_key = host_key
        self._timing = timing or NetconfTiming()
        self._on_event = on_event
        self._on_link = on_link
        self._turns = turns or CommandTurns(self.name)
        self._manager: Any = None
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="netconf")
        self._listener: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._failures = 0
        self._next_try_at = 0.0
        self._refusal: OcsLogin | None = None
        self.capabilities: tuple[str, ...] = ()

    async def open(self) -> None:
        """Connect and log in. Raises OcsUnreachable or OcsLogin on failure."""
        async with self._turns.command():
            await self._ensure()
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name=f"netconf-{self.name}")

    async def close(self) -> None:
        """End the session. Never fails."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        async with self._turns.command():
            await self._drop(polite=True)

    async def get(self, filter_: str) -> str:
        """Read a subtree; reconnects once if the session is lost. Raises OcsDenied when refused."""
        for _ in range(2):
            try:
                return await self._request(
                    lambda m: str(m.get(filter=("subtree", filter_)).xml), self._timing.answer_s
                )
            except OcsTimeout as error:
                if error.code != "connection_lost":
                    raise
        raise OcsUnreachable("connection_lost", self.name, "the session broke twice")

    async def edit(self, config: str, timeout_s: float) -> None:
        """Edit the running datastore. Raises OcsDenied.

        OcsTimeout or OcsBadReply if the outcome is unknown.
        """
        reply = await self._request(
            lambda m: str(m.edit_config(target="running", config=config).xml), timeout_s
        )
        check_done(reply)

    async def _request(self, call: Callable[[Any], _T], timeout_s: float) -> _T:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        async with self._turns.command(until):
            session = await self._ensure(until)
            session.timeout = max(until - loop.time(), 0.01)
            work = loop.run_in_executor(self._threads, lambda: call(session))
            try:
                # ncclient's timeout covers the reply only, not a write to a switch that does
                # not read.
                await asyncio.wait({work}, timeout=max(until - loop.time(), 0.01) + _LATE_S)
                if not work.done():
                    raise TimeoutExpiredError
                return work.result()
            except RPCError as error:
                message = error.message or error.tag or "refused"
                raise OcsDenied(error.tag or "rpc-error", self.name, message) from None
            except TimeoutExpiredError:
                await self._drop()
                raise OcsTimeout(
                    "no_answer", self.name, f"no response in {timeout_s:g} s"
                ) from None
            except (transport.TransportError, OSError, EOFError) as error:
                await self._drop()
                raise OcsTimeout("connection_lost", self.name, str(error)) from None
            except asyncio.CancelledError:
                # The thread may still be waiting: its reply must not answer the next request.
                await self._drop()
                with contextlib.suppress(Exception):
                    await work
                raise
            except Exception as error:
                # ncclient passes on the errors of its XML parsers; the outcome is unknown.
                await self._drop()
                why = f"the reply could not be read: {type(error).__name__}"
                raise OcsTimeout("bad_reply", self.name, why) from None

    # -- below: this task holds the turn -----------------------------------------

    async def _ensure(self, until: float | None = None) -> Any:
        if self._manager is not None and self._manager.connected:
            return self._manager
        await self._drop()
        loop = asyncio.get_running_loop()
        wait = self._next_try_at - loop.time()
        if wait > 0:
            if self._refusal is not None:
                raise self._refusal
            if until is not None and self._next_try_at >= until:
                raise OcsUnreachable("backing_off", self.name, f"next attempt in {wait:.1f} s")
            await asyncio.sleep(wait)
        limit = self._timing.connect_s
        if until is not None:
            limit = min(limit, max(until - loop.time(), 0.05))
        try:
            self._manager = await self._connect(limit)
        except OcsError as error:
            self._failures += 1
            self._refusal = error if isinstance(error, OcsLogin) else None
            pause = self._timing.backoff_first_s * 2 ** min(self._failures - 1, 16)
            pause = min(pause, self._timing.backoff_longest_s)
            if self._refusal is not None:
                pause = self._timing.refused_login_s
            self._next_try_at = loop.time() + pause
            raise
        self._failures, self._next_try_at, self._refusal = 0, 0.0, None
        self.capabilities = tuple(self._manager.server_capabilities)
        self._listener = asyncio.create_task(self._listen(self._manager))
        self._on_link(True)
        return self._manager

    async def _connect(self, timeout_s: float) -> Any:
        lines: list[socket.socket] = []

        def connect() -> Any:
            # An own socket, because paramiko's wait for a banner has no usable limit.
            line_ = socket.create_connection((self._host, self._port), timeout_s)
            lines.append(line_)
            handler = DefaultDeviceHandler({"name": "default"}, [])
            line = _PromptTransport(handler)
            line.connect(
                host=self._host,
                port=self._port,
                sock=line_,
                username=self._login.user,
                password=self._login.password,
                timeout=timeout_s,
                hostkey_verify=self._host_key is not None,
                hostkey_b64=self._host_key,
                allow_agent=False,
                look_for_keys=False,
                ssh_config=None,
            )
            session = manager.Manager(line, handler, timeout=timeout_s)
            session.raise_mode = RaiseMode.ERRORS
            session.timeout = timeout_s
            with contextlib.suppress(RPCError):
                # A switch without the stream sends no notifications; everything else works.
                session.create_subscription(stream_name="Polatis")
            return session

        work = asyncio.get_running_loop().run_in_executor(self._threads, connect)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(work)
        except (TimeoutError, asyncio.CancelledError) as error:
            _hang_up(lines)
            with contextlib.suppress(Exception):
                await work
            if isinstance(error, asyncio.CancelledError):
                raise
            raise OcsUnreachable(
                "unreachable",
                self.name,
                f"no NETCONF response within {timeout_s:g} s: is this the NETCONF port?",
            ) from None
        except transport.AuthenticationError:
            _hang_up(lines)
            raise OcsLogin(
                "login_refused",
                f"{self._login.user}@{self.name}",
                "the switch refused the user or the password",
            ) from None
        except OSError as error:
            _hang_up(lines)
            raise unreachable(self.name, error, timeout_s) from None
        except Exception as error:
            # ncclient passes on errors of paramiko and sockets, of many classes.
            _hang_up(lines)
            why = str(error) or type(error).__name__
            if "banner" in why:
                why = f"{why}: is this the NETCONF port?"
            raise OcsUnreachable("unreachable", self.name, why) from None

    async def _drop(self, *, polite: bool = False) -> None:
        session, self._manager = self._manager, None
        if self._listener is not None:
            self._listener.cancel()
            self._listener = None
        if session is None:
            return
        loop = asyncio.get_running_loop()

        def end() -> None:
            with contextlib.suppress(Exception):
                if polite and session.connected:
                    session.timeout = 1.0
                    session.close_session()
                else:
                    session._session.close()

        await loop.run_in_executor(None, end)
        if not polite:
            self._on_link(False)

    async def _listen(self, session: Any) -> None:
        """Deliver notifications until the session ends."""
        loop = asyncio.get_running_loop()
        wait_s = self._timing.notification_s
        while session.connected:
            note = await loop.run_in_executor(
                self._threads, lambda: session.take_notification(timeout=wait_s)
            )
            if note is not None:
                self._on_event(note.notification_xml)

    async def _keep(self) -> None:
        """Detect a lost session and reconnect."""
        loop = asyncio.get_running_loop()
        quiet_since = loop.time()
        while True:
            rest = min(self._timing.notification_s, self._timing.keepalive_s)
            if self._manager is None:
                rest = max(rest, self._next_try_at - loop.time())
            await asyncio.sleep(rest)
            up = self._manager is not None and self._manager.connected
            if up and loop.time() - quiet_since < self._timing.keepalive_s:
                continue
            quiet_since = loop.time()
            try:
                async with self._turns.command(loop.time() + self._timing.connect_s):
                    session = await self._ensure(loop.time() + self._timing.connect_s)
                if up and session is self._manager:
                    await self.get(_PING)
            except OcsError as error:
                _log.warning("keep-alive: %s", error)


def _hang_up(lines: list[socket.socket]) -> None:
    """Shut connections down, so that threads that wait on them return."""
    for line in lines:
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)
        line.close()
