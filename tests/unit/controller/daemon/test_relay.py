"""The process that keeps the aggregators' connections while controllers come and go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from controller.daemon import relay
from controller.daemon.handover import HandoverListener
from controller.daemon.relay import Relay
from controller.devices.aggregators import AggregatorConnected, AggregatorEvent
from controller.devices.openflow.aggregators import OpenFlowAggregators
from tests.parts.openflow.fake_switch import FakeSwitch, message
from tests.parts.openflow.sites import make_site

HELLO, ECHO_REQUEST, ECHO_REPLY, FEATURES, FLOW_MOD, PORT_STATUS = 0, 2, 3, 5, 14, 12
PATIENCE_S = 20.0


@dataclass
class Stage:
    """A relay, and a clock that stands still."""

    now: float = 1000.0
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    relay: Relay = field(init=False)

    def __post_init__(self) -> None:
        self.relay = Relay(self.listener, lambda: self.now)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            self.relay.turn(0.001)

    def call(self) -> socket.socket:
        """A switch calls and says hello."""
        switch = socket.create_connection(self.listener.getsockname())
        switch.setblocking(False)
        switch.send(message(HELLO, 7))
        return switch

    def controller(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.relay.attach(ours)
        theirs.setblocking(False)
        return theirs

    def given(self, control: socket.socket) -> socket.socket:
        """The next connection that a controller is handed."""
        found: list[socket.socket] = []

        def take() -> bool:
            try:
                end, peer = HandoverListener(control, ("", 0)).accept()
            except BlockingIOError:
                return False
            assert (peer.host, peer.port > 0) == ("127.0.0.1", True)
            end.setblocking(False)
            found.append(end)
            return True

        self.until(take)
        return found[0]

    def hears(self, end: socket.socket, count: int) -> bytes:
        """The next ``count`` bytes at ``end``."""
        heard = bytearray()

        def more() -> bool:
            with contextlib.suppress(BlockingIOError):
                heard.extend(end.recv(count - len(heard)))
            return len(heard) == count

        self.until(more)
        return bytes(heard)

    def hung_up(self, end: socket.socket) -> bool:
        try:
            return end.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.relay.close()
    made.listener.close()


def test_what_either_side_says_reaches_the_other(stage: Stage) -> None:
    control = stage.controller()
    switch = stage.call()
    near = stage.given(control)
    assert stage.hears(near, 8) == message(HELLO, 7)
    said = message(HELLO, 1) + message(FEATURES, 2)
    near.send(said)
    assert stage.hears(switch, 16) == said
    switch.send(message(ECHO_REQUEST, 3, b"x")[:5])
    stage.relay.turn(0)
    switch.send(message(ECHO_REQUEST, 3, b"x")[5:])
    assert stage.hears(near, 9) == message(ECHO_REQUEST, 3, b"x")


def test_a_switch_keeps_its_connection_when_the_controller_dies(stage: Stage) -> None:
    control = stage.controller()
    switch = stage.call()
    near = stage.given(control)
    whole, torn = message(FLOW_MOD, 2, b"a" * 40), message(FLOW_MOD, 3, b"b" * 40)
    near.send(message(HELLO, 1) + whole + torn[:20])
    stage.hears(near, 8)
    near.close()
    control.close()
    stage.relay.turn(0.01)
    stage.relay.detach()
    assert stage.hears(switch, 8 + len(whole)) == message(HELLO, 1) + whole  # and not the torn one
    stage.now += 3600
    switch.send(message(PORT_STATUS, 9, b"late") + message(ECHO_REQUEST, 4, b"there?"))
    assert stage.hears(switch, 14) == message(ECHO_REPLY, 4, b"there?")

    successor = stage.given(stage.controller())
    assert stage.hears(successor, 8) == message(HELLO, 7)  # as from a switch that has just called
    successor.send(message(HELLO, 5) + message(FEATURES, 6))
    assert stage.hears(switch, 8) == message(FEATURES, 6)  # it has been greeted
    switch.send(message(PORT_STATUS, 9, b"news"))
    assert stage.hears(successor, 12) == message(PORT_STATUS, 9, b"news")


def test_a_switch_that_calls_while_there_is_no_controller_is_handed_to_the_next(
    stage: Stage,
) -> None:
    switch = stage.call()
    stage.relay.turn(0.01)
    near = stage.given(stage.controller())
    assert stage.hears(near, 8) == message(HELLO, 7)
    near.send(message(HELLO, 1))
    assert stage.hears(switch, 8) == message(HELLO, 1)


def test_a_living_controller_that_hangs_up_is_obeyed(stage: Stage) -> None:
    control = stage.controller()
    switch, other = stage.call(), stage.call()
    near, kept = stage.given(control), stage.given(control)
    stage.hears(near, 8)
    stage.hears(kept, 8)
    near.close()
    stage.until(lambda: any(conn.left_at is not None for conn in stage.relay._connections))
    stage.now += relay.DOUBT_S
    stage.until(lambda: stage.hung_up(switch) or stage.hung_up(other))
    kept.send(message(HELLO, 1))
    alive = other if stage.hung_up(switch) else switch
    assert stage.hears(alive, 8) == message(HELLO, 1)


def test_a_death_that_shows_late_is_no_hanging_up(stage: Stage) -> None:
    """The machine stands still in the middle of a look, and only the next one shows the death."""
    control = stage.controller()
    switch = stage.call()
    near = stage.given(control)
    near.send(message(HELLO, 1))
    assert stage.hears(switch, 8) == message(HELLO, 1)
    near.close()
    stage.until(lambda: any(conn.left_at is not None for conn in stage.relay._connections))
    still, dead = os.pipe(), os.pipe()

    def stand_still() -> None:
        os.read(still[0], 1)
        stage.now += 60
        os.write(dead[1], b"x")

    stage.relay.watch(still[0], stand_still)
    stage.relay.watch(dead[0], stage.relay.detach)  # as the keeper does
    os.write(still[1], b"x")
    stage.relay.turn(0)
    stage.relay.turn(0)
    control.close()
    for end in (still[0], dead[0]):
        stage.relay.unwatch(end)
    for end in (*still, *dead):
        os.close(end)
    successor = stage.given(stage.controller())
    assert stage.hears(successor, 8) == message(HELLO, 7)
    assert not stage.hung_up(switch)


@pytest.mark.parametrize("attached", [True, False])
def test_a_message_shorter_than_its_header_ends_the_connection(
    stage: Stage, attached: bool
) -> None:
    control = stage.controller() if attached else None
    switch = stage.call()
    if control is not None:
        stage.hears(near := stage.given(control), 8)
    switch.send(b"\x04\x02\x00\x03\x00\x00\x00\x00")
    stage.until(lambda: stage.hung_up(switch))
    if control is not None:
        stage.until(lambda: stage.hung_up(near))


def test_a_switch_that_leaves_is_gone_for_the_controller_too(stage: Stage) -> None:
    control = stage.controller()
    switch = stage.call()
    near = stage.given(control)
    stage.hears(near, 8)
    switch.close()
    stage.until(lambda: stage.hung_up(near))


def test_a_side_that_does_not_read_is_not_read_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_WAITING_BYTES", 1 << 16)
    control = stage.controller()
    switch = stage.call()
    near = stage.given(control)
    stage.hears(near, 8)
    big = message(PORT_STATUS, 1, b"z" * 60_000)
    sent = 0
    for _ in range(3000):  # until nothing more goes in, regardless of the sockets' own buffers
        try:
            sent += switch.send(big[sent % len(big) :])
        except BlockingIOError:
            before = sent
            for _ in range(5):
                stage.relay.turn(0.001)
            try:
                sent += switch.send(big[sent % len(big) :])
            except BlockingIOError:
                if before == sent:
                    break
        stage.relay.turn(0)
    else:
        pytest.fail("the relay takes without end")
    (conn,) = stage.relay._connections
    assert len(conn.to_near) <= (1 << 16) + (1 << 17)
    heard = bytearray()
    stage.until(lambda: heard.extend(_available(near)) or len(heard) >= sent - sent % len(big))
    assert bytes(heard[: len(big)]) == big


def _available(end: socket.socket) -> bytes:
    try:
        return end.recv(1 << 20)
    except BlockingIOError:
        return b""


def test_more_switches_than_the_queue_between_the_two_has_room_for(stage: Stage) -> None:
    switches = []
    for _ in range(400):
        switches.append(stage.call())
        stage.relay.turn(0)
    stage.until(lambda: len(stage.relay._connections) == 400)
    control = stage.controller()
    ends = [stage.given(control) for _ in range(400)]
    for end in ends:
        assert stage.hears(end, 8) == message(HELLO, 7)
        end.close()
    for switch in switches:
        switch.close()


@pytest.mark.real_time
async def test_the_controllers_openflow_side_works_over_it() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    relay = Relay(listener)
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            relay.turn(0.01)

    posted: list[AggregatorEvent] = []
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    relay.attach(ours)
    address = listener.getsockname()
    aggregators = OpenFlowAggregators(make_site(), posted.append, HandoverListener(theirs, address))
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert await aggregators.start() == address
        switch = FakeSwitch(0xA0)
        await switch.connect(address)
        async with asyncio.timeout(PATIENCE_S):
            while not posted:  # noqa: ASYNC110 - posted by another thread
                await asyncio.sleep(0.01)
        assert isinstance(posted[0], AggregatorConnected)
        await aggregators.stop()
        async with asyncio.timeout(PATIENCE_S):
            await switch.closed()
    finally:
        over.set()
        thread.join()
        relay.close()
        listener.close()
