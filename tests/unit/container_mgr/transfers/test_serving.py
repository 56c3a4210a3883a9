"""Hostile peers: each can at worst end its own connection."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from agentlink.checkpoints import HoldingKind, KeepCopy
from base import clock
from container_mgr.transfers import keeping, serving, wire
from container_mgr.transfers.channel import Channel
from container_mgr.transfers.gate import SendGate
from container_mgr.transfers.pulling import Stop
from container_mgr.transfers.serving import PartListener
from container_mgr.transfers.wire import AskBytes, AskPart, FrameKind, PeerRefusalError, PeerSession
from tests.integration.waiting import until
from tests.unit.container_mgr.transfers.fakes import FOLDER, KEY, other
from tests.unit.container_mgr.transfers.rig import Rig
from tests.unit.container_mgr.transfers.rig import rig as make_rig


def met(rig: Rig) -> PeerSession:
    source = rig.source(next(iter(rig.giver.parts.values())))
    return rig.dial(source, Stop())[1]


def soon(session: PeerSession) -> float:
    return session.channel.deadline(10)


def works(rig: Rig) -> bool:
    part = next(iter(rig.giver.parts.values()))
    keeping.keep(rig.keeper(), KeepCopy(0, KEY, rig.source(part)), Stop())
    return rig.last().kind is HoldingKind.COPY


def test_noise_before_the_greeting(rig: Rig) -> None:
    rig.part(1)
    for noise in (
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 10_000,
        b"LLP1\xff",
        b"LLP1\x00" + bytes(32),
    ):
        # Where it is refused early, the connection may be reset already.
        with (
            socket.create_connection(("127.0.0.1", rig.port), timeout=5) as one,
            suppress(OSError),
        ):
            one.sendall(noise)
            one.shutdown(socket.SHUT_WR)
    assert works(rig)


def test_a_greeting_torn_at_every_byte(rig: Rig) -> None:
    rig.part(1)
    name = FOLDER.name.encode()
    greeting = b"LLP1" + bytes([len(name)]) + name + bytes(32)
    for length in range(len(greeting)):
        with (
            socket.create_connection(("127.0.0.1", rig.port), timeout=5) as one,
            suppress(OSError),
        ):
            one.sendall(greeting[:length])
    assert works(rig)


def test_silent_connections_give_way_to_new_ones(rig: Rig) -> None:
    """A rank's own program can connect; it must not keep its partner out."""
    rig.part(1)
    silent = [
        socket.create_connection(("127.0.0.1", rig.port), timeout=5)
        for _ in range(3 * serving.MAX_HALF_OPEN)
    ]
    assert works(rig)
    for one in silent:
        one.close()


class Stopped:
    """A clock that goes on only when a test says so."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)


def test_connections_without_end_are_accepted_at_a_rate(tmp_path: Path) -> None:
    """A rank's own program can connect in a loop; that costs it, and not the agent."""
    stopped, accepted = Stopped(), list[socket.socket]()

    class Counting(SendGate):
        def add(self, one: socket.socket) -> None:
            accepted.append(one)
            super().add(one)

    with clock.replaced(stopped), make_rig(tmp_path, gate=Counting()) as one:
        callers = [
            socket.create_connection(("127.0.0.1", one.port), timeout=5)
            for _ in range(serving.BURST + 1)
        ]
        until(lambda: len(accepted), lambda n: n >= serving.BURST, limit_s=30.0)
        callers += [
            socket.create_connection(("127.0.0.1", one.port), timeout=5) for _ in range(120)
        ]
        time.sleep(0.2)
        assert len(accepted) <= serving.BURST + 2
        stopped.now += 1.0
        one.serving.add(
            PartListener(socket.create_server(("127.0.0.1", 0)), FOLDER.name, SendGate())
        )
        until(lambda: len(accepted), lambda n: n >= serving.BURST + serving.RATE, limit_s=30.0)
        for caller in callers:
            caller.close()


def test_a_job_does_not_reach_another_jobs_parts(rig: Rig) -> None:
    rig.part(1)
    rig.giver.folders["blue.12345678"] = other()
    with socket.create_connection(("127.0.0.1", rig.port), timeout=5) as plain:
        channel = Channel(plain, SendGate())
        try:
            # Its own key, at the listener of another job.
            wire.greet(channel, "blue.12345678", other().key, os.urandom(32), channel.deadline(5))
        except (wire.NotTrustedError, OSError):
            return
    raise AssertionError("another job was trusted")


def test_requests_out_of_bounds(rig: Rig) -> None:
    part = rig.part(1)
    session = met(rig)
    place = part.place
    session.send(*wire.dump_ask(AskBytes(0, 1, 0)), soon(session))
    refused(session, "no such bytes")  # no part was asked for
    session.send(*wire.dump_ask(AskPart(KEY, 1, "../gpu1", parity=False)), soon(session))
    refused(session, "does not hold")
    session.send(*wire.dump_ask(AskPart(KEY, 1, place.endpoint, parity=False)), soon(session))
    size = wire.receive_head(session, soon(session)).manifest.bytes
    session.send(*wire.dump_ask(AskBytes(size, 1, 0)), soon(session))
    refused(session, "no such bytes")
    session.send(*wire.dump_ask(AskBytes(size, 0, 0)), soon(session))
    assert session.expect(FrameKind.DATA, 100, soon(session)) == b"{}"
    session.channel.close()
    assert works(rig)


def refused(session: PeerSession, why: str) -> None:
    try:
        session.expect(FrameKind.DATA, 100, soon(session))
    except PeerRefusalError as error:
        assert why in str(error)
        return
    raise AssertionError("not refused")


def test_a_peer_that_takes_nothing_holds_only_its_own_thread(rig: Rig) -> None:
    part = rig.part(1, 8 << 20)
    session = met(rig)
    ask = AskPart(KEY, 1, part.place.endpoint, parity=False)
    session.send(*wire.dump_ask(ask), soon(session))
    wire.receive_head(session, soon(session))
    session.send(*wire.dump_ask(AskBytes(0, 8 << 20, 0)), soon(session))
    assert works(rig)
    session.channel.close()


def test_too_many_transfers_of_one_job(rig: Rig) -> None:
    part = rig.part(1)
    sessions = [met(rig) for _ in range(serving.MAX_OF_JOB + 4)]
    ask = wire.dump_ask(AskPart(KEY, 1, part.place.endpoint, parity=False))
    answered = 0
    for session in sessions:
        try:
            session.send(*ask, soon(session))
            wire.receive_head(session, soon(session))
            answered += 1
        except OSError:
            continue
    for session in sessions:  # not before: each that ends makes room for one that is met late
        session.channel.close()
    assert answered <= serving.MAX_OF_JOB


def test_a_folder_that_is_not_known_is_as_a_wrong_key(tmp_path: Path) -> None:
    with make_rig(tmp_path, folder="blue.12345678") as one:
        part = one.part(1)
        keeping.keep(one.keeper(), KeepCopy(0, KEY, one.source(part)), Stop())
        assert "is not an agent of this job" in one.last().why


def test_connections_end_with_their_listener(tmp_path: Path) -> None:
    with make_rig(tmp_path) as one:
        one.part(1)
        session = met(one)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            session.channel.receive(1, session.channel.deadline(1))
        except ConnectionError:
            return
        except TimeoutError:
            continue
    raise AssertionError("the connection is open")
