from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import ocs_driver
import testbed
from sitefile import CabledSite, EmulatedVolume, Emulation, load_site
from testbed.ocs_emulator import command as ocs_emulator
from testbed.rack import preflight, programs, record
from testbed.rack.errors import RackError
from testbed.rack.process import Process
from testbed.rack.record import RackRecord
from testbed.rack.status import emulated_parts

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"


@pytest.fixture
def site() -> CabledSite:
    return load_site(PAPER)


def test_the_emulator_gets_the_sites_address_and_times(site: CabledSite, tmp_path: Path) -> None:
    assert site.emulation is not None
    argv = programs.emulator(tmp_path, site.switches[0], site.emulation, {}).argv
    options = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert options["--personality"] == "calient-s320"
    front_ends = "calient-tl1-raw=127.0.0.1:3082,calient-tl1-prompt=127.0.0.1:3083"
    assert options["--listen"] == front_ends
    assert options["--netns"] == "ll-ocs"
    assert options["--mirror-time"] == "0.025"
    assert options["--password-env"] == "LIGHTLOOM_OCS_PASSWORD"


URLS = {
    "calient+tl1": "calient+tl1://lightloom@127.0.0.1:3082",
    "glimmerglass+tl1": "glimmerglass+tl1://lightloom@127.0.0.1:10034?ports=2x2x8@10001",
    "polatis+netconf": "polatis+netconf://lightloom@127.0.0.1:8300?ports=2x2x8",
    "polatis+scpi": "polatis+scpi://127.0.0.1:5025?ports=2x2x8",
    "polatis+tl1": "polatis+tl1://lightloom@127.0.0.1:3082?ports=2x2x8",
}


def test_every_driver_has_an_emulator() -> None:
    assert set(programs.PLAYERS) == set(ocs_driver.DRIVERS) == set(URLS)


