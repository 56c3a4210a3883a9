"""The topology that Slurm gets: which of its nodes are near each other. Pure.

A tree: a leaf for each aggregator that has whole nodes, and one core above all. A node whose
endpoints are under several aggregators, or dark, is near no other and has a leaf of its own. All
nodes are in it: Slurm starts no job of several nodes on one that is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.devices.observed import Published
from controller.devices.slurm.documents import clean
from controller.devices.slurm.hostlists import MAX_NAMES, compress, expand

CORE = "lightloom_core"
ALONE = "alone_"
OTHER = "other_nodes"
"""Leaf of the nodes that the site file does not map; aggregators have no underscore."""
MAX_FILE = 2**24

_HEADER = "# Written by lightloom for site {site}, epoch {epoch}. Changes by hand are lost."
_MARK = re.compile(r"# Written by lightloom for site ([a-z0-9-]{1,63}), epoch ([0-9]{1,18})\.")
_SWITCH = re.compile(
    r"SwitchName=([^\s=]{1,255}) Level=([0-9]{1,3}) LinkSpeed=[0-9]+ Nodes=([^\s=]*)"
    r"(?: Switches=[^\s=]*)?\s*"
)


@dataclass(slots=True, frozen=True)
class Mark:
    """Who wrote a file of the topology, and which."""

    site: str
    epoch: int


@dataclass(slots=True, frozen=True)
class SlurmTopology:
    """A topology that Slurm has."""

    leaf: Mapping[str, str]
    """Node -> leaf."""
    roots: tuple[str, ...]
    """What is above all leaves; empty without a tree."""


def leaves_of(
    topology: Published, nodes: Mapping[str, tuple[str, ...]], others: Iterable[str] = ()
) -> Mapping[str, str]:
    """Return node -> leaf; ``others`` are nodes without endpoints of this site."""
    homes = {name: leaf for leaf, names in topology.leaves.items() for name in names}
    found: dict[str, str] = {}
    for node, endpoints in nodes.items():
        under = {homes.get(name) for name in endpoints}
        home = under.pop() if len(under) == 1 else None
        found[node] = home or f"{ALONE}{node}"
    return found | {node: OTHER for node in others if node not in found}


def render(site: str, epoch: int, leaf: Mapping[str, str]) -> str:
    """Return the file of a topology. ValueError without nodes, and for a name that breaks it."""
    nodes: dict[str, list[str]] = {}
    for node, name in leaf.items():
        nodes.setdefault(name, []).append(node)
    if not nodes or len(leaf) > MAX_NAMES:
        raise ValueError(f"a topology of {len(leaf)} nodes")
    lines = [_HEADER.format(site=site, epoch=epoch)]
    for name in sorted(nodes):
        hosts = compress(nodes[name])
        if set(expand(hosts)) != set(nodes[name]):
            raise ValueError(f"names of nodes that Slurm cannot read: {clean(hosts, 80)!r}")
        lines.append(f"SwitchName={name} Nodes={hosts}")
    lines.append(f"SwitchName={CORE} Switches={','.join(sorted(nodes))}")
    return "\n".join(lines) + "\n"


def mark_of(text: str) -> Mark | None:
    """Return who wrote a file; None when lightloom did not."""
    found = _MARK.match(text)
    return Mark(found[1], int(found[2])) if found else None


def shown_in(text: str) -> SlurmTopology:
    """Return what ``scontrol show topology`` shows. ValueError."""
    leaf: dict[str, str] = {}
    levels: dict[str, int] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        found = _SWITCH.fullmatch(line)
        if found is None:
            raise ValueError(f"not a line of a tree: {clean(line, 80)!r}")
        name, level = found[1], int(found[2])
        levels[name] = level
        if level == 0:
            for node in expand(found[3]):
                leaf[node] = name
        if len(leaf) > MAX_NAMES:
            raise ValueError(f"a topology of more than {MAX_NAMES} nodes")
    highest = max(levels.values(), default=0)
    roots = tuple(name for name, level in levels.items() if level == highest > 0)
    return SlurmTopology(leaf, roots)


def misplaced(wanted: Mapping[str, str], shown: SlurmTopology) -> Mapping[str, tuple[str, ...]]:
    """Return leaf -> nodes that Slurm has elsewhere, or not at all."""
    found: dict[str, list[str]] = {}
    for node, leaf in wanted.items():
        if shown.leaf.get(node) != leaf:
            found.setdefault(leaf, []).append(node)
    return {leaf: tuple(nodes) for leaf, nodes in found.items()}


def differences(wanted: Mapping[str, str], shown: SlurmTopology) -> tuple[str, ...]:
    """Return in words what Slurm has otherwise; eight at most, the last counts the rest."""
    words = [
        f"Slurm has {node} under {clean(shown.leaf.get(node, 'nothing'), 80)}, not under {leaf}"
        for node, leaf in sorted(wanted.items())
        if shown.leaf.get(node) != leaf
    ]
    return (*words[:7], f"and {len(words) - 7} more") if len(words) > 8 else tuple(words)


def unit_of(leaf: str) -> str:
    """Return how Slurm names a leaf in a change of a node; it makes one that it lacks."""
    return f"default:{CORE}:{leaf}"
