"""The site file's engine: a scheduler beside lightloom, its nodes and their endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sitefile import CabledSite, EnginePolicy, SiteFileError, load_site, site_schema
from tests.parts.sites import PAPER

NODES = {"n0": ["gpu0", "gpu1"], "n1": ["gpu2", "gpu3"]}
CLI = {"kind": "slurm", "transport": "cli", "nodes": NODES}
REST = {
    **CLI,
    "transport": "rest",
    "api": "unix:/run/slurmrestd/s.sock",
    "token": {"file": "/etc/lightloom/slurm.token"},
}


def load(tmp_path: Path, engine: Any, **sections: Any) -> CabledSite:
    document = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    document["endpoints"] = [
        {**e, "server": f"srv{int(e['name'].removeprefix('gpu')) // 2}", "nic": f"nic{i}"}
        for i, e in enumerate(document["endpoints"])
    ]
    document["servers"] = [
        {"name": f"srv{i}", "agent": f"10.0.0.{i + 1}:7443"}
        for i in range((len(document["endpoints"]) + 1) // 2)
    ]
    if engine is not None:
        document["engine"] = engine
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump({**document, **sections}))
    return load_site(file)


def test_no_engine(tmp_path: Path) -> None:
    site = load(tmp_path, None)
    assert site.engine is None
    assert site.engine_endpoints == frozenset()


def test_slurmrestd_with_a_topology(tmp_path: Path) -> None:
    topology = {"file": "/etc/slurm/topology.conf"}
    site = load(tmp_path, {**REST, "topology": topology, "hook": {"wait_s": 5}})
    assert site.engine == EnginePolicy(
        kind="slurm",
        transport="rest",
        nodes={"n0": ("gpu0", "gpu1"), "n1": ("gpu2", "gpu3")},
        api="unix:/run/slurmrestd/s.sock",
        token=Path("/etc/lightloom/slurm.token"),
        topology=Path("/etc/slurm/topology.conf"),
        publish=True,
        hook_wait_s=5,
    )
    assert site.engine_endpoints == {"gpu0", "gpu1", "gpu2", "gpu3"}


def test_slurms_programs_in_another_root(tmp_path: Path) -> None:
    prefix = ["/usr/sbin/chroot", "/srv/slurm"]
    engine = load(tmp_path, {**CLI, "programs": "/opt/slurm/bin", "prefix": prefix}).engine
    assert engine is not None
    assert engine.programs == Path("/opt/slurm/bin")
    assert engine.prefix == ("/usr/sbin/chroot", "/srv/slurm")
    assert not engine.publish


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({**REST, "api": None}, "needs api and token"),
        ({**REST, "token": None}, "needs api and token"),
        ({**CLI, "api": "unix:/run/s.sock"}, "uses no api"),
        ({**REST, "api": "http://10.0.0.1:6820"}, "loopback"),
        ({**REST, "api": "https://user@slurm:6820"}, "api"),
        ({**REST, "api": "https://slurm:99999"}, "ports are 1 to 65535"),
        ({**REST, "api": "https://slurm:0/"}, "ports are 1 to 65535"),
        ({**REST, "api": "https://fd00::10:6820"}, "in brackets"),
        ({**CLI, "nodes": {}}, "nodes"),
        ({**CLI, "nodes": {"n0": []}}, "has no endpoints"),
        ({**CLI, "nodes": {"n[0-1]": ["gpu0"]}}, "nodes"),
        ({**CLI, "nodes": {"n0": ["gpu99"]}}, "unknown endpoint 'gpu99'"),
        ({**CLI, "nodes": {"n0": ["gpu0"], "n1": ["gpu0"]}}, "in node n0 already"),
        ({**CLI, "nodes": {"n0": ["gpu0", "gpu2"]}}, "several servers"),
        ({**CLI, "prefix": ["chroot"]}, "absolute path"),
        ({**CLI, "kind": "lsf"}, "slurm"),
        ({**CLI, "hook": {"wait_s": 0}}, "wait_s"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, engine: Any, words: str) -> None:
    with pytest.raises(SiteFileError, match=words):
        load(tmp_path, engine)


def test_a_spare_is_not_the_engines(tmp_path: Path) -> None:
    with pytest.raises(SiteFileError, match=r"engine\.nodes\.n0\[1\].*gpu1.*recovery\.spares"):
        load(tmp_path, CLI, recovery={"spares": ["gpu1", "gpu5"]})
    assert load(tmp_path, CLI, recovery={"spares": ["gpu5"]}).engine is not None


@pytest.mark.parametrize("api", ["http://127.0.0.1:6820", "http://[::1]:6820/", "https://slurm"])
def test_addresses_that_keep_the_token(tmp_path: Path, api: str) -> None:
    engine = load(tmp_path, {**REST, "api": api}).engine
    assert engine is not None
    assert engine.api == api.rstrip("/")


def test_the_schema_shows_the_section() -> None:
    assert "EngineModel" in site_schema()["$defs"]
