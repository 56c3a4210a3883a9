"""Too many connections, and those that dawdle: who has to go, and who is answered all the same."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import resource
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from base import clock
from controller.api.server import connections as connections_module
from controller.api.server.connections import (
    MAX_CONNECTIONS,
    REQUEST_S,
    RESERVED_FILES,
    ConnectionLimit,
    connections_possible,
)
from controller.api.server.outflow import Outflow
from controller.daemon.listen import PeopleOptions
from tests.parts.api.served import serving

CONNECTIONS = 10_000
DRIPS = (
    b"",
    b"GET /api/v1/health HT",
    b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n{",
    b"\x16\x03\x01",
)


class Visitor:
    def __init__(self, address: str = "10.0.0.1") -> None:
        self.address = address
        self.out = False

    def close(self) -> None:
        self.out = True

    def outflow(self) -> Outflow | None:
        return None


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_oldest_idle_one_makes_room() -> None:
    limit = ConnectionLimit(2)
    first, second, third = Visitor(), Visitor(), Visitor()
    assert all(limit.enter(client) for client in (first, second, third))
    assert (first.out, second.out, third.out) == (True, False, False)
    assert len(limit) == 2


def test_who_is_being_served_stays() -> None:
    limit = ConnectionLimit(2)
    served, idle, third, fourth = Visitor(), Visitor(), Visitor(), Visitor()
    assert limit.enter(served)
    limit.busy(served)
    assert limit.enter(idle)
    assert limit.enter(third)
    assert idle.out
    limit.busy(third)
    assert not limit.enter(fourth)
    assert not (served.out or third.out)
    limit.idle(served)
    assert limit.enter(fourth)
    assert served.out


def test_the_address_with_most_of_them_makes_room_first() -> None:
    limit = ConnectionLimit(4)
    honest = Visitor("10.0.0.9")
    assert limit.enter(honest)
    flood = [Visitor() for _ in range(20)]
    assert all(limit.enter(client) for client in flood)
    assert not honest.out
    assert [client.out for client in flood] == [True] * 17 + [False] * 3


def test_a_request_that_takes_too_long_to_arrive_is_not_waited_for() -> None:
    clock = Clock()
    limit = ConnectionLimit(10, clock)
    slow, served, kept = Visitor(), Visitor(), Visitor()
    for client in (slow, served, kept):
        assert limit.enter(client)
    limit.busy(served)
    limit.busy(kept)
    clock.now = REQUEST_S
    limit.idle(slow)  # a further drop of the same request buys no time
    limit.idle(kept)
    clock.now += 1
    limit.sweep()
    assert (slow.out, served.out, kept.out) == (True, False, False)


def test_who_left_is_forgotten() -> None:
    limit = ConnectionLimit(1)
    gone, there = Visitor(), Visitor()
    assert limit.enter(gone)
    limit.leave(gone)
    limit.idle(gone)
    assert len(limit) == 0
    assert limit.enter(there)
    assert not gone.out


@pytest.mark.parametrize(
    ("files", "connections"),
    [(1024, 1024 - RESERVED_FILES), (1_000_000, MAX_CONNECTIONS), (64, 16)],
)
def test_connections_leave_files_for_the_rest(
    monkeypatch: pytest.MonkeyPatch, files: int, connections: int
) -> None:
    monkeypatch.setattr(connections_module.resource, "getrlimit", lambda _: (files, files))
    assert connections_possible() == connections


async def test_a_drip_is_cut_off_and_a_whole_request_is_answered() -> None:
    async with serving(PeopleOptions(open=True)) as (_, port), asyncio.timeout(2 * REQUEST_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(ConnectionError):
            for _ in range(10_000):
                writer.write(b"G")
                await writer.drain()
                if reader.at_eof() or writer.transport.is_closing():
                    break
                await asyncio.sleep(0.25)
            assert await reader.read() == b""
        writer.close()
        async with httpx.AsyncClient(trust_env=False) as client:
            reply = await client.get(f"http://127.0.0.1:{port}/api/v1/health")
        assert reply.status_code == 200


@contextlib.contextmanager
def many_files() -> Iterator[int]:
    """Let this process hold its side of the flood, as far as the machine lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 512
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    try:
        yield max(soft, most) - 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def asked(port: int) -> int:
    """Send an honest request on a connection of its own; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/api/v1/health")
        return connection.getresponse().status


def until(what: str, condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = clock.monotonic() + limit_s
    while not condition():
        assert clock.monotonic() < end, what
        clock.sleep(0.02)


@pytest.mark.real_time
def test_ten_thousand_connections_take_bounded_files_and_memory(
    tmp_path: Path,
) -> None:
    """A server with 1,024 files; each connection says nothing, or a part of something."""
    limited = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (1024, 1024)); "
    code = limited + "import runpy; runpy.run_module('tests.parts.api.served', run_name='__main__')"
    server = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    held: deque[socket.socket] = deque()
    try:
        until("the server starts", (tmp_path / "port").exists)
        port = int((tmp_path / "port").read_text())
        with many_files() as most:
            assert asked(port) == 200
            before = rss_bytes(server.pid)
            for number in range(CONNECTIONS):
                if len(held) >= most:
                    held.popleft().close()
                held.append(socket.create_connection(("127.0.0.1", port), timeout=30))
                with contextlib.suppress(OSError):  # it was turned out already
                    held[-1].sendall(DRIPS[number % len(DRIPS)])
                if number % 250 == 249:
                    assert asked(port) == 200
            files = len(list(Path(f"/proc/{server.pid}/fd").iterdir()))
            grown = rss_bytes(server.pid) - before
        assert server.poll() is None
        assert files <= 1024 - RESERVED_FILES + 64
        assert grown < 96 * 2**20, f"{grown} bytes for {files} connections"
    finally:
        for connection in held:
            connection.close()
        server.terminate()
        assert server.wait(30) is not None
