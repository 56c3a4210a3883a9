"""Slurm's files on a rack, from its site file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from controller.devices.slurm.topology import mark_of
from sitefile import CabledSite, load_site
from testbed.demo import PAPER_SITE
from testbed.rack import programs as rack_programs
from testbed.rack.layout import MAX_NAME
from testbed.rack.slurm import config, programs
from testbed.rack.slurm.config import UnderSlurm

SITE = load_site(PAPER_SITE)
ALL = UnderSlurm("job")
FOLDER = Path("/run/lightloom/rack/slurm")


def under_slurm(folder: Path, wanted: UnderSlurm = ALL) -> CabledSite:
    prefix = programs.client(FOLDER, Path("/root-of-slurm"), ())
    section = config.engine_section(SITE, FOLDER, prefix, wanted)
    path = folder / "site.yaml"
    text = PAPER_SITE.read_text(encoding="utf-8")
    path.write_text(text + "\n" + yaml.safe_dump({"engine": section}), encoding="utf-8")
    return load_site(path)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> config.SlurmCluster:
    return config.cluster_of(under_slurm(tmp_path_factory.mktemp("site")))


def test_every_endpoint_is_a_node_with_addresses_of_its_own(cluster: config.SlurmCluster) -> None:
    assert [node.name for node in cluster.nodes] == [e.name for e in SITE.endpoints]
    addresses = [cluster.control, *(node.address for node in cluster.nodes)]
    assert len(set(addresses)) == len(addresses)
    assert all(address in config.MANAGEMENT for address in addresses)
    hosts = config.hosts_file(cluster)
    assert f"{cluster.nodes[0].address} gpu0\n" in hosts
    assert all(len(node.netns) <= 2 * MAX_NAME for node in cluster.nodes)


def test_the_first_topology_is_lightlooms_own(cluster: config.SlurmCluster) -> None:
    files = config.files(cluster, SITE.homes, programs.HOOK)
    mark = mark_of(files["topology.conf"])
    assert mark is not None
    assert (mark.site, mark.epoch) == ("paper", 0)
    assert "SwitchName=as0 Nodes=gpu[0-1,4]" in files["topology.conf"]
    assert "PrologSlurmctld=/etc/slurm/hook" in files["slurm.conf"]
    assert "NodeName=gpu5 " in files["slurm.conf"]


def test_the_racks_section_is_a_site_files(tmp_path: Path) -> None:
    site = under_slurm(tmp_path)
    assert site.engine is not None
    assert (site.engine.isolation, site.engine.publish) == ("job", True)
    assert site.engine_endpoints == {e.name for e in SITE.endpoints}


def test_some_endpoints_may_stay_lightlooms_own(tmp_path: Path) -> None:
    site = under_slurm(tmp_path, UnderSlurm("open", ("gpu4", "gpu5")))
    assert site.engine_endpoints == {"gpu4", "gpu5"}
    cluster = config.cluster_of(site)
    assert [node.name for node in cluster.nodes] == ["gpu4", "gpu5"]
    assert "Nodes=gpu[0-1,4]" not in config.topology_conf(cluster, site.homes)


def test_agents_may_freeze_the_jobs_of_their_nodes(tmp_path: Path) -> None:
    site = under_slurm(tmp_path)
    argv = rack_programs.agent(tmp_path, site, site.server("srv0"), "unix:///d.sock", {}).argv
    at = argv.index("--observe")
    assert argv[at : at + 6] == (
        *("--observe", "slurm", "--observe-nodes", "gpu0,gpu1"),
        *("--observe-below", "ll-slurm"),
    )
    plain = rack_programs.agent(tmp_path, SITE, SITE.server("srv0"), "unix:///d.sock", {}).argv
    assert "--observe" not in plain


def test_nodes_are_up_when_all_are_idle(cluster: config.SlurmCluster) -> None:
    idle = "\n".join(f"{node.name} idle" for node in cluster.nodes)
    assert programs.nodes_up(idle, cluster)
    assert not programs.nodes_up(idle.replace("gpu3 idle", "gpu3 idle*"), cluster)
    assert not programs.nodes_up("", cluster)
