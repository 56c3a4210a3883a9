"""``ocs`` verbs against an emulated switch on loopback, and everything typed wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from testbed.ocs_emulator import Emulator, load_personality
from testbed.ocs_emulator.control import Control
from tests.unit.console.cli.conftest import Run

CREDENTIAL = "right-horse"
PORTS = {"calient+tl1": ("1.1.1", "2.1.1", "1.1.2", "2.1.2"), "polatis+scpi": ("1", "9", "2", "10")}
"""Two pairs of ports, by the scheme of the switch."""


ONE = pytest.mark.parametrize("switch", ["calient+tl1"], indirect=True)
"""For what does not depend on the scheme."""


@dataclass(slots=True, frozen=True)
class Switch:
    """A running emulator."""

    url: str
    control: str
    ports: tuple[str, str, str, str]


def _serve(
    stop: Callable[[asyncio.Event], None], scheme: str, control: Path, found: list[tuple[str, int]]
) -> None:
    async def serve() -> None:
        name = {"calient+tl1": "calient-s320", "polatis+scpi": "polatis-48xCC"}[scheme]
        quick = load_personality(name).with_timing(mirror_s=0.002, bulk_s=0.01, command_s=0.0)
        front_end = {"calient+tl1": "calient-tl1-raw", "polatis+scpi": "polatis-scpi"}[scheme]
        emulator = Emulator(quick, [("127.0.0.1", 0)], password=CREDENTIAL, named={0: front_end})
        async with emulator:
            orders = Control(emulator)
            await orders.listen(control)
            ended = asyncio.Event()
            found.append(emulator.addresses[0])
            stop(ended)
            await ended.wait()
            await orders.close()

    asyncio.run(serve())


@pytest.fixture(params=PORTS)
def switch(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Switch]:
    scheme: str = request.param
    ready = threading.Event()
    ends: list[Callable[[], object]] = []
    found: list[tuple[str, int]] = []

    def running(ended: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(ended.set))
        ready.set()

    control = tmp_path / "control.sock"
    thread = threading.Thread(target=_serve, args=(running, scheme, control, found))
    thread.start()
    assert ready.wait(60)
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", CREDENTIAL)
    monkeypatch.setenv("LIGHTLOOM_OCS_STATE_DIR", str(tmp_path / "state"))
    yield Switch(f"{scheme}://admin@127.0.0.1:{found[0][1]}", str(control), PORTS[scheme])
    for end in ends:
        end()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.real_time
def test_show_connect_disconnect(offline: Run, switch: Switch) -> None:
    a, b, *_ = switch.ports
    made = offline("ocs", "connect", switch.url, a, b, "-o", "json")
    assert made.code == 0, made.err
    assert [r["outcome"] for r in made.document["results"]] == ["done"]
    (circuit,) = offline("ocs", "show", switch.url, "-o", "json").document["circuits"]
    assert {circuit["a"], circuit["b"]} == {a, b}
    assert (circuit["state"], circuit["owner"]) == ("tuned", "lightloom")
    assert f"{a}" in offline("ocs", "show", switch.url).out
    gone = offline("ocs", "disconnect", switch.url, b, a)
    assert gone.code == 0
    assert "no circuits" in gone.out


@pytest.mark.real_time
def test_a_busy_port_is_a_conflict_that_names_it_and_the_way_out(
    offline: Run, switch: Switch
) -> None:
    a, b, _, d = switch.ports
    assert offline("ocs", "connect", switch.url, a, b).code == 0
    ran = offline("ocs", "connect", switch.url, a, d, "-o", "json")
    assert ran.code == 6
    assert a in ran.error["object"]
    assert "--mode" in ran.error["hint"]
    assert offline("ocs", "connect", switch.url, a, d, "--mode", "update").code == 0


@pytest.mark.real_time
def test_foreign_circuits_are_adopted_only_when_told(offline: Run, switch: Switch) -> None:
    a, b, *_ = switch.ports
    assert offline("ocs", "fault", switch.control, "foreign", f"a={a}", f"b={b}").code == 0
    assert offline("ocs", "connect", switch.url, a, b).code == 6
    assert offline("ocs", "disconnect", switch.url, a, b).code == 6
    adopted = offline("ocs", "connect", switch.url, a, b, "--mode", "overwrite", "-o", "json")
    assert [c["owner"] for c in adopted.document["circuits"]] == ["lightloom"]


@pytest.mark.real_time
@ONE
def test_a_fault_is_ordered_and_ended(offline: Run, switch: Switch) -> None:
    a, b, *_ = switch.ports
    ran = offline("ocs", "fault", switch.control, "fail", f"port={a}", "-o", "json")
    assert (ran.code, ran.document) == (0, {"ok": True})
    failed = offline("ocs", "connect", switch.url, a, b, "-o", "json")
    assert failed.code == 1
    assert failed.error["object"] == f"{a}-{b}"
    assert offline("ocs", "fault", switch.control, "clear").out.strip() == "clear: ordered"
    assert offline("ocs", "connect", switch.url, a, b).code == 0


@pytest.mark.real_time
@ONE
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "no fault"),
        (["dark"], "port"),
        (["dark", "port=99.99.99"], "99.99.99"),
        (["slow", "seconds=soon"], "soon"),
        (["dark", "port"], "KEY=VALUE"),
    ],
)
def test_faults_that_do_not_exist(
    offline: Run, switch: Switch, words: list[str], said: str
) -> None:
    ran = offline("ocs", "fault", switch.control, *words, "-o", "json")
    assert ran.code == 2
    assert said in ran.error["message"]
    assert ran.error["hint"]


def test_no_emulator_at_the_socket(offline: Run, tmp_path: Path) -> None:
    ran = offline("ocs", "fault", str(tmp_path / "absent.sock"), "clear", "-o", "json")
    assert ran.code == 1
    assert "--control" in ran.error["hint"]


@pytest.mark.real_time
def test_probe_reads_and_writes_a_file_that_the_driver_loads(
    offline: Run, switch: Switch, tmp_path: Path
) -> None:
    file = tmp_path / "switch.json"
    ran = offline("ocs", "probe", switch.url, "--out", str(file), "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(file.read_text()) == ran.document
    assert ran.document["probe"]["assumed"]
    assert "assumed" in offline("ocs", "probe", switch.url).out
    assert offline("ocs", "show", f"{switch.url}?personality={file}").code == 0


@pytest.mark.real_time
def test_probe_on_spare_ports(offline: Run, switch: Switch) -> None:
    spare = ",".join(switch.ports)
    ran = offline(
        *("ocs", "probe", switch.url, "--destructive", "--spare-ports", spare, "-o", "json")
    )
    assert ran.code == 0, ran.err
    assert {"timing.mirror_s", "behaviour.busy"} <= set(ran.document["probe"]["measured"])
    assert offline("ocs", "show", switch.url, "-o", "json").document["circuits"] == []


@pytest.mark.real_time
@ONE
def test_probe_needs_both_or_neither_and_ports_that_are_spare(
    offline: Run, switch: Switch, tmp_path: Path
) -> None:
    a, b, *_ = switch.ports
    assert offline("ocs", "probe", switch.url, "--destructive").code == 2
    assert offline("ocs", "probe", switch.url, "--spare-ports", "1,2,3,4").code == 2
    offline("ocs", "connect", switch.url, a, b)
    spare = ",".join(switch.ports)
    ran = offline(
        *("ocs", "probe", switch.url, "--destructive", "--spare-ports", spare, "-o", "json")
    )
    assert ran.code == 6
    assert "in use" in ran.error["message"]
    nowhere = str(tmp_path / "no" / "folder.json")
    assert offline("ocs", "probe", switch.url, "--out", nowhere).code == 1


# -- bad input -----------------------------------------------------------------------


def test_an_unknown_scheme_names_the_known_ones(offline: Run) -> None:
    ran = offline("ocs", "show", "abacus+tl1://admin@127.0.0.1:3082", "-o", "json")
    assert ran.code == 2
    assert "polatis+netconf" in ran.error["message"]


@pytest.mark.real_time
def test_a_port_that_does_not_exist(offline: Run, switch: Switch) -> None:
    a = switch.ports[0]
    nowhere = "9.9.9" if "." in a else "9999"
    ran = offline("ocs", "connect", switch.url, a, nowhere, "-o", "json")
    assert ran.code == 1
    assert nowhere in ran.error["object"]
    assert "no such port" in ran.error["message"]
    assert ran.error["hint"]
    assert ran.document["circuits"] == [], "nothing half made"
    malformed = offline("ocs", "connect", switch.url, a, "no port;", "-o", "json")
    assert malformed.code == 2
    assert malformed.error["object"] == "no port;"


@pytest.mark.real_time
def test_a_wrong_password_is_never_printed(
    offline: Run, switch: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    if switch.url.startswith("polatis+scpi"):
        assert offline("ocs", "show", switch.url).code == 0, "SCPI knows no passwords"
        return
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", "wrong-battery")
    ran = offline("ocs", "show", switch.url, "-o", "json")
    assert ran.code == 4
    assert "admin" in ran.error["object"]
    assert "LIGHTLOOM_OCS_PASSWORD" in ran.error["hint"]
    for word in ("wrong-battery", CREDENTIAL):
        assert word not in ran.out + ran.err


def test_no_password_at_all(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTLOOM_OCS_PASSWORD", raising=False)
    ran = offline("ocs", "show", "calient+tl1://admin@127.0.0.1:1", "-o", "json")
    assert ran.code == 4
    assert "by reference" in ran.error["message"]


@pytest.mark.parametrize("scheme", ["calient+tl1", "polatis+scpi", "polatis+netconf"])
def test_no_listener(offline: Run, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", CREDENTIAL)
    with socket.socket() as kept:  # bound, so that no other process listens there
        kept.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{kept.getsockname()[1]}"
        ran = offline("ocs", "show", f"{scheme}://admin@{address}", "-o", "json")
    assert ran.code == 1
    assert ran.error["object"] == address
    assert "refused" in ran.error["message"]
    assert "host and port" in ran.error["hint"]


@pytest.mark.real_time
@ONE
def test_a_switch_of_another_vendor(offline: Run, switch: Switch) -> None:
    url = switch.url.replace("calient", "polatis")  # SCPI stays silent: see the contract
    ran = offline("ocs", "show", url, "-o", "json")
    assert ran.code == 2
    assert "check vendor and port" in ran.error["message"]
