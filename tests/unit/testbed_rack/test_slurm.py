"""Slurm's files on a rack, from its site file."""

from __future__ import annotations

from pathlib import Path

import yaml

from controller.devices.slurm.topology import mark_of
from sitefile import load_site
from testbed.demo import PAPER_SITE
from testbed.rack import programs as rack_programs
from testbed.rack.layout import MAX_NAME
from testbed.rack.slurm import config, programs

SITE = load_site(PAPER_SITE)
CLUSTER = config.cluster_of(SITE)
FOLDER = Path("/run/lightloom/rack/slurm")


def under_slurm(tmp_path: Path) -> Path:
    prefix = programs.client(FOLDER, Path("/root-of-slurm"), ())
    section = config.engine_section(SITE, FOLDER, prefix, isolation="job")
    path = tmp_path / "site.yaml"
    text = PAPER_SITE.read_text(encoding="utf-8")
    path.write_text(text + "\n" + yaml.safe_dump({"engine": section}), encoding="utf-8")
    return path


def test_every_endpoint_is_a_node_with_addresses_of_its_own() -> None:
    assert [node.name for node in CLUSTER.nodes] == [e.name for e in SITE.endpoints]
    addresses = [CLUSTER.control, *(node.address for node in CLUSTER.nodes)]
    assert len(set(addresses)) == len(addresses)
    assert all(address in config.MANAGEMENT for address in addresses)
    hosts = config.hosts_file(CLUSTER)
    assert f"{CLUSTER.nodes[0].address} gpu0\n" in hosts
    assert all(len(node.netns) <= 2 * MAX_NAME for node in CLUSTER.nodes)


def test_the_first_topology_is_lightlooms_own() -> None:
    files = config.files(CLUSTER, SITE.homes, programs.HOOK)
    mark = mark_of(files["topology.conf"])
    assert mark is not None
    assert (mark.site, mark.epoch) == ("paper", 0)
    assert "SwitchName=as0 Nodes=gpu[0-1,4]" in files["topology.conf"]
    assert "PrologSlurmctld=/etc/slurm/hook" in files["slurm.conf"]
    assert "NodeName=gpu5 " in files["slurm.conf"]


def test_the_racks_section_is_a_site_files(tmp_path: Path) -> None:
    site = load_site(under_slurm(tmp_path))
    assert site.engine is not None
    assert (site.engine.isolation, site.engine.publish) == ("job", True)
    assert site.engine_endpoints == {e.name for e in SITE.endpoints}


def test_agents_may_freeze_the_jobs_of_their_nodes(tmp_path: Path) -> None:
    site = load_site(under_slurm(tmp_path))
    argv = rack_programs.agent(tmp_path, site, site.server("srv0"), "unix:///d.sock", {}).argv
    at = argv.index("--observe")
    assert argv[at : at + 6] == (
        *("--observe", "slurm", "--observe-nodes", "gpu0,gpu1"),
        *("--observe-below", "ll-slurm"),
    )
    plain = rack_programs.agent(tmp_path, SITE, SITE.server("srv0"), "unix:///d.sock", {}).argv
    assert "--observe" not in plain


def test_nodes_are_up_when_all_are_idle() -> None:
    idle = "\n".join(f"{node.name} idle" for node in CLUSTER.nodes)
    assert programs.nodes_up(idle, CLUSTER)
    assert not programs.nodes_up(idle.replace("gpu3 idle", "gpu3 idle*"), CLUSTER)
    assert not programs.nodes_up("", CLUSTER)
