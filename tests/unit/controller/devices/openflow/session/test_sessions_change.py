"""A switch that comes back before its old session's askers were woken, and what else may cross.

The loop takes everything that came while it was busy in one go: an answer, the end of the session
and its successor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from controller.devices.aggregators import AggregatorConnected, AggregatorError, AggregatorEvent
from controller.devices.openflow.aggregators import OpenFlowAggregators
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.session import app, conversation
from controller.devices.openflow.session.app import Reply, SessionDown, SessionUp
from controller.devices.openflow.session.osken import ofproto as ofp
from controller.devices.openflow.session.osken import parser
from controller.devices.openflow.wire.framing import take_frames
from tests.parts.openflow.fake_switch import FakeSwitch
from tests.parts.openflow.sites import attach, make_site
from tests.unit.controller.devices.openflow.conftest import Control

DEADLINE_S = 30.0
PLACES = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2), ("gpu2", "as1", 1))
SITE = make_site()


def program(jobs: Mapping[str, tuple[str, ...]] | None = None) -> Any:
    red = {"red": ("gpu0", "gpu1", "gpu2")}
    return compiler.compile(SITE, 1, PLACES, red if jobs is None else jobs)["as0"]


class Silent:
    """A session that keeps what it is sent; its answers are the test's to give."""

    def __init__(self, dpid: int) -> None:
        self.id = dpid
        self.over = False
        self.asked: list[Any] = []
        self.sent = bytearray()
        self._xid = 0

    def set_xid(self, msg: Any) -> int:
        self._xid += 1
        msg.xid = self._xid
        return self._xid

    def take_xids(self, count: int) -> list[int]:
        self._xid += count
        return list(range(self._xid - count + 1, self._xid + 1))

    def send_msg(self, msg: Any) -> bool:
        if not self.over:
            self.asked.append(msg)
        return not self.over

    def send(self, data: bytes) -> bool:
        if not self.over:
            self.sent += data
        return not self.over

    def close(self) -> None:
        self.over = True

    def changes(self) -> int:
        """How many rules it was told to add."""
        return sum(frame[1] == ofp.OFPT_FLOW_MOD for frame in take_frames(bytearray(self.sent)))


class Crossing:
    """A facade whose loop's inbox the test fills itself."""

    def __init__(self) -> None:
        self.events: list[AggregatorEvent] = []
        self.aggregators = OpenFlowAggregators(SITE, self.events.append)

    def comes(self) -> Silent:
        """A switch has finished its handshake."""
        session: Any = Silent(0xA0)
        self.aggregators._handle(SessionUp(session, {1: True}))
        return session

    def goes(self, session: Any) -> None:
        """The session is over."""
        session.over = True
        self.aggregators._handle(SessionDown(session))

    def answers(self, session: Any) -> None:
        """The switch, whose tables are empty, answers the oldest question."""
        msg = session.asked.pop(0)
        self.aggregators._handle(Reply(session, msg.xid, SimpleNamespace(body=[], flags=0)))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():  # noqa: ASYNC110 - conditions of any kind, on purpose
                await asyncio.sleep(0)

    async def serves(self, session: Silent, condition: Callable[[], object]) -> None:
        """The switch answers until ``condition`` holds."""
        while not condition():
            await self.until(lambda: session.asked or condition())
            if session.asked:
                self.answers(session)

    async def joined(self) -> Silent:
        session = self.comes()
        await self.serves(session, self.aggregators.connected)
        return session


async def test_a_greeting_that_fails_does_not_end_the_next_session() -> None:
    crossing = Crossing()
    old = crossing.comes()
    await crossing.until(lambda: old.asked)
    crossing.goes(old)
    successor = crossing.comes()
    await crossing.serves(successor, crossing.aggregators.connected)
    assert not successor.over
    assert crossing.events == [AggregatorConnected("as0")]


