"""Answers that are not read: their connections end, and do not shut others out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from controller.api.server import connections as connections_module
from controller.api.server import outflow as outflow_module
from controller.api.server import server as server_module
from controller.api.server.connections import ConnectionLimit
from controller.api.server.outflow import SEND_LEAST, SEND_S, Outflow, ReadGoal, followed
from controller.base.addresses import network_of
from controller.daemon.listen import PeopleOptions
from tests.parts.api.served import serving
from tests.unit.controller.api.certificates import certificate, trusting

LIMIT = 44
PUBLIC_FILE = "/console/vendor/cytoscape.esm.min.mjs"
FLOODER, HONEST = "127.0.0.2", "127.0.0.3"
LIMIT_S = 120
WEB = Path(__file__).parents[5] / "console" / "web"


class Visitor:
    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.out = False
        self.flow = Outflow(0, 0)

    def close(self) -> None:
        self.out = True

    def outflow(self) -> Outflow:
        return self.flow


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_reader_that_takes_nothing_is_turned_out_and_a_slow_one_is_not() -> None:
    clock = Clock()
    limit = ConnectionLimit(10, clock)
    stuck, slow, done = Visitor(), Visitor(), Visitor()
    for client in (stuck, slow, done):
        assert limit.enter(client)
        client.flow = Outflow(100, 10**6)
    limit.busy(stuck)
    for second in range(4 * int(SEND_S)):
        clock.now = float(second)
        slow.flow = Outflow(100 + second * 2048, 10**6)
        done.flow = Outflow(0, 0) if second > 5 else done.flow
        limit.busy(done)
        limit.sweep()
    assert (stuck.out, slow.out, done.out) == (True, False, False)


def test_a_reader_of_a_quiet_stream_is_never_late() -> None:
    """Something is always on its way to it; all of it arrives one look later."""
    reading, taken = None, 0
    for second in range(200):
        reading = followed(reading, Outflow(taken, 300), float(second))
        assert reading is not None
        assert second - reading.since <= 1
        taken += 300


def test_a_reader_that_takes_single_bytes_is_late() -> None:
    reading: ReadGoal | None = None
    for second in range(20):
        reading = followed(reading, Outflow(second, 10**6), float(second))
    assert reading is not None
    assert reading == ReadGoal(SEND_LEAST, 0.0)


def test_an_address_with_most_connections_makes_room_even_if_all_are_served() -> None:
    limit = ConnectionLimit(10)
    flood = [Visitor() for _ in range(10)]
    for client in flood:
        assert limit.enter(client)
        limit.busy(client)
    honest = [Visitor("10.0.0.9") for _ in range(6)]
    entered = []
    for client in honest:
        entered.append(limit.enter(client))
        limit.busy(client)
    assert entered == [True] * 5 + [False]  # no address gets more than half
    assert not any(client.out for client in honest)
    assert [client.out for client in flood] == [True] * 5 + [False] * 5


def test_a_flood_never_takes_the_place_of_an_address_with_fewer_connections() -> None:
    limit = ConnectionLimit(10)
    honest = Visitor("10.0.0.9")
    assert limit.enter(honest)  # idle: in the middle of its request
    for _ in range(50):
        client = Visitor()
        if limit.enter(client):
            limit.busy(client)
    assert not honest.out
    assert len(limit) == 10


def test_a_stalled_connection_makes_room_for_its_own_address() -> None:
    clock = Clock()
    limit = ConnectionLimit(2, clock)
    stuck, served, fresh = Visitor(), Visitor(), Visitor()
    for client in (stuck, served):
        assert limit.enter(client)
        limit.busy(client)
    stuck.flow = Outflow(0, 10**6)
    limit.sweep()
    assert not limit.enter(fresh)
    clock.now = connections_module.STALLED_S
    assert limit.enter(fresh)
    assert (stuck.out, served.out) == (True, False)


def test_an_ipv6_host_is_one_sender_under_all_its_addresses() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2") != network_of("2001:db9::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")


def stingy(address: str = FLOODER) -> socket.socket:
    """Return a socket that takes a few kilobytes and then nothing."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.bind((address, 0))
    made.setblocking(False)
    return made


async def ask(
    port: int, address: str = FLOODER, times: int = 16, path: str = PUBLIC_FILE
) -> socket.socket:
    """Ask for more than the kernel keeps, and read nothing of it."""
    made = stingy(address)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(made, ("127.0.0.1", port))
    await loop.sock_sendall(
        made, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * times
    )
    return made


