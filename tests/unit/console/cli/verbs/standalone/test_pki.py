from __future__ import annotations

import json
from pathlib import Path

import pytest

from console.cli.errors import CliError
from console.cli.main import main
from console.cli.verbs.standalone.daemons import from_site

SITE = "testbed/sites/paper.yaml"


def test_an_authority_and_two_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--dir", str(tmp_path)]
    assert main(["pki", "init", *where]) == 0
    assert main(["pki", "issue", "agent", "srv0", *where]) == 0
    capsys.readouterr()
    assert main(["pki", "issue", "controller", *where, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "controller.lightloom"
    assert sorted(p.name for p in (tmp_path / "srv0").iterdir()) == [
        "ca.pem",
        "cert.pem",
        "key.pem",
    ]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["issue", "agent", "srv0"], 5),  # no authority yet
        (["issue", "agent"], 2),
        (["issue", "aggregator"], 2),
        (["issue", "aggregator", "as0,AS1"], 5),
        (["issue", "controller", "srv0"], 2),
        (["issue", "agent", "SRV 0"], 5),
    ],
)
def test_what_cannot_be_issued(
    tmp_path: Path, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pki", *words, "--dir", str(tmp_path)]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_second_authority_is_a_conflict(tmp_path: Path) -> None:
    assert main(["pki", "init", "--dir", str(tmp_path)]) == 0
    assert main(["pki", "init", "--dir", str(tmp_path)]) == 6


def test_an_agent_reads_its_endpoints_from_the_site() -> None:
    words = from_site(["--site", SITE, "--server", "srv0", "--tls", "/x"])
    assert words[:4] == ["--server", "srv0", "--tls", "/x"]
    endpoints = json.loads(words[words.index("--endpoints") + 1])
    assert endpoints[0]["name"] == "gpu0"
    assert endpoints[0]["attach"] == "move"
    assert words[words.index("--listen") + 1].startswith("0.0.0.0:77")


def test_what_is_given_wins_over_the_site() -> None:
    words = from_site([f"--site={SITE}", "--server=srv0", "--listen", "127.0.0.1:1"])
    assert words.count("--listen") == 1
    assert not [w for w in words if w.startswith("--site")]
    assert from_site(["--server", "x"]) == ["--server", "x"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--site", SITE, "--server", "srv99"], "not_found"),
        (["--site", SITE], "usage"),
        (["--site", "/nowhere.yaml", "--server", "srv0"], "usage"),
    ],
)
def test_a_server_the_site_does_not_have(words: list[str], code: str) -> None:
    with pytest.raises(CliError) as refused:
        from_site(words)
    assert refused.value.code == code
