"""Slurm's configuration files for a rack, from its site file. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Literal

from controller.devices.observed import Published
from controller.devices.slurm import topology
from sitefile import CabledSite
from testbed.rack.layout import PREFIX

MANAGEMENT = IPv4Network("10.199.0.0/16")
"""Network of Slurm's own traffic, in namespaces only."""
CONTROL_NETNS = f"{PREFIX}slurm"
"""Namespace of slurmctld and slurmrestd, and of the bridge to the nodes."""
CGROUP = f"{PREFIX}slurm"
"""Cgroup of the freezer below which the slurmds of all nodes make theirs."""
CPUS = 8
"""What a node reports to have: its jobs share the machine's cores in truth."""
SLURM_USER = "slurm"
HOST = "ctl"


@dataclass(slots=True, frozen=True)
class UnderSlurm:
    """What of a rack belongs to Slurm, and who its jobs' endpoints reach (docs/slurm.md)."""

    isolation: Literal["open", "job"] = "open"
    endpoints: tuple[str, ...] = ()
    """Empty for all; the others stay lightloom's own."""


@dataclass(slots=True, frozen=True)
class SlurmdNode:
    """One slurmd: an endpoint's node, called as the endpoint."""

    name: str
    netns: str
    address: IPv4Address
    """In the management network."""
    endpoint_nic: str
    server_netns: str
    ip: str
    prefix_len: int
    mac: str


@dataclass(slots=True, frozen=True)
class SlurmCluster:
    """The rack's Slurm; ``control`` is slurmctld's address."""

    name: str
    control: IPv4Address
    nodes: tuple[SlurmdNode, ...]


def cluster_of(site: CabledSite) -> SlurmCluster:
    """Return the cluster of a site: every endpoint of its engine is a node with one GPU."""
    hosts = MANAGEMENT.hosts()
    control = next(hosts)
    nodes = tuple(
        SlurmdNode(
            endpoint.name,
            f"{PREFIX}n-{endpoint.name}",
            next(hosts),
            endpoint.nic,
            f"{PREFIX}{endpoint.server}",
            endpoint.ip,
            endpoint.prefix_len,
            endpoint.mac,
        )
        for endpoint in site.endpoints
        if endpoint.name in site.engine_endpoints
    )
    return SlurmCluster(site.name, control, nodes)


def files(cluster: SlurmCluster, homes: Mapping[str, str | None], hook: str) -> dict[str, str]:
    """Return the text of each file in ``/etc/slurm``; ``hook`` runs at allocation and end."""
    names = ",".join(node.name for node in cluster.nodes)
    return {
        "slurm.conf": _slurm_conf(cluster, names, hook),
        "gres.conf": f"NodeName={names} Name=gpu File=/srv/gpu0\n",
        "cgroup.conf": "CgroupPlugin=cgroup/v1\nConstrainCores=no\nConstrainRAMSpace=no\n",
        "topology.conf": topology_conf(cluster, homes),
    }


def topology_conf(cluster: SlurmCluster, homes: Mapping[str, str | None]) -> str:
    """Return the tree of the nodes under their aggregators, as lightloom would publish it."""
    leaves: dict[str, list[str]] = {}
    for node in cluster.nodes:
        if home := homes.get(node.name):
            leaves.setdefault(home, []).append(node.name)
    published = Published(0, {home: tuple(held) for home, held in leaves.items()})
    nodes = {node.name: (node.name,) for node in cluster.nodes}
    return topology.render(cluster.name, 0, topology.leaves_of(published, nodes))


def hosts_file(cluster: SlurmCluster) -> str:
    """Return ``/etc/hosts`` of slurmctld and of all nodes; ``NODE.data`` is its endpoint's NIC."""
    lines = ["127.0.0.1 localhost", f"{cluster.control} {HOST}"]
    lines += [f"{node.address} {node.name}" for node in cluster.nodes]
    lines += [f"{node.ip} {node.name}.data" for node in cluster.nodes]
    return "\n".join(lines) + "\n"


def engine_section(
    site: CabledSite, folder: Path, prefix: Sequence[str], wanted: UnderSlurm
) -> dict[str, object]:
    """Return the section ``engine`` of the rack's site file; ``folder`` is Slurm's of the rack."""
    names = wanted.endpoints or tuple(endpoint.name for endpoint in site.endpoints)
    return {
        "kind": "slurm",
        "transport": "rest",
        "api": f"unix:{folder / 'run' / 'restd' / 's.sock'}",
        "user": SLURM_USER,
        "token": {"file": str(folder / "token")},
        "prefix": list(prefix),
        "nodes": {name: [name] for name in names},
        "topology": {"file": str(folder / "etc" / "topology.conf")},
        "isolation": wanted.isolation,
    }


def _slurm_conf(cluster: SlurmCluster, names: str, hook: str) -> str:
    nodes = "\n".join(
        f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS} RealMemory=1000 Gres=gpu:1"
        for node in cluster.nodes
    )
    return f"""\
ClusterName={cluster.name}
SlurmctldHost={HOST}({cluster.control})
AuthType=auth/slurm
CredType=auth/slurm
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=/etc/slurm/jwt.key
SlurmUser={SLURM_USER}
StateSaveLocation=/var/spool/ctld
SlurmdSpoolDir=/var/spool/slurmd-%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_min_interval=100000
MpiDefault=none
ReturnToService=2
KillWait=5
GresTypes=gpu
TopologyPlugin=topology/tree
PrologSlurmctld={hook}
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE OverSubscribe=NO
"""
