"""Generic resources of Slurm: the GPUs of nodes, of requests and of allocations. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from controller.devices.slurm.documents import clean, mapping, text_of, texts_of
from controller.devices.slurm.hostlists import expand

_DETAIL = re.compile(r"gpu(?::[^:()]+)?:([0-9]{1,6})(?:\(([^()]*)\))?")
_OUTSIDE = re.compile(r",(?![^(]*\))")
"""A comma that is in no parentheses."""
_PARENTHESES = re.compile(r"\([^()]*\)")


@dataclass(slots=True, frozen=True)
class Node:
    """A node as Slurm has it."""

    name: str
    gpus: int
    """Those that Slurm counts; 0 where it counts none."""
    states: frozenset[str]


def node_of(document: object) -> Node:
    """Return a node. ValueError."""
    node = mapping(document, "a node")
    (name,) = expand(text_of(node, "name")) or ("",)
    if not name:
        raise ValueError("a node without a name")
    gpus = gpus_in(_PARENTHESES.sub("", text_of(node, "gres")))
    return Node(name, gpus, frozenset(texts_of(node, "state")))


def devices_in(detail: str, mapped: tuple[str, ...]) -> tuple[list[str], bool]:
    """Return the endpoints of a node's devices, and whether these are all of its devices."""
    indexes: dict[int, None] = {}
    unnamed = 0
    for item in filter(None, _OUTSIDE.split(detail)):
        if item.partition(":")[0] != "gpu":
            continue
        found = _DETAIL.fullmatch(item)
        if found is None:
            raise ValueError(f"not a device: {clean(item, 60)!r}")
        names = (found[2] or "").removeprefix("IDX:")
        if found[2] is not None and names != found[2] and names != "N/A":
            indexes |= dict.fromkeys(int(index) for index in expand(f"[{names}]"))
        else:
            unnamed += int(found[1])
    if unnamed and unnamed == len(mapped):
        return list(mapped), True
    known = [mapped[index] for index in indexes if index < len(mapped)]
    return known, not unnamed and len(known) == len(indexes)


def gpus_in(text: str) -> int:
    """Return the GPUs in ``cpu=2,gres/gpu=4`` or ``gres/gpu:a100:2``; types are parts of all."""
    plain = typed = 0
    for item in text.split(","):
        words = re.split("[:=]", item.removeprefix("gres/").removeprefix("gres:"))
        if words[0] != "gpu":
            continue
        counted = len(words) > 1 and re.fullmatch(r"[0-9]{1,6}", words[-1]) is not None
        count = int(words[-1]) if counted else 1
        if len(words) - counted > 1:
            typed += count
        else:
            plain += count
    return plain or typed
