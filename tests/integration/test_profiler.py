"""The process that asks a worker's profiler: its network, its rights, and a hostile worker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from container_mgr.recordings import profiler, xspace
from container_mgr.recordings.asking import AskError, ask
from tests.parts.agent import profiles
from tests.parts.agent.profiler import worker
from tests.parts.agent.profiles import environment

pytestmark = pytest.mark.root

PORT = 12345
SERVER = f"""
import time
from concurrent.futures import ThreadPoolExecutor
import grpc
from tests.parts.agent import profiles
server = grpc.server(ThreadPoolExecutor(2))
def answer(request, context):
    time.sleep(0.5)
    return profiles.golden()
method = grpc.unary_unary_rpc_method_handler(answer)
server.add_generic_rpc_handlers(
    (grpc.method_handlers_generic_handler("tensorflow.ProfilerService", {{"Profile": method}}),)
)
server.add_insecure_port("10.99.0.1:{PORT}")
server.start()
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def pidfd_of(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.fixture
def elsewhere() -> Iterator[subprocess.Popen[str]]:
    """A worker in a network namespace of its own."""
    prepare = 'ip link set lo up && ip addr add 10.99.0.1/32 dev lo && exec "$@"'
    process = subprocess.Popen(
        ("unshare", "--net", "sh", "-c", prepare, "sh", sys.executable, "-c", SERVER),
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


async def test_the_worker_is_asked_in_its_own_network(elsewhere: subprocess.Popen[str]) -> None:
    address = f"10.99.0.1:{PORT}"
    with pidfd_of(elsewhere.pid) as pidfd:
        assert await ask(pidfd, address, 0.5) == xspace.read(profiles.golden())
    with pidfd_of(os.getpid()) as pidfd, pytest.raises(AskError):
        await ask(pidfd, address, 0.1)


async def test_a_worker_that_ends_while_it_is_asked(elsewhere: subprocess.Popen[str]) -> None:
    with pidfd_of(elsewhere.pid) as pidfd:
        asking = asyncio.ensure_future(ask(pidfd, f"10.99.0.1:{PORT}", 0.5))
        await asyncio.to_thread(wait_until_connected, elsewhere.pid)
        elsewhere.kill()
        with pytest.raises(AskError, match="closed"):
            await asking


def wait_until_connected(pid: int) -> None:
    """Wait until somebody is connected in the network of ``pid``."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        tables = (Path(f"/proc/{pid}/net") / name for name in ("tcp", "tcp6"))
        lines = [line for table in tables for line in table.read_text().splitlines()[1:]]
        if any(line.split()[3] == "01" for line in lines):
            return
        time.sleep(0.01)
    raise AssertionError("nobody has connected")


def test_it_has_no_rights() -> None:
    program = (
        "import os, resource\n"
        "from container_mgr.recordings import profiler\n"
        "profiler.confine(os.pidfd_open(os.getpid()))\n"
        "status = open('/proc/self/status').read()\n"
        "print(os.getresuid(), os.getresgid(), os.getgroups())\n"
        "print([l.split()[1] for l in status.splitlines() if l.startswith(('CapEff', 'CapPrm'))])\n"
        "print([l.split()[1] for l in status.splitlines() if l.startswith('NoNewPrivs')])\n"
        "print(resource.getrlimit(resource.RLIMIT_AS), resource.getrlimit(resource.RLIMIT_FSIZE))\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", program),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    nobody = (profiler.NOBODY,) * 3
    assert done.stdout.splitlines() == [
        f"{nobody} {nobody} []",
        "['0000000000000000', '0000000000000000']",
        "['1']",
        f"{(1 << 30,) * 2} {(0, 0)}",
    ]


def bomb(inner: bytes) -> bytes:
    """Return a host plane with one line and as many parts as an answer may have."""

    def field(number: int, data: bytes) -> bytes:
        size, length = len(data), bytearray()
        while size > 127:
            length.append(size & 127 | 128)
            size >>= 7
        return bytes([number << 3 | 2]) + bytes([*length, size]) + data

    room = profiler.MOST_REPLY - 200
    line = field(3, inner * (room // len(inner)))
    times = field(1, environment(profiles.BEGAN_AT, profiles.BEGAN_AT + 10**9).SerializeToString())
    return field(8, field(1, field(2, b"/host:CPU") + line) + times)


@pytest.mark.parametrize(
    "data",
    [
        bomb(b"\x22\x00"),
        bomb(b"\x22\x02\x08\x01"),
        b"\x42\x80\x80\x80\x08" + b"\x0a\x00" * 2**23,
        bytes(64 * 2**20),
    ],
    ids=["events", "events with a kind", "planes", "too long"],
)
async def test_a_hostile_answer_costs_a_bounded_time_and_memory(data: bytes) -> None:
    """The process may die of it; its limits are those of the test above."""
    with (
        worker(lambda request, context: data) as address,
        pidfd_of(os.getpid()) as pidfd,
        pytest.raises(AskError, match=r"invalid|silent|closed"),
    ):
        await ask(pidfd, address, 0.1)