async def test_a_session_is_announced_only_once_its_own_tables_are_known() -> None:
    crossing = Crossing()
    old = crossing.comes()
    for question in (parser.OFPBarrierRequest, parser.OFPFlowStatsRequest):
        await crossing.until(lambda: old.asked)
        assert isinstance(old.asked[0], question)
        crossing.answers(old)
    await crossing.until(lambda: old.asked)
    crossing.answers(old)  # the last of the greeting
    crossing.goes(old)
    successor = crossing.comes()
    await crossing.until(lambda: successor.asked)
    assert crossing.events == []
    assert not crossing.aggregators.connected()
    await crossing.serves(successor, crossing.aggregators.connected)
    assert crossing.events == [AggregatorConnected("as0")]


@pytest.mark.parametrize("batch", range(4))
async def test_a_change_goes_on_in_no_other_session(batch: int) -> None:
    """The switch comes back with empty tables in the moment of the answer to any barrier."""
    crossing = Crossing()
    wanted = program()
    old = await crossing.joined()
    install = asyncio.create_task(
        crossing.aggregators.install({"as0": wanted}, deadline_s=DEADLINE_S)
    )
    for _ in range(batch + 1):
        await crossing.until(lambda: old.asked)
        crossing.answers(old)
    crossing.goes(old)
    successor = crossing.comes()
    await crossing.serves(successor, crossing.aggregators.connected)
    with pytest.raises(AggregatorError) as caught:
        await install
    assert caught.value.code == "unavailable"
    assert successor.changes() == len(wanted.rules)
    assert not crossing.aggregators.lacking({"as0": wanted})


async def test_an_audit_does_not_take_a_change_that_waits_behind_it_for_drift(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    old, new = program(jobs={}), program()
    await control.aggregators.install({"as0": old}, deadline_s=DEADLINE_S)
    asked: list[tuple[int, int]] = []
    answer = switch.multipart
    monkeypatch.setattr(switch, "multipart", lambda *question: asked.append(question))
    audit = asyncio.create_task(control.aggregators.audit("as0"))
    await control.until(lambda: asked)
    conversation = control.conversation()
    install = asyncio.create_task(control.aggregators.install({"as0": new}, deadline_s=DEADLINE_S))
    await control.until(lambda: conversation.wanted is new)
    monkeypatch.setattr(switch, "multipart", answer)
    answer(*asked[0])
    assert await audit == []
    await install
    assert {rule for rule, _ in switch.rules.values()} == set(new.rules)


async def test_an_audit_finds_what_a_change_that_gave_up_has_left_undone(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    asked: list[tuple[int, int]] = []
    answer = switch.multipart
    monkeypatch.setattr(switch, "multipart", lambda *question: asked.append(question))
    audit = asyncio.create_task(control.aggregators.audit("as0"))
    await control.until(lambda: asked)
    with pytest.raises(AggregatorError):
        await control.aggregators.install({"as0": program()}, deadline_s=0.01)
    monkeypatch.setattr(switch, "multipart", answer)
    answer(*asked[0])
    assert len(await audit) > len(program().rules)  # and the group


async def test_ports_that_come_while_a_session_is_announced_are_no_obstacle(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The switch tells of them on the session's thread, the announcement is made on another."""
    carrier = app._has_carrier

    def meanwhile(port: Any) -> bool:
        for session in control.sessions():
            session.ports[1000 + len(session.ports)] = port
        return carrier(port)

    monkeypatch.setattr(app, "_has_carrier", meanwhile)
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
    assert control.aggregators.carrier("as0") == {1: True, 2: True}


async def test_a_greeting_that_breaks_is_made_again(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = conversation.Conversation._read

    async def broken(*_: Any) -> Any:
        raise ValueError("unforeseen content of the tables")

    monkeypatch.setattr(conversation.Conversation, "_read", broken)
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address)
    await control.until(switch.has_left)
    monkeypatch.setattr(conversation.Conversation, "_read", read)
    await switch.connect(control.address)
    await control.until(control.aggregators.connected)