async def status(port: int, address: str = HONEST) -> int:
    """Ask on a new connection, as an honest client does."""
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(transport=transport, timeout=30) as client:
        return (await client.get(f"http://127.0.0.1:{port}/api/v1/health")).status_code


async def until(what: str, condition: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.05)
    raise AssertionError(what)


def ended(connection: socket.socket) -> bool:
    """Whether the other side has closed or reset; what was sent before is read and dropped."""
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@contextlib.asynccontextmanager
async def narrow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ConnectionLimit, int]]:
    """Serve at most LIMIT connections, with looks every 50 ms."""
    monkeypatch.setattr(server_module, "connections_possible", lambda: LIMIT)
    monkeypatch.setattr(server_module, "SWEEP_EVERY_S", 0.05)
    async with serving(PeopleOptions(open=True)) as (server, port):
        yield server.connections, port


@pytest.mark.real_time
async def test_connections_that_do_not_read_do_not_shut_another_address_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As many as may be open, none of them idle; no deadline has passed yet."""
    monkeypatch.setattr(connections_module, "SEND_S", 3600.0)
    monkeypatch.setattr(connections_module, "STALLED_S", 3600.0)
    async with narrow(monkeypatch) as (limit, port):
        held = [await ask(port) for _ in range(LIMIT)]
        await until("all are served", lambda: len(limit) == LIMIT and not limit._idle)
        for _ in range(10):
            assert await status(port) == 200
        assert len(limit) <= LIMIT
        for connection in held:
            connection.close()


@pytest.mark.real_time
async def test_connections_that_do_not_read_make_room_for_their_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "SEND_S", 3600.0)
    monkeypatch.setattr(connections_module, "STALLED_S", 0.2)
    async with narrow(monkeypatch) as (limit, port):
        held = [await ask(port) for _ in range(LIMIT)]
        await until("all wait", lambda: len(limit._reading) == LIMIT)

        async def answered() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return await status(port, FLOODER) == 200
            return False

        await until("an honest client of the address is answered", answered)
        for connection in held:
            connection.close()


@pytest.mark.real_time
async def test_an_answer_that_is_not_read_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections_module, "SEND_S", 0.5)
    async with narrow(monkeypatch) as (limit, port):
        held = [await ask(port) for _ in range(LIMIT)]
        await until("the controller has closed them", lambda: not len(limit))
        await until("the kernel keeps nothing for them", lambda: all(map(ended, held)))
        assert await status(port) == 200
        for connection in held:
            connection.close()


@pytest.mark.real_time
async def test_an_answer_over_tls_that_is_not_read_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(server_module, "SWEEP_EVERY_S", 0.05)
    monkeypatch.setattr(connections_module, "SEND_S", 0.5)
    async with serving(certificate(tmp_path / "mine")) as (server, port):

        def stuck() -> ssl.SSLSocket:
            raw = stingy()
            raw.settimeout(30)
            raw.connect(("127.0.0.1", port))
            made = trusting(tmp_path / "mine").wrap_socket(raw, server_hostname="127.0.0.1")
            made.sendall(f"GET {PUBLIC_FILE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 4)
            return made

        held = [await asyncio.to_thread(stuck) for _ in range(4)]
        await until("the controller has closed them", lambda: not len(server.connections))
        for connection in held:
            connection.close()


@pytest.mark.real_time
async def test_a_small_answer_that_is_not_read_is_forgotten_by_the_kernel_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel holds all of it, so the controller is done; the kernel has the same deadline."""
    monkeypatch.setattr(outflow_module, "SEND_S", 0.5)
    async with narrow(monkeypatch) as (limit, port):
        connection = await ask(port, times=1, path="/console/vendor/uPlot.esm.js")
        await until("it is gone", lambda: not len(limit))
        await until("the kernel has reset it", lambda: not queued(port))
        connection.close()


def queued(port: int) -> bool:
    """Whether a socket of the server still holds bytes for a reader."""
    rows = (row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(
        row[1].endswith(f":{port:04X}") and row[3] != "0A" and not row[4].startswith("00000000:")
        for row in rows
    )


@pytest.mark.real_time
async def test_a_slow_reader_gets_its_whole_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "REQUEST_S", 0.1)
    async with narrow(monkeypatch) as (_, port):
        connection = await ask(port, HONEST, times=1)
        size = (WEB / PUBLIC_FILE.removeprefix("/console/")).stat().st_size
        loop = asyncio.get_running_loop()
        taken = 0
        async with asyncio.timeout(LIMIT_S):
            while taken <= size:
                piece = await loop.sock_recv(connection, 8192)
                assert piece
                taken += len(piece)
                await asyncio.sleep(0.02)
        connection.close()
