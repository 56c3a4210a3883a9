"""Where the command finds its token, and how it keeps what it is given."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from console.cli.ask.settings import DEFAULT_URL, Flags, resolve
from console.cli.errors import CliError
from testbed.token import lane_url, local_token, running_racks
from tests.unit.console.cli.conftest import Run

FROM = {"file": "ll_file", "env": "ll_env", "flag": "ll_flag"}


def rack(directory: Path, url: str, token: str) -> None:
    (directory / "controller").mkdir(parents=True)
    (directory / "rack.json").write_text(json.dumps({"url": url}))
    (directory / "controller" / "admin.token").write_text(token + "\n")


def test_the_token_of_the_rack_that_serves_the_url(tmp_path: Path) -> None:
    rack(tmp_path / "one", "http://127.0.0.1:1", "ll_one")
    rack(tmp_path / "two", "http://127.0.0.1:2", "ll_two")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rack.json").write_text("{")
    installed = tmp_path / "installed"
    known = partial(local_token, racks=tmp_path, installed=installed, lanes=tmp_path / "lanes")
    assert known("http://127.0.0.1:2") == "ll_two"
    assert known("http://127.0.0.1:3") is None
    installed.mkdir()
    (installed / "admin.token").write_text("ll_real")
    assert known("http://127.0.0.1:3") == "ll_real"


def record(directory: Path, url: str, pid: int) -> None:
    """Write the record of a rack whose controller has this pid."""
    rack(directory, url, f"ll_{directory.name}")
    processes = [{"name": "agent-srv0", "pid": os.getpid()}, {"name": "controller", "pid": pid}]
    (directory / "rack.json").write_text(json.dumps({"url": url, "processes": processes}))


def test_a_rack_runs_while_its_controller_does(tmp_path: Path) -> None:
    assert running_racks(tmp_path, tmp_path / "lanes") == []
    record(tmp_path / "up", "http://127.0.0.1:1", os.getpid())
    record(tmp_path / "crashed", "http://127.0.0.1:2", 2**22 + 1)  # above the largest pid
    rack(tmp_path / "starting", "http://127.0.0.1:3", "ll_starting")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "rack.json").write_text("[]")
    assert running_racks(tmp_path, tmp_path / "lanes") == ["http://127.0.0.1:1"]


def lane(lanes: Path, name: str, ports: dict[str, int]) -> None:
    """Write the record of a lane whose first process is this one."""
    (lanes / name).mkdir(parents=True)
    content = {"name": name, "first": os.getpid(), "ports": ports}
    (lanes / name / "lane.json").write_text(json.dumps(content))


def test_a_rack_in_a_lane_is_known_by_the_port_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, lanes = tmp_path / "inside", tmp_path / "lanes"
    record(inside / "rack", "http://127.0.0.1:8470", os.getpid())
    lane(lanes, "red", {"8470": 41234})
    lane(lanes, "silent", {})
    (lanes / "starting").mkdir()
    monkeypatch.setattr("testbed.token.RACKS", inside)
    nowhere = tmp_path / "none"
    assert running_racks(nowhere, lanes) == ["http://127.0.0.1:41234"]
    assert lane_url("red", lanes) == "http://127.0.0.1:41234"
    assert lane_url("silent", lanes) is None
    assert local_token("http://127.0.0.1:41234", nowhere, nowhere, lanes) == "ll_rack"
    assert local_token("http://127.0.0.1:8470", nowhere, nowhere, lanes) is None


def test_the_environment_names_a_lane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = {"red": "http://127.0.0.1:41234"}
    monkeypatch.setattr("testbed.token.lane_url", urls.get)
    monkeypatch.setattr("testbed.token.local_token", lambda url: None)
    env = {"XDG_CONFIG_HOME": str(tmp_path), "LIGHTLOOM_LANE": "red"}
    assert resolve(environment=env).url == urls["red"]
    assert resolve(environment={**env, "LIGHTLOOM_URL": "http://there"}).url == "http://there"
    with pytest.raises(CliError) as caught:
        resolve(environment={**env, "LIGHTLOOM_LANE": "blue"})
    assert "blue" in caught.value.message


def test_the_running_rack_before_the_default_and_after_all_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "one", "http://127.0.0.1:1", os.getpid())
    monkeypatch.setattr(
        "testbed.token.running_racks", lambda: running_racks(tmp_path, tmp_path / "lanes")
    )
    monkeypatch.setattr("testbed.token.local_token", lambda url: local_token(url, tmp_path))
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = resolve(environment=env)
    assert (found.url, found.token) == ("http://127.0.0.1:1", "ll_one")
    assert resolve(Flags(token=FROM["flag"]), env).token == FROM["flag"]

    config = tmp_path / "lightloom" / "config.yaml"
    config.parent.mkdir()
    config.write_text("url: http://127.0.0.1:2\n")
    assert resolve(environment=env).url == "http://127.0.0.1:2"
    assert resolve(environment=env | {"LIGHTLOOM_URL": "http://[::1]:3"}).url == "http://[::1]:3"
    assert resolve(Flags(url="http://localhost:4"), env).url == "http://localhost:4"
    config.unlink()

    record(tmp_path / "two", "http://127.0.0.1:2", os.getpid())
    assert resolve(environment=env).url == DEFAULT_URL  # two run: the command does not guess


def test_the_hint_names_the_rack_that_runs_elsewhere(
    offline: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.token.running_racks", lambda: ["http://127.0.0.1:18470"])
    done = offline("--url", "http://127.0.0.1:1", "get", "jobs")
    assert done.code == 7
    assert "lightloom --url http://127.0.0.1:18470" in done.err


def test_flag_before_environment_before_file(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(FROM["file"] + "\n")
    secret.chmod(0o600)
    env = {"XDG_CONFIG_HOME": str(tmp_path), "LIGHTLOOM_URL": "https://ctl:8470"}
    assert resolve(environment=env).token is None
    env["LIGHTLOOM_TOKEN_FILE"] = str(secret)
    assert resolve(environment=env).token == FROM["file"]
    env["LIGHTLOOM_TOKEN"] = FROM["env"]
    assert resolve(environment=env).token == FROM["env"]
    assert resolve(Flags(token=FROM["flag"]), env).token == FROM["flag"]
    del env["LIGHTLOOM_TOKEN"]
    secret.chmod(0o644)
    with pytest.raises(CliError, match="others can read it"):
        resolve(environment=env)


def test_a_bad_certificate_file_is_a_usage_error(
    offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = tmp_path / "ca.pem"
    bad.write_text("nonsense")
    monkeypatch.setenv("LIGHTLOOM_CA_FILE", str(bad))
    done = offline("--url", "https://127.0.0.1:1", "get", "jobs")
    assert done.code == 2
    assert "ca.pem" in done.err


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8470", True),
        ("https://127.1.2.3", True),
        ("http://localhost:8470/", True),
        ("http://LOCALHOST", True),
        ("http://[::1]:8470", True),
        ("http://localhost.evil.example", False),
        ("https://localhost.evil.example:8470", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://127.evil.example", False),
        ("http://localhost@evil.example", False),
        ("http://127.0.0.1:x@evil.example", False),
        ("http://localhost\\@evil.example", False),
        ("http://evil.example#@localhost", False),
        ("http://128.0.0.1", False),
        ("http://[::2]", False),
        ("http://[", False),
    ],
)
def test_the_token_of_this_machine_goes_nowhere_else(
    url: str, local: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def token(url: str) -> str:
        asked.append(url)
        return "ll_admin"

    monkeypatch.setattr("testbed.token.local_token", token)
    env = {"XDG_CONFIG_HOME": str(tmp_path), "LIGHTLOOM_URL": url}
    assert resolve(environment=env).token == ("ll_admin" if local else None)
    assert bool(asked) is local
