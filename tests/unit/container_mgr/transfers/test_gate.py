"""A closed gate: nothing is sent, nothing stays unacknowledged, and time-outs wait."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from container_mgr.transfers.channel import Channel
from container_mgr.transfers.gate import SendGate

CLOSED = 7
"""TCP_CLOSE of the kernel's tcp_states.h."""


@contextmanager
def connected(gate: SendGate) -> Iterator[tuple[socket.socket, Channel, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    channel = Channel(ours, gate)
    try:
        yield ours, channel, theirs
    finally:
        channel.close()
        theirs.close()


def unacknowledged(one: socket.socket) -> int:
    return int(struct.unpack("=i", fcntl.ioctl(one.fileno(), termios.TIOCOUTQ, bytes(4)))[0])


def test_what_was_sent_is_acknowledged_and_no_more_is_sent() -> None:
    gate = SendGate()
    with connected(gate) as (ours, channel, theirs):
        channel.send(b"before", channel.deadline(5))
        gate.close()
        assert unacknowledged(ours) == 0
        sent = threading.Thread(target=channel.send, args=(b"after", channel.deadline(5)))
        sent.start()
        assert theirs.recv(100) == b"before"
        theirs.settimeout(0.05)
        with pytest.raises(TimeoutError):
            theirs.recv(100)
        gate.open()
        sent.join(5)
        theirs.settimeout(5)
        assert theirs.recv(100) == b"after"


def test_a_peer_that_takes_nothing_is_reset() -> None:
    gate = SendGate()
    with connected(gate) as (ours, channel, theirs):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        blocked: list[BaseException] = []

        def send() -> None:
            try:
                channel.send(bytes(64 << 20), channel.deadline(30))
            except OSError as error:
                blocked.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        while not unacknowledged(ours):
            pass
        gate.close(settle_s=0.05)
        assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSED
        gate.open()
        thread.join(10)
        assert isinstance(blocked[0], OSError)


@pytest.mark.parametrize("end", [Channel.abort, Channel.close])
def test_a_connection_that_ends_while_a_job_is_frozen_waits_for_no_acknowledgement(
    end: Callable[[Channel], None],
) -> None:
    gate = SendGate()
    with connected(gate) as (_, channel, theirs):
        gate.close()
        end(channel)
        theirs.settimeout(5)
        with pytest.raises(ConnectionResetError):
            theirs.recv(100)


def test_time_does_not_pass_while_a_job_is_frozen() -> None:
    gate = SendGate()
    gate.close()
    before = gate.clock()
    assert gate.clock() == before
    gate.close()  # a second freeze of a frozen job
    assert gate.clock() == before
    gate.open()
    gate.open()
    assert gate.clock() >= before
    assert gate.is_open


def test_a_connection_that_ends_while_its_gate_is_closed() -> None:
    gate = SendGate()
    with connected(gate) as (_, channel, _theirs):
        gate.close()
        failed: list[BaseException] = []

        def send() -> None:
            try:
                channel.send(b"x", channel.deadline(5))
            except OSError as error:
                failed.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        channel.abort()
        thread.join(5)
        assert isinstance(failed[0], ConnectionAbortedError)
        gate.open()
