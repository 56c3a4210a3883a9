from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from container_mgr import __main__ as program
from container_mgr.daemon import (
    AgentConfig,
    AgentStartError,
    check,
    parse_endpoints,
    parse_users,
    parse_volumes,
    serve,
)
from container_mgr.users import RankUser, RankUsers
from container_mgr.values import ServedEndpoint
from pki import Authority
from tests.unit.container_mgr.specs import TLS

ENDPOINTS = (ServedEndpoint("gpu0", "ens1f0"),)


def test_an_agent_requires_certificates_also_on_loopback() -> None:
    """Any local account could call it there."""
    done = subprocess.run(
        [sys.executable, "-m", "container_mgr", "--server", "srv0", "--endpoints", "gpu0=ens1f0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--tls" in done.stderr


@pytest.mark.parametrize("listen", ["127.0.0.1:7701", "[::]:0", "localhost:1"])
def test_valid_listen_addresses(listen: str) -> None:
    check(AgentConfig("srv0", TLS, listen=listen, endpoints=ENDPOINTS))


BAD = ("127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "fd00::10:7701", "::1", ":7701", "[::1:7701")


@pytest.mark.parametrize("listen", ["", *BAD])
def test_an_invalid_listen_address(listen: str) -> None:
    with pytest.raises(AgentStartError, match=r"host:port|\[IPv6 address\]:port") as refused:
        check(AgentConfig("srv0", TLS, listen=listen, endpoints=ENDPOINTS))
    assert (refused.value.code, refused.value.obj) == ("invalid", "--listen")


@pytest.mark.parametrize("transfer", BAD)
def test_an_invalid_address_of_transfers(transfer: str) -> None:
    with pytest.raises(AgentStartError, match=r"host:port|\[IPv6 address\]:port") as refused:
        check(AgentConfig("srv0", TLS, transfer=transfer, endpoints=ENDPOINTS))
    assert refused.value.obj == "--transfer"


def test_a_real_server_must_list_its_endpoints() -> None:
    with pytest.raises(AgentStartError) as refused:
        check(AgentConfig("srv0", TLS))
    assert "--endpoints" in refused.value.hint


def test_a_namespace_that_does_not_exist() -> None:
    with pytest.raises(AgentStartError) as refused:
        check(AgentConfig("srv0", TLS, nic_netns="ll-none-such"))
    assert refused.value.code == "not_found"


def test_endpoints_as_pairs_or_json() -> None:
    assert parse_endpoints("") == ()
    pairs = parse_endpoints("gpu0=ens1f0, gpu1=ens1f1")
    assert pairs == (ServedEndpoint("gpu0", "ens1f0"), ServedEndpoint("gpu1", "ens1f1"))
    text = json.dumps([{"name": "gpu0", "nic": "ens1f0", "gpu_uuid": "GPU-1"}])
    assert parse_endpoints(text) == (ServedEndpoint("gpu0", "ens1f0", "GPU-1"),)


@pytest.mark.parametrize("text", ["gpu0", "[1]", "[{}]", "[", '[{"name": "x"}]'])
def test_endpoints_that_cannot_be_read(text: str) -> None:
    with pytest.raises(AgentStartError) as refused:
        parse_endpoints(text)
    assert refused.value.obj == "--endpoints"


async def test_an_agent_without_an_engine_reports_it(tmp_path: Path) -> None:
    config = AgentConfig(
        "srv0",
        certificates(tmp_path),
        docker_host=f"unix://{tmp_path}/none.sock",
        endpoints=ENDPOINTS,
        state_dir=tmp_path,
    )
    with pytest.raises(AgentStartError) as refused:
        await serve(config, asyncio.Event())
    assert (refused.value.code, refused.value.obj) == ("unavailable", "docker")


def certificates(directory: Path, server: str = "srv0", days: int = 10) -> Path:
    now = datetime.now(UTC) - timedelta(days=5)
    Authority.create(directory / "ca", "test", now=now).issue_agent(
        server, directory / server, now=now, days=days
    )
    return directory / server


@pytest.mark.parametrize(
    ("server", "days", "word"),
    [("srv1", 10, "srv1.agent.lightloom"), ("srv0", 1, "expired"), ("none", 10, "no such file")],
)
async def test_an_agent_with_an_invalid_certificate_does_not_start(
    tmp_path: Path, server: str, days: int, word: str
) -> None:
    tls = tmp_path / "none" if server == "none" else certificates(tmp_path, server, days)
    config = AgentConfig("srv0", tls, listen="0.0.0.0:7701", endpoints=ENDPOINTS)
    with pytest.raises(AgentStartError) as refused:
        await serve(config, asyncio.Event())
    assert word in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("options", "space", "keep"),
    [
        ([], None, None),
        (["--image-space", "200GiB", "--keep-images", "14d"], 200 * 2**30, 14 * 86400.0),
        (["--image-space", "0.5TiB", "--keep-images", "36h"], 2**39, 36 * 3600.0),
    ],
)
def test_how_long_pulled_images_stay(
    monkeypatch: pytest.MonkeyPatch, options: list[str], space: int | None, keep: float | None
) -> None:
    given: list[AgentConfig] = []
    monkeypatch.setattr(program, "run", given.append)
    monkeypatch.setattr("sys.argv", ["agent", "--server", "srv0", "--tls", str(TLS), *options])
    assert program.main() == 0
    assert (given[0].image_space_bytes, given[0].keep_images_s) == (space, keep)


def test_another_scheduler_is_observed_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[AgentConfig] = []
    monkeypatch.setattr(program, "run", given.append)
    words = ["agent", "--server", "srv0", "--tls", str(TLS)]
    for options in ([], ["--observe", "slurm", "--observe-nodes", "n0, n1"]):
        monkeypatch.setattr("sys.argv", [*words, *options])
        assert program.main() == 0
    assert [(c.observe, list(c.observe_nodes)) for c in given] == [
        ("", []),
        ("slurm", ["n0", "n1"]),
    ]
    check(AgentConfig("srv0", TLS, endpoints=ENDPOINTS, observe="slurm", observe_nodes=["n0"]))


@pytest.mark.parametrize(
    ("observe", "nodes", "option"),
    [
        ("pbs", [], "--observe"),
        ("slurm", ["../n0"], "--observe-nodes"),
        ("slurm", ["n0", ""], "--observe-nodes"),
        ("", ["n0"], "--observe-nodes"),
    ],
)
def test_what_cannot_be_observed_is_named(observe: str, nodes: list[str], option: str) -> None:
    config = AgentConfig("srv0", TLS, endpoints=ENDPOINTS, observe=observe, observe_nodes=nodes)
    with pytest.raises(AgentStartError) as refused:
        check(config)
    assert (refused.value.code, refused.value.obj) == ("invalid", option)


async def test_a_server_without_a_freezer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("container_mgr.kernel.cgroup.freezer_hierarchies", list)
    config = AgentConfig("srv0", certificates(tmp_path), endpoints=ENDPOINTS, observe="slurm")
    with pytest.raises(AgentStartError, match="freezer") as refused:
        await serve(config, asyncio.Event())
    assert refused.value.obj == "--observe"


@pytest.mark.parametrize("text", ["200", "GiB", "-1GiB", "infGiB", "nanGiB", "14d"])
def test_an_image_space_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    words = ["agent", "--server", "srv0", "--tls", str(TLS), f"--image-space={text}"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        program.main()
    assert "is not a number with MiB or GiB or TiB" in capsys.readouterr().err


def test_volumes_of_options_and_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "volumes.yaml"
    file.write_text("scratch: {path: /srv/s, mode: rw}", encoding="utf-8")
    found = parse_volumes(["data=/srv/data:ro,mount"], file)
    assert [(offer.name, offer.writable, offer.mount) for offer in found] == [
        ("data", False, True),
        ("scratch", True, False),
    ]
    check(AgentConfig("srv0", TLS, endpoints=ENDPOINTS, volumes=found))


@pytest.mark.parametrize("text", ["data", "data=etc", "data=/etc", "../data=/srv/data"])
def test_a_volume_that_cannot_be_offered_is_named(text: str) -> None:
    with pytest.raises(AgentStartError) as refused:
        parse_volumes([text], None)
    assert (refused.value.code, refused.value.obj) == ("invalid", "--volume")


def test_a_file_of_volumes_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AgentStartError, match=r"none\.yaml"):
        parse_volumes([], tmp_path / "none.yaml")


def test_volumes_that_collide_are_refused() -> None:
    found = parse_volumes(["a=/srv/a:rw", "b=/srv/a/b"], None)
    with pytest.raises(AgentStartError, match="b lies inside volume a"):
        check(AgentConfig("srv0", TLS, endpoints=ENDPOINTS, volumes=found))


def test_users_of_ranks() -> None:
    assert parse_users("5000:6000", "1000-2000") == RankUsers(RankUser(5000, 6000), 1000, 2000)
    for given in (("0", "1000-2000"), ("root", "1000-2000"), ("5000", "0-9")):
        with pytest.raises(AgentStartError):
            parse_users(*given)