@pytest.mark.parametrize("url", URLS.values(), ids=URLS.keys())
def test_another_switch_uses_the_same_fibers_by_its_url_alone(
    site: CabledSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    assert site.emulation is not None
    switch = dataclasses.replace(site.switches[0], url=url)
    fibers = [e.fiber.port for e in site.endpoints]
    fibers += [p.port for a in site.aggregators for p in a.fibers.values()]
    links = programs.links_file(tmp_path, switch.name)
    links.write_text(json.dumps({port: f"o-{n}" for n, port in enumerate(fibers)}))
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", "pw")
    argv = programs.emulator(tmp_path, switch, site.emulation, {}).argv
    emulator = ocs_emulator.build(ocs_emulator.parse_arguments(argv[3:]))
    assert tuple(emulator.front_ends) == programs.PLAYERS[url.partition(":")[0]].front_ends
    assert len(programs.switch_addresses(switch)) == len(emulator.front_ends)


def test_two_switches_have_two_serial_numbers(site: CabledSite, tmp_path: Path) -> None:
    assert site.emulation is not None
    one = site.switches[0]
    two = dataclasses.replace(one, name="ocs1")
    serials = set()
    for switch in (one, two):
        argv = programs.emulator(tmp_path, switch, site.emulation, {}).argv
        serials.add(argv[argv.index("--serial") + 1])
    assert len(serials) == 2


@pytest.mark.parametrize("name", ["paper-polatis-scpi", "paper-polatis-netconf"])
def test_the_other_sites_differ_from_the_papers_in_the_url_alone(name: str) -> None:
    lines = PAPER.read_text("utf-8").splitlines()
    others = (PAPER.parent / f"{name}.yaml").read_text("utf-8").splitlines()
    differing = [(a, b) for a, b in zip(lines, others, strict=True) if a != b]
    assert [(a.split(":")[0].strip(), b.split(":")[0].strip()) for a, b in differing] == [
        ("url", "url")
    ]
    (switch,) = load_site(PAPER.parent / f"{name}.yaml").switches
    assert name.removeprefix("paper-") == switch.url.partition(":")[0].replace("+", "-")


def test_an_agent_serves_the_endpoints_of_its_server(site: CabledSite, tmp_path: Path) -> None:
    argv = programs.agent(tmp_path, site, site.server("srv1"), "unix:///x", {}).argv
    options = dict(zip(argv[3::2], argv[4::2], strict=True))
    assert [e["name"] for e in json.loads(options["--endpoints"])] == ["gpu2", "gpu3"]
    assert options["--listen"] == "127.0.0.1:7702"
    assert options["--nic-netns"] == "ll-srv1"


def test_agents_offer_the_volumes_of_the_site_file(site: CabledSite, tmp_path: Path) -> None:
    volumes = {
        "imagenet": EmulatedVolume("/srv/imagenet"),
        "scratch": EmulatedVolume(writable=True),
    }
    site = dataclasses.replace(site, emulation=Emulation(volumes=volumes))
    for server in site.servers:
        argv = programs.agent(tmp_path, site, server, "unix:///x", {}).argv
        assert [argv[n + 1] for n, word in enumerate(argv) if word == "--volume"] == [
            "imagenet=/srv/imagenet:ro",
            f"scratch={tmp_path}/volumes/scratch:rw",
        ]


def test_a_switch_without_emulator_is_named(site: CabledSite, tmp_path: Path) -> None:
    assert site.emulation is not None
    for url in ("acme+tl1://127.0.0.1:1", "polatis+scpi://127.0.0.1", "calient+tl1://h:65535", "x"):
        switch = dataclasses.replace(site.switches[0], url=url)
        with pytest.raises(RackError) as caught:
            programs.emulator(tmp_path, switch, site.emulation, {})
        assert caught.value.object == "switch/ocs0"
        assert caught.value.hint


def test_ledgers_are_removed_with_the_rack(tmp_path: Path) -> None:
    started = programs.controller(tmp_path, PAPER, "image", {"A": "b"})
    assert started.env["A"] == "b"
    assert started.env["LIGHTLOOM_OCS_STATE_DIR"].startswith(str(tmp_path))


def test_a_password_comes_from_the_environment_or_is_the_emulators(site: CabledSite) -> None:
    name = "LIGHTLOOM_OCS_PASSWORD"
    assert programs.passwords(site, {name: "x"}) == {name: "x"}
    assert programs.passwords(site, {}) == {name: programs.DEFAULT_PASSWORD}


def test_listening_is_a_json_line_among_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert not programs.listening(log)
    log.write_text('starting\n{"event": "hello"}\n{broken\n')
    assert not programs.listening(log)
    with log.open("a") as out:
        out.write(json.dumps({"event": "listening", "addresses": []}) + "\n")
    assert programs.listening(log)


def test_addresses_come_from_the_site(site: CabledSite) -> None:
    assert preflight.addresses(site) == {
        "controller": ("127.0.0.1", 8470),
        "agent srv0": ("127.0.0.1", 7701),
        "agent srv1": ("127.0.0.1", 7702),
        "agent srv2": ("127.0.0.1", 7703),
        "agent srv3": ("127.0.0.1", 7704),
        "optical switch ocs0 (1)": ("127.0.0.1", 3082),
        "optical switch ocs0 (2)": ("127.0.0.1", 3083),
    }


def test_an_address_reachable_from_other_machines_is_refused() -> None:
    with pytest.raises(RackError) as caught:
        preflight.need_free([("controller", ("0.0.0.0", 0))])
    assert caught.value.code == "invalid"


def test_all_emulated_parts_are_listed(site: CabledSite) -> None:
    parts = emulated_parts(site)
    assert {part.source for part in parts} == {"emulated"}
    names = {part.name for part in parts}
    assert {"ocs0", "as0", "as1", "srv3", "gpu0", "gpu5"} <= names


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    process = Process("x", 1, 2, "/log", ("a", "b"), 3.0)
    written = RackRecord(
        "up", "paper", "f", "http://u", 1.0, 2.0, 3.0, dockerd=process, processes=(process,)
    )
    record.save(tmp_path, written)
    assert record.load(tmp_path) == written
    assert record.load(tmp_path / "absent") is None


def test_a_broken_record_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / record.FILE).write_text("{")
    with pytest.raises(RackError) as caught:
        record.load(tmp_path)
    assert "testbed down" in caught.value.hint
