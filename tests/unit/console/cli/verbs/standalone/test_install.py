"""The verbs ``install`` and ``uninstall``, on a folder that is a machine's root."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from console.cli.install import machine
from console.cli.main import main

SITE = "testbed/sites/paper.yaml"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(machine, "program_folder", lambda root, scripts: "/opt/lightloom/bin")
    (tmp_path / "etc").mkdir()
    return tmp_path


def planned(capsys: pytest.CaptureFixture[str], root: Path, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--root", str(root), "--dry-run", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def error(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> dict[str, str]:
    capsys.readouterr()
    assert main([*words, "-o", "json"]) == code
    found = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert found["hint"]
    return dict(found)


def test_a_dry_run_says_everything_and_does_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(capsys, root, "install", "controller", "--site", SITE)
    assert found["dryRun"]
    created = {s["name"] for s in found["steps"] if s["action"] == "created"}
    assert {"lightloom", "/etc/lightloom/site.yaml"} <= created
    assert found["changed"] == len(created)
    assert "systemctl enable --now lightloom-controller" in found["next"]
    assert [path.name for path in root.iterdir()] == ["etc"]


def test_a_table_and_advice(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["install", "agent", "--server", "srv0", "--root", str(root), "--dry-run"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "created" in out
    assert "would change" in err
    assert "next: systemctl enable --now lightloom-agent" in err


def test_removing_what_is_not_installed_does_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert planned(capsys, root, "uninstall", "agent", "--purge")["steps"] == []


def test_an_agent_needs_a_server_that_its_site_has(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = ("install", "agent", "--dry-run", "--root", str(root))
    assert "name of its server" in error(capsys, 2, *agent)["message"]
    unknown = error(capsys, 5, *agent, "--site", SITE, "--server", "srv9")
    assert unknown["object"] == "server/srv9"
    assert "srv0" in unknown["hint"]
    planned(capsys, root, "install", "agent", "--site", SITE, "--server", "srv1")


def test_existing_options_of_an_agent_name_its_server(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = root / "etc/lightloom"
    folder.mkdir()
    (folder / "agent.env").write_text(
        '# --server old\nLIGHTLOOM_AGENT_OPTIONS="--volume a=/a --server=srv2"\n'
    )
    (folder / "site.yaml").write_text(Path(SITE).read_text())
    found = planned(capsys, root, "install", "agent")
    kept = {s["name"] for s in found["steps"] if s["action"] == "kept"}
    assert kept == {"/etc/lightloom/agent.env", "/etc/lightloom/site.yaml"}
    other = error(
        capsys, 6, "install", "agent", "--root", str(root), "--dry-run", "--server", "srv3"
    )
    assert other["message"] == "/etc/lightloom/agent.env names srv2, not srv3"


def test_bad_words_are_refused_by_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dry = ("--dry-run", "--root", str(root))
    error(capsys, 2, "install", "controller", "--server", "srv0", *dry)
    missing = error(capsys, 5, "install", "controller", "--site", "no.yaml", *dry)
    assert missing["object"] == "no.yaml"
    error(capsys, 5, "install", "controller", "--root", str(root / "none"))
    error(capsys, 2, "install", "switch", *dry)


@pytest.mark.parametrize("verb", ["install", "uninstall"])
def test_only_root_may_change_a_machine(
    verb: str, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    refused = error(capsys, 4, verb, "controller", "--root", str(root))
    assert "root" in refused["message"]


def test_a_purge_asks_first(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    options = root / "etc/lightloom/agent.env"
    options.parent.mkdir()
    options.touch()
    words = ("uninstall", "agent", "--purge", "--root", str(root))
    assert error(capsys, 2, *words)["hint"] == "add --yes"
    assert options.exists()
    assert main([*words, "--yes"]) == 0
    assert not options.exists()
