"""os-ken's traps, each mended, and the door-keeper of the OpenFlow port."""

from __future__ import annotations

import asyncio
import queue
import re
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from os_ken.controller import event
from os_ken.lib import hub

from controller.devices.openflow import aggregators
from controller.devices.openflow.session import osken
from controller.devices.openflow.session.osken import ofproto as ofp
from tests.parts.openflow.fake_switch import FakeSwitch, message

ROOT = Path(__file__).parents[6]
PARTS = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}


class Numbered(event.EventBase):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Careless(osken.OSKenApp):
    def __init__(self) -> None:
        super().__init__()
        self.handled: queue.Queue[int] = queue.Queue()

    @osken.set_ev_cls(Numbered)
    def on_number(self, ev: Numbered) -> None:
        self.handled.put(ev.number)
        if ev.number == 1:
            raise ValueError("a handler's mistake")


def python(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_trap_1_an_exception_in_a_handler_does_not_end_the_event_loop():
    app = Careless()
    app.register_handler(Numbered, app.on_number)
    app.start()
    try:
        for number in range(4):
            app._send_event(Numbered(number), None)
        assert [app.handled.get(timeout=10) for _ in range(4)] == [0, 1, 2, 3]
    finally:
        app.stop()


def test_trap_2_an_event_wait_times_out():
    waiter = threading.Thread(target=hub.Event().wait, args=(0.01,), daemon=True)
    waiter.start()
    waiter.join(10)
    assert not waiter.is_alive()


SERVE = """
import asyncio, structlog, sys
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from controller.devices.openflow.aggregators import OpenFlowAggregators
from tests.parts.openflow.fake_switch import FakeSwitch
from tests.parts.openflow.sites import make_site
async def call(address):
    # Again and again, as switches do: on a machine that stands still the session may be lost.
    switch = FakeSwitch(0xA0)
    while True:
        await switch.connect(address)
        await switch.closed()
async def main():
    aggregators = OpenFlowAggregators(make_site(), lambda event: None)
    calling = asyncio.create_task(call(await aggregators.start()))
    while not aggregators.connected():
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    {then}
asyncio.run(main())
"""


def test_trap_3_threads_do_not_keep_a_process_alive():
    process = python(SERVE.format(then="return"))
    assert process.wait(30) == 0


def test_trap_3_sigterm_ends_a_process():
    stop = (
        "stop = asyncio.Event(); "
        "asyncio.get_running_loop().add_signal_handler(15, stop.set); "
        "print('waiting', flush=True); "
        "await stop.wait(); await aggregators.stop()"
    )
    process = python(SERVE.format(then=stop))
    assert process.stdout is not None
    assert [process.stdout.readline().strip() for _ in range(2)] == ["ready", "waiting"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


@pytest.mark.real_time
async def test_trap_4_reconnects_leave_no_threads_behind(control, monkeypatch):
    monkeypatch.setattr(aggregators, "QUICK_GREETINGS", 100)
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    before = threading.active_count()
    for _ in range(30):
        await switch.disconnect()
        await control.until(lambda: not control.aggregators.connected())
        await switch.connect(control.address)
        await control.until(control.aggregators.connected)
    await control.until(lambda: threading.active_count() <= before)


def listening_here() -> set[str]:
    """Addresses this process listens on, as the kernel prints them."""
    inodes = set()
    for conversation in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of a thread that has closed it since
            inodes.add(conversation.readlink().name.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and row[9] in inodes}


@pytest.fixture
def others() -> set[str]:
    """What other tests' servers in this process listen on."""
    return listening_here()


@pytest.mark.real_time
async def test_trap_5_only_the_given_address_is_served(others, control):
    assert listening_here() - others == {f"0100007F:{control.address[1]:04X}"}


async def test_trap_5_a_silent_switch_is_given_up(control):
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    liveness = control.session()._liveness
    await control.until(lambda: switch.seen[ofp.OFPT_ECHO_REQUEST] >= 10)
    await control.until(lambda: liveness._silent <= 1)  # its answers count as life
    assert control.aggregators.connected()
    switch.answers = False
    await control.until(lambda: not control.aggregators.connected())
    await switch.closed()


async def test_trap_6_a_second_claimant_of_a_datapath_id_is_refused(control):
    first, second = FakeSwitch(0xA0), FakeSwitch(0xA0)
    await first.connect(control.address)
    await control.until(control.aggregators.connected)
    await second.connect(control.address)
    await second.closed()
    assert control.aggregators.connected() == {"as0"}
    assert await control.aggregators.audit("as0") == []
    assert not second.seen[ofp.OFPT_MULTIPART_REQUEST]
    await first.disconnect()
    await control.until(lambda: not control.aggregators.connected())
    await second.connect(control.address)
    await control.until(control.aggregators.connected)


@pytest.mark.parametrize(("dpid", "auxiliary"), [(0xBAD, 0), (0xA0, 1)])
async def test_strangers_and_auxiliary_connections_are_refused(control, dpid, auxiliary):
    switch = FakeSwitch(dpid)
    switch.auxiliary = auxiliary
    await switch.connect(control.address)
    await switch.closed()
    assert not control.aggregators.connected()


@pytest.mark.parametrize(
    "poison",
    [
        message(ofp.OFPT_ECHO_REQUEST, version=1),
        b"\x04\x02\x00\x00\0\0\0\0",
        b"\x04\x02\x00\x07\0\0\0\0",
        message(ofp.OFPT_PACKET_IN, body=b"\xff" * 5) * 20,
        message(ofp.OFPT_PORT_STATUS, body=b"\xff" * 5) * 20,
    ],
)
async def test_nonsense_ends_one_session_and_no_other(control, poison):
    good, bad = FakeSwitch(0xA0), FakeSwitch(0xA1)
    for switch in (good, bad):
        await switch.connect(control.address)
    await control.until(lambda: len(control.aggregators.connected()) == 2)
    bad.send(poison)
    await bad.closed()
    await control.until(lambda: control.aggregators.connected() == {"as0"})
    assert await control.aggregators.audit("as0") == []


async def test_a_half_message_of_the_greatest_length_waits_without_harm(control):
    good, bad = FakeSwitch(0xA0), FakeSwitch(0xA1)
    for switch in (good, bad):
        await switch.connect(control.address)
    await control.until(lambda: len(control.aggregators.connected()) == 2)
    bad.send(b"\x04\x02\xff\xff\0\0\0\0" + bytes(100))
    assert await control.aggregators.audit("as0") == []


async def test_a_handshake_that_drags_on_is_cut(control):
    switch = FakeSwitch(0xA0)
    switch.answers = False
    await switch.connect(control.address)
    await switch.closed()


async def test_too_many_strangers_are_turned_away(control, monkeypatch):
    monkeypatch.setattr(osken, "HANDSHAKES_LIMIT", 1)
    quiet = [FakeSwitch(0xA0), FakeSwitch(0xA1), FakeSwitch(0xBAD)]
    late = FakeSwitch(0xA0)
    for switch in quiet:
        switch.answers = False
        await switch.connect(control.address)
    await late.connect(control.address)
    await late.closed()
    assert not any(switch.has_left() for switch in quiet)


async def test_all_switches_of_the_site_may_come_at_once(control, monkeypatch):
    """As they do when a new controller takes them over from the keeper."""
    monkeypatch.setattr(osken, "HANDSHAKES_LIMIT", 0)
    switches = [FakeSwitch(0xA0), FakeSwitch(0xA1)]
    for switch in switches:
        switch.answers = False  # none has said yet who it is
        await switch.connect(control.address)
    await control.until(lambda: len(control.sessions()) == len(switches))
    for switch in switches:
        await switch.disconnect()


async def test_answers_to_a_controller_before_this_one_do_no_harm(control):
    """The successor of one that died in a handshake gets them in the inherited connection."""
    switch = Answering(0xA0)
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    assert control.aggregators.carrier("as0") == {1: True, 2: True}
    assert await control.aggregators.audit("as0") == []
    assert not switch.has_left()


class Answering(FakeSwitch):
    """Answers what a predecessor had asked before it answers who it is."""

    def _received(self, frame: bytes) -> None:
        if frame[1] == ofp.OFPT_FEATURES_REQUEST:
            no_ports = struct.pack("!HH4x", ofp.OFPMP_PORT_DESC, 0)
            self.send(message(ofp.OFPT_MULTIPART_REPLY, 77, no_ports))
            super()._received(frame)
        super()._received(frame)


async def test_an_overfull_send_queue_ends_the_session_and_never_blocks(control, monkeypatch):
    monkeypatch.setattr(osken, "SEND_QUEUE_BYTES", 10)
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await asyncio.wait_for(switch.closed(), 20)


@pytest.mark.real_time
async def test_what_the_socket_does_not_take_at_once_follows_in_order(control):
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await control.until(lambda: "as0" in control.aggregators.connected())
    session = control.session()
    before = switch.seen[ofp.OFPT_ECHO_REQUEST]
    echo = message(ofp.OFPT_ECHO_REQUEST, 9, bytes(4000))
    # The switch reads on this very loop, so that the socket is full long before the last of them.
    assert all(session.send(echo) for _ in range(4000))
    assert session._queued_bytes
    await control.until(lambda: switch.seen[ofp.OFPT_ECHO_REQUEST] >= before + 4000)
    await control.until(lambda: not session._queued_bytes)
    assert "as0" in control.aggregators.connected()


def test_eventlet_is_never_imported():
    script = (
        "import sys, controller.devices.openflow.aggregators; sys.exit('eventlet' in sys.modules)"
    )
    assert python(script).wait(60) == 0


def test_one_module_alone_imports_os_ken():
    importing = re.compile(r"^\s*(import|from)\s+os_ken", re.MULTILINE)
    ours = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    found = [path.name for path in ours if importing.search(path.read_text(encoding="utf-8"))]
    assert found == ["osken.py"]
