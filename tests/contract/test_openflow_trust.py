"""Aggregators over real TLS: who gets a program, and who is sent away with nothing."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import socket
import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.daemon import relay
from controller.devices.aggregators import AggregatorRefused
from controller.devices.openflow.rules import compiler
from controller.devices.openflow.session.osken import ofproto as ofp
from controller.devices.openflow.session.tls import read_speech
from pki import Authority
from tests.parts.openflow.fake_switch import FakeSwitch, message
from tests.parts.openflow.sites import attach
from tests.parts.openflow.tls import TlsControl, Trust, shows, tls_control, tls_site

PLACES = attach(("gpu0", "as0", 1), ("gpu1", "as0", 2), ("gpu2", "as1", 1))
JOBS = {"red": ("gpu0", "gpu1", "gpu2")}
DEADLINE_S = 30.0


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path)


async def refused(control: TlsControl, tls: ssl.SSLContext | None, dpid: int = 0xA0) -> FakeSwitch:
    """A switch that calls and is sent away."""
    thief = FakeSwitch(dpid)
    with suppress(OSError):
        await thief.connect(control.address, tls)
        await thief.closed()
    assert not thief.seen[ofp.OFPT_FLOW_MOD]
    assert not thief.seen[ofp.OFPT_MULTIPART_REQUEST], "it is told nothing of the fabric"
    assert not control.aggregators.connected()
    return thief


async def admitted(control: TlsControl, tls: ssl.SSLContext | None) -> FakeSwitch:
    """The honest as0, and its program."""
    switch = FakeSwitch(0xA0)
    await switch.connect(control.address, tls)
    await control.until(lambda: control.aggregators.connected() == {"as0"})
    program = compiler.compile(control.site, 1, PLACES, JOBS)["as0"]
    await control.aggregators.install({"as0": program}, deadline_s=DEADLINE_S)
    assert set(switch.rules) == {rule.key for rule in program.rules}
    assert await control.aggregators.audit("as0") == []
    return switch


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.real_time
async def test_a_switch_with_its_certificate_gets_its_program(
    trust: Trust, version: ssl.TLSVersion
) -> None:
    async with tls_control(tls_site(), trust.controller) as control:
        switch = await admitted(control, shows(trust.switch("as0"), version))
        await switch.disconnect()
        await control.until(lambda: not control.aggregators.connected())


@pytest.mark.real_time
async def test_one_open_vswitch_with_several_bridges_has_one_certificate(trust: Trust) -> None:
    tls = shows(trust.switch("as0", "as1"))
    async with tls_control(tls_site(), trust.controller) as control:
        bridges = [FakeSwitch(0xA0), FakeSwitch(0xA1)]
        for bridge in bridges:
            await bridge.connect(control.address, tls)
        await control.until(lambda: control.aggregators.connected() == {"as0", "as1"})


@pytest.mark.real_time
async def test_a_claim_with_another_certificate_is_refused_and_told(trust: Trust) -> None:
    """While the switch is away a claimant of its id used to get its program."""
    async with tls_control(tls_site(), trust.controller) as control:
        thief = await refused(control, shows(trust.switch("as1")))
        assert thief.seen[ofp.OFPT_FEATURES_REQUEST] == 1
        await control.until(lambda: control.events)
        (event,) = control.events
        assert isinstance(event, AggregatorRefused)
        assert event.as_name == "as0"
        assert "as1.aggregator.lightloom" in event.claimant
        assert "as0.aggregator.lightloom" in event.reason
        await admitted(control, shows(trust.switch("as0")))


@pytest.mark.parametrize("who", ["agent", "no certificate", "other authority", "plain", "expired"])
@pytest.mark.real_time
async def test_who_shows_no_aggregators_certificate_is_refused(trust: Trust, who: str) -> None:
    tls: ssl.SSLContext | None = None
    if who == "agent":
        tls = shows(trust.agent("srv0"))
    elif who == "no certificate":
        tls = shows(None)
    elif who == "other authority":
        tls = shows(Trust(trust.directory / "other").switch("as0"))
        tls.verify_mode = ssl.CERT_NONE
    elif who == "expired":
        past = datetime(2020, 1, 1, tzinfo=UTC)
        old = trust.directory / "old"
        trust.authority.issue_aggregators(["as0"], old, now=past, days=1)
        tls = shows(old)
    async with tls_control(tls_site(), trust.controller) as control:
        await refused(control, tls)
        await admitted(control, shows(trust.switch("as0")))


@pytest.mark.real_time
async def test_a_fingerprint_pins_one_certificate(trust: Trust) -> None:
    mine = trust.switch("as1")  # its name does not matter
    der = ssl.PEM_cert_to_DER_cert((mine / "cert.pem").read_text())
    pin = {"fingerprint": hashlib.sha256(der).hexdigest()}
    async with tls_control(tls_site(as0=pin), trust.controller) as control:
        await refused(control, shows(trust.switch("as0")))
        await admitted(control, shows(mine))


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.real_time
async def test_an_address_pins_where_a_switch_calls_from(trust: Trust, tls: bool) -> None:
    mine = shows(trust.switch("as0")) if tls else None
    for address, is_right in (("127.0.0.2", False), ("127.0.0.1", True)):
        site = tls_site(as0={"tls": tls, "address": address})
        async with tls_control(site, trust.controller) as control:
            if is_right:
                await admitted(control, mine)
                continue
            await refused(control, mine)
            await control.until(lambda control=control: control.events)
            (event,) = control.events
            assert isinstance(event, AggregatorRefused)
            assert "127.0.0.1" in event.claimant
            assert "address 127.0.0.2" in event.reason


@pytest.mark.real_time
async def test_a_site_may_have_both_kinds_on_one_port(trust: Trust) -> None:
    async with tls_control(tls_site(as1={"tls": False}), trust.controller) as control:
        plain, thief = FakeSwitch(0xA1), FakeSwitch(0xA0)
        await plain.connect(control.address)
        await control.until(lambda: control.aggregators.connected() == {"as1"})
        await thief.connect(control.address)
        await thief.closed()
        assert not thief.seen[ofp.OFPT_MULTIPART_REQUEST]
        assert control.aggregators.connected() == {"as1"}
        refusals = [e for e in control.events if isinstance(e, AggregatorRefused)]
        assert ["without TLS" in e.claimant for e in refusals] == [True]


@pytest.mark.real_time
async def test_messages_greater_than_a_tls_record_arrive_whole(trust: Trust) -> None:
    async with tls_control(tls_site(), trust.controller) as control:
        switch = await admitted(control, shows(trust.switch("as0")))
        before = switch.seen[ofp.OFPT_BARRIER_REQUEST]
        for _ in range(20):
            switch.send(message(ofp.OFPT_ECHO_REPLY, 1, bytes(60_000)))
        assert await control.aggregators.audit("as0") == []
        assert switch.seen[ofp.OFPT_BARRIER_REQUEST] > before


@pytest.mark.real_time
async def test_stalled_handshakes_keep_no_switch_out(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than there is room for: some say nothing, some begin a handshake and stop."""
    monkeypatch.setattr(relay, "MAX_HANDSHAKES", 8)
    begun = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    async with tls_control(tls_site(), trust.controller) as control:
        stalled = []
        for number in range(40):
            sock = await asyncio.to_thread(socket.create_connection, control.address)
            sock.sendall(begun[: number % 2 * len(begun)] or b"\x16")
            stalled.append(sock)
        await admitted(control, shows(trust.switch("as0")))
        for sock in stalled:
            sock.close()


