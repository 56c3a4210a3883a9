"""Tests invalid replies: each is an OcsError, with bounded memory and bounded delay."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import asyncssh
import pytest

import ocs_driver
from ocs_driver import OcsDriver, OcsError, OcsTimeout
from ocs_driver.tl1 import connection
from testbed.ocs_emulator import Emulator, load_personality
from testbed.ocs_emulator.netconf_xml import hello
from testbed.simulated.work import WorkEvent
from tests.parts.ocs.rig import PATIENCE_S, until

CREDENTIAL = "x"

Script = Callable[[str], bytes]
"""Maps a command to all data that is sent for it."""

POLATIS = {
    "RTRV-NETYPE": ("Polatis,OST-48xCC,OST,1.0",),
    "RTRV-INV": ("OCS:TYPE=OST,SN=1,HWVER=1,SWVER=1",),
    "RTRV-EQPT": ("SYSTEM:SIZE=48xCC",),
}
GLIMMERGLASS = {
    "RTRV-SYSTEM-INFO": (
        "sw:SerialNumber=1,SystemType=S,LicensedPortMatrix=48x48,SoftwareActiveVersion=1",
    )
}
CALIENT = {"RTRV-NE": ("sw:SERIALNUMBER=1,SWPACKAGE=1,CHASSISTYPE=S320",)}


class FaultySwitch:
    """Serves one script to every connection, and records the commands."""

    def __init__(self, script: Script, end: bytes) -> None:
        self.heard: list[str] = []
        self.connections = 0
        self._script, self._end = script, end
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def say(self, data: bytes) -> None:
        """Send unsolicited data."""
        for writer in self._writers:
            writer.write(data)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[tuple[str, int]]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[:2]
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                command = (await reader.readuntil(self._end)).decode().strip()
                self.heard.append(command)
                writer.write(self._script(command))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def tl1(rows: Mapping[str, tuple[str, ...]], more: Script = lambda command: b"") -> Script:
    """Respond to each verb with its rows, to others with no rows, and add the data of ``more``."""

    def answer(command: str) -> bytes:
        verb, *parts = command.rstrip(";").split(":")
        body = "".join(f'   "{row}"\r\n' for row in rows.get(verb.upper(), ()))
        text = f"\r\n\n   sw 16-10-31 15:01:34\r\nM  {parts[2]} COMPLD\r\n{body};"
        return text.encode("latin-1") + more(command)

    return answer


def scpi(replies: Mapping[str, str]) -> Script:
    def answer(line: str) -> bytes:
        return "".join(text for word, text in replies.items() if word in line).encode("latin-1")

    return answer


@contextlib.asynccontextmanager
async def connected(
    scheme: str, script: Script, folder: Path
) -> AsyncIterator[tuple[OcsDriver, FaultySwitch]]:
    faulty = FaultySwitch(script, b"\n" if scheme.endswith("scpi") else b";")
    async with faulty.serving() as (host, port):
        url = f"{scheme}://admin@{host}:{port}"
        driver = ocs_driver.open(url, password=CREDENTIAL, state_dir=folder)
        try:
            yield driver, faulty
        finally:
            await driver.close()


IDN = "Polatis,OST-48,1,1.0"


@pytest.mark.parametrize(
    ("scheme", "script"),
    [
        ("polatis+tl1", tl1({**POLATIS, "RTRV-NETYPE": ("P,OST,O,1",), "RTRV-EQPT": (size,)}))
        for size in ("SYSTEM:SIZE=99999xCC", "SYSTEM:SIZE=48x99999", "SYSTEM:SIZE=\xb2x\xb2")
    ]
    + [
        ("polatis+scpi", scpi({"IDN": IDN, ":SIZE?": ";99999,99999", "?": "\r\n"})),
        (
            "glimmerglass+tl1",
            tl1({"RTRV-SYSTEM-INFO": ("sw:SerialNumber=1,LicensedPortMatrix=99999x99999",)}),
        ),
    ],
)
async def test_too_many_ports_are_refused(scheme: str, script: Script, tmp_path: Path) -> None:
    """The list of all ports is derived from the size."""
    async with connected(scheme, script, tmp_path) as (driver, _):
        with pytest.raises(OcsError):
            await driver.connect()


@pytest.mark.parametrize("port", ["\xb2", "1" * 5000, ""])
async def test_ports_that_are_not_numbers_are_refused(port: str, tmp_path: Path) -> None:
    """A circuit between ports that nobody knows is still a circuit."""
    pairs = (("10003", "20003"), (port, "20001"))
    circuits = tuple(f"sw:IPORTID={a},OPORTID={b},CONNSTATE=steady" for a, b in pairs)
    powers = tuple(f"sw:PORTID={p},PORTPOWER=-1,PORTHEALTH=bad" for p in ("10001", port))
    script = tl1({**GLIMMERGLASS, "RTRV-CRS-FIBER": circuits, "RTRV-PORT-POWER": powers})
    async with connected("glimmerglass+tl1", script, tmp_path) as (driver, _):
        await driver.connect()
        for call in (driver.read, driver.inventory, driver.alarms, lambda: driver.power(["10001"])):
            with pytest.raises(OcsError, match="bad_reply"):
                await call()


async def test_duplicate_circuits_and_unknown_ports(tmp_path: Path) -> None:
    patches = ("1,2", "1,2", "2,1", "77,999999")
    script = tl1({**POLATIS, "RTRV-PATCH": patches, "RTRV-PORT-POWER": ("1:-1.0", "2:-1.0")})
    async with connected("polatis+tl1", script, tmp_path) as (driver, _):
        await driver.connect()
        assert [(c.a, c.b) for c in (await driver.read()).circuits] == [
            ("1", "2"),
            ("77", "999999"),
        ]
        assert len(await driver.inventory()) == 48
        await driver.alarms()


async def test_non_finite_light_is_not_a_reading(tmp_path: Path) -> None:
    summary = "1.1.1:ALIAS=NONE,INPWR=nan,OUTPWR=1e999"
    async with connected(
        "calient+tl1", tl1({**CALIENT, "RTRV-PORT-SUM": (summary,)}), tmp_path
    ) as (
        driver,
        _,
    ):
        await driver.connect()
        (light,) = await driver.power(["1.1.1"])
        assert (light.in_dbm, light.out_dbm) == (None, None)


async def test_an_overlong_port_list_is_not_read_one_by_one(tmp_path: Path) -> None:
    ports = tuple(f"1.1.{n}:WX:INAS=IS" for n in range(5000))
    async with connected("calient+tl1", tl1({**CALIENT, "RTRV-PORT": ports}), tmp_path) as (
        driver,
        faulty,
    ):
        await driver.connect()
        for call in (driver.inventory, driver.alarms):
            with pytest.raises(OcsError, match="bad_reply"):
                await call()
        assert not [command for command in faulty.heard if "SUM" in command]


@pytest.mark.parametrize(
    "state",
    [
        "(@1,2),(@3,4)\r\n(@5),(@6)\r\n",  # two replies for one
        "(@1,2),(@3,4)\r\n(@5),(@6)",
        "(@" + ",".join(["1:4000"] * 1000) + "),(@1)\r\n",
        "(@1,2),(@3)\r\n",
        "(@\xb2),(@\xb3)\r\n",
    ],
)
async def test_invalid_scpi_replies(state: str, tmp_path: Path) -> None:
    replies = {"*IDN?\r": "", "IDN": IDN, ":SIZE?": ";48,48", "CONN:STAT?": state}

    def script(line: str) -> bytes:
        said = scpi(replies)(line)
        return said if "STAT?" in line else said + b"\r\n"

    async with connected("polatis+scpi", script, tmp_path) as (driver, _):
        await driver.connect()
        with pytest.raises(OcsError):
            await driver.read()


async def test_unsolicited_scpi_data_does_not_answer_a_later_line(tmp_path: Path) -> None:
    def script(line: str) -> bytes:
        if "CONN:STAT?" in line:
            return b"(@1),(@2)\r\n"
        if "PORT:STAT?" in line:
            return b"(E,E)\r\n"
        return f"{IDN};48,48\r\n".encode() if "SIZE" in line else f"{IDN}\r\n".encode()

    async with connected("polatis+scpi", script, tmp_path) as (driver, faulty):
        await driver.connect()
        faulty.say(b"(@7),(@8)\r\n")
        reader = driver._session._stream[0]  # type: ignore[attr-defined]
        await until(lambda: reader._buffer, "the line to come")
        assert [c.a for c in (await driver.read()).circuits] == ["1"]
        assert faulty.connections == 2


async def test_endless_output_ends_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_UNASKED", 1 << 16)

    def script(command: str) -> bytes:
        noise = "PATCH" in command or "POWER" in command
        return b"x y z;\r\n" * 100_000 if noise else tl1(POLATIS)(command)

    async with connected("polatis+tl1", script, tmp_path) as (driver, faulty):
        await driver.connect()
        with pytest.raises(OcsError) as told:
            await driver.read()
        assert told.value.code == "backing_off", "the session does not reconnect for a while"
        assert faulty.connections == 1


class Open(asyncssh.SSHServer):  # type: ignore[misc]
    """Accepts every user without a password."""

    def begin_auth(self, username: str) -> bool:
        return False


@contextlib.asynccontextmanager
async def ssh_server(serve: Any, **options: Any) -> AsyncIterator[tuple[str, int]]:
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        server_factory=Open,
        process_factory=serve,
        encoding=None,
        **options,
    )
    async with server:
        yield server.sockets[0].getsockname()[:2]


@contextlib.asynccontextmanager
async def endless_netconf(chunk: bytes) -> AsyncIterator[tuple[str, int]]:
    """Serve a switch that responds to the first request with ``chunk`` without end."""

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        process.stdout.write(hello(1, "pair") + b"]]>]]>")
        await process.stdin.readuntil(b"]]>]]>")
        await process.stdin.read(1)
        with contextlib.suppress(OSError, asyncssh.Error):
            while not process.stdout.is_closing():
                process.stdout.write(chunk)
                await process.stdout.drain()

    async with ssh_server(serve) as address:
        yield address


async def test_a_netconf_request_that_blocks_its_thread_frees_the_session(tmp_path: Path) -> None:
    """A write to a switch that no longer reads blocks: ncclient has no timeout for it."""
    personality = load_personality("polatis-48xCC")
    async with Emulator(personality, [("127.0.0.1", 0)] * 3) as emulator:
        host, port = emulator.addresses[2]
        url = f"polatis+netconf://admin@{host}:{port}"
        driver = ocs_driver.open(url, password=CREDENTIAL, state_dir=tmp_path)
        async with driver, asyncio.timeout(PATIENCE_S):
            goes_on = WorkEvent()
            try:
                with pytest.raises(OcsTimeout):
                    await driver._session._request(  # type: ignore[attr-defined]
                        lambda session: goes_on.wait(), 1.0
                    )
                assert (await driver.read()).circuits == ()
            finally:
                goes_on.set()


@pytest.mark.real_time
async def test_an_endless_netconf_message_ends_the_session(tmp_path: Path) -> None:
    chunk = b"\n#4000\n" + b"x" * 4000
    async with endless_netconf(chunk) as (host, port), asyncio.timeout(PATIENCE_S):
        url = f"polatis+netconf://admin@{host}:{port}"
        driver = ocs_driver.open(url, password=CREDENTIAL, state_dir=tmp_path)
        with pytest.raises(OcsError) as told:
            await driver.connect()
        await driver.close()
    assert "exceeded" in told.value.hint
