"""NETCONF over SSH in memory: what the driver asks of ncclient, by asyncssh on the virtual loop.

ncclient and paramiko start threads that read sockets. Here the same calls, which block in pool
work, wait for coroutines of the loop; ncclient still judges the replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import asyncssh
from greenlet import getcurrent
from ncclient import transport
from ncclient.operations import TimeoutExpiredError
from ncclient.operations.rpc import RPCReply

from ocs_driver.polatis import netconf_session
from testbed.ocs_emulator.netconf_framing import Deframer, frame
from testbed.ocs_emulator.netconf_xml import name, parse
from testbed.simulated.loop import VirtualLoop
from testbed.simulated.work import WorkEvent

_T = TypeVar("_T")

BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
FRAMINGS = ("urn:ietf:params:netconf:base:1.0", "urn:ietf:params:netconf:base:1.1")
HELLO = "".join(
    (
        f'<hello xmlns="{BASE}"><capabilities>',
        *(f"<capability>{framing}</capability>" for framing in FRAMINGS),
        "</capabilities></hello>",
    )
)


def _loop() -> VirtualLoop:
    """Return the loop of the pool work that asks."""
    loop: VirtualLoop = getcurrent()._loop  # type: ignore[attr-defined]
    return loop


@dataclass
class Line:
    """Stands in for the socket, with which a connection can be given up."""

    address: tuple[str, int]
    work: asyncio.Task[Any] | None = None

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait in pool work for a coroutine. OSError once the line is shut down."""
        self.work = _loop().create_task(work)
        over = WorkEvent()
        self.work.add_done_callback(lambda _: over.set())
        over.wait()
        if self.work.cancelled():
            raise OSError("the line was shut down")
        result: _T = self.work.result()
        return result

    def shutdown(self, _how: int) -> None:
        if self.work is not None:
            self.work.cancel()

    def close(self) -> None:
        pass


class Session:
    """Stands in for ncclient's transport."""

    def __init__(self, _handler: object) -> None:
        self.notes: deque[str] = deque()
        self.heard = WorkEvent()
        """Open when a note has come, or the session has ended."""
        self.connected = False
        self.capabilities: list[str] = []
        self._numbers = count(1)
        self._replies: dict[str, asyncio.Future[str]] = {}
        self._deframer = Deframer()
        self._line: Line | None = None
        self._ssh: Any = None
        self._process: Any = None
        self._reading: asyncio.Task[None] | None = None

    def connect(
        self, *, sock: Line, username: str, password: str, hostkey_b64: str | None, **_: object
    ) -> None:
        assert hostkey_b64 is None, "keys of hosts are compared in real time only"
        self._line = sock
        try:
            sock.wait(self._connect(sock.address, username, password))
        except asyncssh.PermissionDenied as error:
            raise transport.AuthenticationError(str(error)) from error
        except (asyncssh.Error, asyncio.IncompleteReadError) as error:
            raise transport.SSHError(str(error)) from error

    async def _connect(self, address: tuple[str, int], user: str, password: str) -> None:
        self._ssh = await asyncssh.connect(
            *address, username=user, password=password, known_hosts=None, client_keys=None,
            agent_path=None, config=None,
        )  # fmt: skip
        self._process = await self._ssh.create_process(subsystem="netconf", encoding=None)
        self._process.stdin.write(frame(HELLO.encode(), chunked=False))
        greeting = parse(await self._next())
        self.capabilities = [
            (e.text or "").strip() for e in greeting.iter() if name(e) == "capability"
        ]
        self._deframer.chunked = FRAMINGS[1] in self.capabilities
        self.connected = True
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _next(self) -> bytes:
        while (message := self._deframer.next()) is None:
            data = await self._process.stdout.read(65536)
            if not data:
                raise asyncio.IncompleteReadError(b"", None)
            self._deframer.feed(data)
        return message

    async def _read(self) -> None:
        try:
            while True:
                text = (await self._next()).decode()
                message = parse(text.encode())
                if name(message) == "notification":
                    self.notes.append(text)
                    self.heard.set()
                elif (reply := self._replies.get(message.get("message-id", ""))) is not None:
                    reply.set_result(text)
        except (OSError, asyncssh.Error, asyncio.IncompleteReadError):
            pass
        finally:
            self._end()

    def _end(self) -> None:
        self.connected = False
        self.heard.set()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(transport.SessionError("the session has ended"))

    def ask(self, operation: str, timeout_s: float) -> RPCReply:
        """Send one request and wait for its reply, in pool work."""
        assert self._line is not None
        return self._line.wait(self._ask(operation, timeout_s))

    async def _ask(self, operation: str, timeout_s: float) -> RPCReply:
        if not self.connected:
            raise transport.TransportError("Not connected to NETCONF server")
        number = str(next(self._numbers))
        rpc = f'<rpc xmlns="{BASE}" message-id="{number}">{operation}</rpc>'
        coming = self._replies[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(frame(rpc.encode(), chunked=self._deframer.chunked))
        try:
            async with asyncio.timeout(timeout_s):
                reply = RPCReply(await coming)
        except TimeoutError:
            raise TimeoutExpiredError("no reply") from None
        except transport.SessionError as error:
            raise transport.TransportError(str(error)) from None
        finally:
            del self._replies[number]
        if reply.error is not None:
            raise reply.error
        return reply

    def close(self) -> None:
        """End the session, in pool work."""
        self._end()
        if self._ssh is not None:
            self._ssh.abort()


class Manager:
    """Stands in for ncclient's manager."""

    def __init__(self, session: Session, _handler: object, timeout: float) -> None:
        self._session = session
        self.timeout = timeout
        self.raise_mode = 0

    @property
    def connected(self) -> bool:
        return self._session.connected

    @property
    def server_capabilities(self) -> list[str]:
        return self._session.capabilities

    def create_subscription(self, *, stream_name: str) -> None:
        stream = f"<stream>{stream_name}</stream>"
        space = "urn:ietf:params:xml:ns:netconf:notification:1.0"
        self._ask(f'<create-subscription xmlns="{space}">{stream}</create-subscription>')

    def get(self, filter: tuple[str, str]) -> RPCReply:  # ncclient's name
        return self._ask(f'<get><filter type="{filter[0]}">{filter[1]}</filter></get>')

    def edit_config(self, *, target: str, config: str) -> RPCReply:
        return self._ask(f"<edit-config><target><{target}/></target>{config}</edit-config>")

    def close_session(self) -> None:
        self._ask("<close-session/>")
        self._session.close()

    def take_notification(self, *, timeout: float) -> Note | None:
        session = self._session
        if not session.notes:
            session.heard.clear()
            timer = _loop().call_later(timeout, session.heard.set)
            session.heard.wait()
            timer.cancel()
        return Note(session.notes.popleft()) if session.notes else None

    def _ask(self, operation: str) -> RPCReply:
        return self._session.ask(operation, self.timeout)


@dataclass
class Note:
    """One notification."""

    notification_xml: str


@contextlib.contextmanager
def without_threads() -> Iterator[None]:
    """Let NETCONF sessions connect in memory for a while."""

    def connect(address: tuple[str, int], _timeout_s: float) -> Line:
        return Line(address)

    sockets = SimpleNamespace(create_connection=connect, SHUT_RDWR=socket.SHUT_RDWR)
    with (
        patch.object(netconf_session, "socket", sockets),
        patch.object(netconf_session, "_PromptTransport", Session),
        patch.object(netconf_session.manager, "Manager", Manager),
    ):
        yield
