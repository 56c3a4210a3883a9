"""Tests the NETCONF features: YANG revisions, two framings, SSH host keys, notifications."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest

import ocs_driver
from ocs_driver import CircuitRequest, EventKind, OcsError
from ocs_driver.polatis import xml
from testbed.ocs_emulator import Emulator, load_personality
from tests.parts.ocs.rig import PATIENCE_S

CREDENTIAL = "x"
LISTEN = [("127.0.0.1", 0)] * 3
HELLO = (
    '<hello xmlns="urn:ietf:params:xml:ns:netconf:base:1.0"><capabilities>'
    "<capability>urn:ietf:params:netconf:base:1.0</capability></capabilities></hello>"
)
GET = (
    '<rpc xmlns="urn:ietf:params:xml:ns:netconf:base:1.0" message-id="1"><get><filter>'
    '<cross-connects xmlns="http://www.polatis.com/yang/optical-switch"/></filter></get></rpc>'
)
END = b"]]>]]>"


def url(emulator: Emulator, query: str = "") -> str:
    host, port = emulator.addresses[2]
    return f"polatis+netconf://admin@{host}:{port}{query}"


@pytest.mark.real_time
@pytest.mark.parametrize("node", ["pair", "pairs"])
async def test_both_revisions_of_the_list(node: str, tmp_path: Path) -> None:
    personality = load_personality("polatis-24x24").behaving(pair_node=node)
    async with Emulator(personality, LISTEN) as emulator:
        driver = ocs_driver.open(url(emulator), password=CREDENTIAL, state_dir=tmp_path)
        async with driver:
            wanted = [CircuitRequest("1", "2"), CircuitRequest("3", "4")]
            assert (await driver.apply([], wanted)).ok
            assert len(emulator.model.circuits) == 4
            assert (await driver.apply(wanted, [])).ok


async def test_the_old_framing(tmp_path: Path) -> None:
    async with Emulator(load_personality("polatis-48xCC"), LISTEN) as emulator:
        host, port = emulator.addresses[2]
        emulator.model.connect("1", "5", "", 0.0)
        async with (
            asyncssh.connect(
                host, port, username="admin", password=CREDENTIAL, known_hosts=None
            ) as ssh,
            ssh.create_process(subsystem="netconf", encoding=None) as session,
            asyncio.timeout(PATIENCE_S),
        ):
            assert b":base:1.1" in await session.stdout.readuntil(END)
            session.stdin.write(HELLO.encode() + END)
            session.stdin.write(GET.encode() + END)
            reply = await session.stdout.readuntil(END)
        assert b"ingress>1<" in reply
        assert b"egress>5<" in reply


@pytest.mark.real_time
async def test_a_wrong_host_key_is_refused(tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().split()[1].decode()
    query = "?hostkey=" + other.replace("+", "%2B")
    async with Emulator(load_personality("polatis-48xCC"), LISTEN) as emulator:
        driver = ocs_driver.open(url(emulator, query), password=CREDENTIAL, state_dir=tmp_path)
        with pytest.raises(OcsError, match="unreachable"):
            await driver.connect()
        await driver.close()


@pytest.mark.real_time
async def test_notifications_arrive(tmp_path: Path) -> None:
    async with Emulator(load_personality("polatis-48xCC"), LISTEN) as emulator:
        driver = ocs_driver.open(url(emulator), password=CREDENTIAL, state_dir=tmp_path)
        async with driver, asyncio.timeout(PATIENCE_S):
            events = driver.subscribe()
            emulator.model.connect("1", "5", "", 0.0)
            emulator.switch.changed("1,5", "foreign")
            assert (await anext(events)).kind is EventKind.CIRCUIT
            emulator.model.light.broken.add("7")
            await emulator.switch.refresh()
            alarm = await anext(events)
            assert (alarm.kind, alarm.obj) == (EventKind.ALARM, "7")


async def test_one_port_is_selected_by_content_match(tmp_path: Path) -> None:
    async with Emulator(load_personality("polatis-48xCC"), LISTEN) as emulator:
        driver = ocs_driver.open(url(emulator), password=CREDENTIAL, state_dir=tmp_path)
        async with driver:
            session = driver._session  # type: ignore[attr-defined]
            one = await session.get(xml.one_port(xml.OPTICAL, "opm-power", "7"))
            every = await session.get(xml.subtree(xml.OPTICAL, "opm-power"))
        assert list(xml.parse_ports(xml.parse_data(one, "opm-power"), "power")) == ["7"]
        assert len(xml.parse_ports(xml.parse_data(every, "opm-power"), "power")) == 48
