"""Tests site files: the paper's rack loads; every mistake is reported with path and fix."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sitefile import EmulatedVolume, PasswordRef, Port, SiteFileError, load_site, site_schema
from tests.parts.sites import PAPER


@pytest.fixture
def document() -> dict[str, Any]:
    return copy.deepcopy(yaml.safe_load(PAPER.read_text()))


def problems(tmp_path: Path, document: Any) -> list[str]:
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(document) if not isinstance(document, str) else document)
    with pytest.raises(SiteFileError) as caught:
        load_site(file)
    assert str(file) in str(caught.value)
    return [str(problem) for problem in caught.value.problems]


def test_paper_rack() -> None:
    site = load_site(PAPER)
    assert [len(x) for x in (site.servers, site.endpoints, site.aggregators, site.switches)] == [
        4,
        6,
        2,
        1,
    ]
    assert site.endpoint("gpu4").model == "Titan V"
    assert site.aggregator("as1").fibers[4] == Port("ocs0", "2.2.4")
    assert site.server("srv0").agent == "127.0.0.1:7701"
    planner = site.scheduler_site()
    assert next(a for a in planner.aggregators if a.name == "as0").ports == {"ocs0": 4}
    assert {e.ocs for e in planner.endpoints} == {"ocs0"}
    with pytest.raises(KeyError):
        site.switch("ocs9")


def test_hard_wired_endpoint(tmp_path: Path, document: dict[str, Any]) -> None:
    document["fibers"][5] = ["gpu5", "as1/7"]
    del document["homes"]["gpu5"]
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(document))
    site = load_site(file)
    assert site.aggregator("as1").fixed == {7: "gpu5"}
    planner = site.scheduler_site()
    assert next(e for e in planner.endpoints if e.name == "gpu5").fixed == "as1"
    assert next(a for a in planner.aggregators if a.name == "as1").size == 5
    document["homes"]["gpu5"] = "as0"
    assert "hard-wired" in problems(tmp_path, document)[0]


def edit(document: dict[str, Any], path: str, value: Any) -> None:
    *keys, last = [int(k) if k.isdecimal() else k for k in path.split("/")]
    node: Any = document
    for key in keys:
        node = node[key]
    node[last] = value


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("colour", "red", "colour: unknown key 'colour' (fix: remove it"),
        ("endpoints/2/gpus", 1, "endpoints[2].gpus: unknown key"),
        ("fibers/1", ["gpu1", "ocs0/1.1.1"], "fibers[1]: port ocs0/1.1.1 is used twice"),
        ("fibers/7", ["as0/1", "ocs0/2.1.2"], "fibers[7]: port as0/1 is used twice"),
        ("fibers/0", ["gpu0", "ocs7/1.1.1"], "fibers[0]: fiber to an unknown device 'ocs7'"),
        ("fibers/0", ["gpu9", "ocs0/1.1.1"], "fibers[0]: 'gpu9' is not an endpoint"),
        ("fibers/0", ["gpu0", "gpu1"], "are both endpoints"),
        ("fibers/6", ["as0/x", "ocs0/2.1.1"], "an aggregator's port must be a number"),
        ("fibers/6", ["as0/1", "as1/7"], "cables between aggregators go under uplinks"),
        ("fibers/6", ["ocs0/2.1.1", "ocs0/2.1.9"], "cross-connects are circuits, not fibers"),
        ("fibers/1", ["gpu0", "ocs0/1.1.2"], "fibers[1]: endpoint gpu0 has two fibers"),
        ("uplinks/0", ["as0/8", "as0/9"], "does not join two aggregators"),
        ("uplinks/0", ["as0/1", "as1/8"], "uplinks[0]: port as0/1 is used twice"),
        ("endpoints/0/ip", "10.78.0.1", "endpoints[0].ip: 10.78.0.1 is not a host address"),
        ("endpoints/0/ip", "10.77.0.11", "ip 10.77.0.11 is listed twice"),
        ("endpoints/0/mac", "02:4c:4c:00:00:11", "mac 02:4c:4c:00:00:11 is listed twice"),
        ("endpoints/0/mac", "03:4c:4c:00:00:21", "is a multicast address"),
        ("endpoints/0/name", "as0", "name as0 is listed twice"),
        ("endpoints/0/server", "srv9", "endpoints[0].server: unknown server 'srv9'"),
        ("aggregators/1/dpid", 0xA0, "dpid 160 is listed twice"),
        ("homes/gpu9", "as0", "homes.gpu9: unknown endpoint 'gpu9'"),
        ("homes/gpu0", "as9", "homes.gpu0: unknown aggregator 'as9'"),
        ("switches/0/password", {"env": "A", "file": "B"}, "give either env or file"),
        ("switches/0/url", "telnet:nowhere", "switches[0].url"),
    ],
)
def test_mistakes(
    tmp_path: Path, document: dict[str, Any], path: str, value: Any, expected: str
) -> None:
    edit(document, path, value)
    assert any(expected in problem for problem in problems(tmp_path, document))


def test_homes_must_fit_the_ports(tmp_path: Path, document: dict[str, Any]) -> None:
    document["homes"] = {f"gpu{i}": "as0" for i in range(5)}
    assert "as0 has only 4 optical ports" in problems(tmp_path, document)[0]


def test_a_missing_fiber_is_named(tmp_path: Path, document: dict[str, Any]) -> None:
    del document["fibers"][0]
    assert "endpoint gpu0 has no fiber" in problems(tmp_path, document)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", "not a mapping"),
        ("name: ]", "line 1"),
        ("name: a\nname: b\n", "key 'name' is listed twice"),
        ("a: &x 1\nb: *x\n", "aliases"),
        (
            "a: !!python/object/apply:os.getcwd []\n",
            "os.getcwd is not accepted",
        ),
        ("? [a, b]\n: 1\n", "a key must be a plain value"),
        ("[" * 3000, "nested too deeply"),
        ("name: a\n---\nname: b\n", "line 2, column 1: a file must contain only one document"),
        ("a: !!map [1]\n", ""),
    ],
)
def test_unusable_yaml(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in problems(tmp_path, text)[0]


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(SiteFileError, match="No such file"):
        load_site(tmp_path / "nowhere.yaml")


@given(st.text(max_size=200))
def test_any_text_is_refused_with_a_problem(tmp_path_factory: Any, text: str) -> None:
    file = tmp_path_factory.mktemp("fuzz") / "site.yaml"
    file.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(SiteFileError):
        load_site(file)


def test_schema_is_json_and_closed() -> None:
    schema = json.loads(json.dumps(site_schema()))
    assert schema["additionalProperties"] is False
    assert "fibers" in schema["required"]


def test_password_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS_PW", "s3cret")
    assert PasswordRef(env="OCS_PW").resolve() == "s3cret"
    file = tmp_path / "pw"
    file.write_text("s3cret\n")
    file.chmod(0o644)
    with pytest.raises(PermissionError, match="0600"):
        PasswordRef(file=str(file)).resolve()
    file.chmod(0o600)
    assert PasswordRef(file=str(file)).resolve() == "s3cret"


def aggregators_of(tmp_path: Path, document: Any) -> list[Any]:
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(document))
    return list(load_site(file).aggregators)


def test_aggregators_use_tls_by_default(tmp_path: Path, document: dict[str, Any]) -> None:
    del document["controller"]
    assert [a.tls for a in aggregators_of(tmp_path, document)] == [True, True]
    document["aggregators"][0]["tls"] = False
    assert [a.tls for a in aggregators_of(tmp_path, document)] == [False, True]
    document["controller"] = {"openflow": {"tls": False}}
    document["aggregators"][1]["tls"] = True
    assert [a.tls for a in aggregators_of(tmp_path, document)] == [False, True]


def test_pins_of_aggregators(tmp_path: Path, document: dict[str, Any]) -> None:
    printed = ":".join(["AB"] * 32)  # as openssl does
    document["aggregators"][0] |= {"fingerprint": printed, "address": "10.0.0.7"}
    document["aggregators"][1] |= {"certificate": "tor7.dc.example"}
    first, second = aggregators_of(tmp_path, document)
    assert (first.fingerprint, first.address) == ("ab" * 32, "10.0.0.7")
    assert (second.certificate, second.fingerprint, second.address) == (
        "tor7.dc.example",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"fingerprint": "ab" * 32, "certificate": "x.example"}, "either certificate or"),
        ({"tls": False, "certificate": "x.example"}, "a certificate needs TLS"),
        ({"fingerprint": "ab" * 31}, "fingerprint"),
        ({"address": "tor7"}, "address"),
        ({"certificate": "a b"}, "certificate"),
    ],
)
def test_invalid_pins(
    tmp_path: Path, document: dict[str, Any], wrong: dict[str, Any], said: str
) -> None:
    document["aggregators"][0] |= wrong
    (problem,) = problems(tmp_path, document)
    assert said in problem


def test_a_certificate_on_a_site_without_tls(tmp_path: Path, document: dict[str, Any]) -> None:
    document["controller"]["openflow"]["tls"] = False
    document["aggregators"][0]["certificate"] = "x.example"
    (problem,) = problems(tmp_path, document)
    assert "without TLS" in problem
    assert "tls: true" in problem


def test_volumes_of_the_emulated_rack(tmp_path: Path, document: dict[str, Any]) -> None:
    document["emulation"]["volumes"] = {
        "imagenet": {"path": "/srv/imagenet"},
        "scratch": {"mode": "rw"},
    }
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(document))
    emulation = load_site(file).emulation
    assert emulation is not None
    assert emulation.volumes == {
        "imagenet": EmulatedVolume("/srv/imagenet"),
        "scratch": EmulatedVolume(writable=True),
    }


@pytest.mark.parametrize("path", ["relative", "/a/../b", "/a b", "/a:rw", "/"])
def test_a_volume_of_the_rack_with_a_path_that_agents_refuse(
    tmp_path: Path, document: dict[str, Any], path: str
) -> None:
    document["emulation"]["volumes"] = {"data": {"path": path}}
    assert "emulation.volumes.data.path" in problems(tmp_path, document)[0]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("fd00::10:7701", "put an IPv6 address in brackets"),
        ("[fd00::zz]:7701", "IPv6"),
        ("srv0:0", "ports are 1 to 65535"),
        ("srv0:99999", "ports are 1 to 65535"),
        ("srv0", "host:port"),
        ("300.0.0.1:7701", "not a host"),
    ],
)
def test_addresses_that_nobody_can_reach(
    tmp_path: Path, document: dict[str, Any], address: str, said: str
) -> None:
    document["servers"][0]["agent"] = address
    document["controller"]["api"] = address
    document["controller"]["openflow"]["listen"] = address
    found = problems(tmp_path, document)
    assert len(found) == 3
    for problem in found:
        assert said in problem
        assert repr(address) in problem


@pytest.mark.parametrize(
    "host", ["fd00::10:3082", "switch:0", "switch:99999", "[fd00::zz]:3082", "admin@:3082"]
)
def test_a_switch_that_nobody_can_reach(
    tmp_path: Path, document: dict[str, Any], host: str
) -> None:
    document["switches"][0]["url"] = f"polatis+scpi://{host}"
    assert "switches[0].url" in problems(tmp_path, document)[0]


def test_ipv6_in_brackets(tmp_path: Path, document: dict[str, Any]) -> None:
    document["servers"][0]["agent"] = "[fd00::10]:7701"
    document["switches"][0]["url"] = "polatis+scpi://[fd00::11]:5025"
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(document))
    assert load_site(file).server("srv0").agent == "[fd00::10]:7701"