@pytest.mark.real_time
async def test_a_handshake_without_end_is_cut(
    trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "HANDSHAKE_S", 0.2)
    async with tls_control(tls_site(), trust.controller) as control:
        reader, writer = await asyncio.open_connection(*control.address)
        writer.write(b"\x16\x03")
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.read() == b""
        writer.close()
        monkeypatch.undo()
        await admitted(control, shows(trust.switch("as0")))


@pytest.mark.real_time
async def test_a_flood_instead_of_a_handshake_is_cut(trust: Trust) -> None:
    async with tls_control(tls_site(), trust.controller) as control:
        for flood in (b"\x16" + bytes(1 << 20), b"\x16\x03\x01\x40\x00" + b"\x0b" * (1 << 20)):
            reader, writer = await asyncio.open_connection(*control.address)
            with suppress(OSError):
                writer.write(flood)
                async with asyncio.timeout(DEADLINE_S):
                    await reader.read()
            writer.close()
        await admitted(control, shows(trust.switch("as0")))


def test_a_controller_without_a_certificate_says_so_at_once(trust: Trust) -> None:
    with pytest.raises(ServiceError, match="no certificate") as found:
        read_speech(tls_site(), None)
    assert found.value.object == "aggregator/as0"
    assert "--openflow-tls" in found.value.hint
    with pytest.raises(ServiceError, match=r"agent\.lightloom"):
        read_speech(tls_site(), trust.agent("srv0"))
    Authority.create(trust.directory / "strange", "x", now=datetime.now(UTC))
    with pytest.raises(ServiceError, match="no such file"):
        read_speech(tls_site(), trust.directory / "strange")


def test_plain_openflow_beyond_this_machine_needs_an_address(trust: Trust) -> None:
    plain = tls_site(as0={"tls": False}, as1={"tls": False})
    assert read_speech(plain, None).context is None
    open_to_all = dataclasses.replace(plain, openflow_listen="0.0.0.0:6653")
    with pytest.raises(ServiceError, match="not pinned to an address") as found:
        read_speech(open_to_all, None)
    assert found.value.object == "aggregator/as0"
    pinned = {"tls": False, "address": "10.0.0.7"}
    site = dataclasses.replace(tls_site(as0=pinned, as1=pinned), openflow_listen="0.0.0.0:6653")
    assert read_speech(site, None).plain
