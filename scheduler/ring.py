"""Ring order: what an all-reduce pays for is the edges that cross aggregators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def order(endpoints: Sequence[str], homes: Mapping[str, str | None]) -> tuple[str, ...]:
    """Order endpoints so that the ring crosses between aggregators as rarely as possible.

    Stable: aggregators come in the order in which they first appear, endpoints of one
    aggregator keep their order, so an order that is already grouped is returned as is.
    """
    groups: dict[str | None, list[str]] = {}
    for name in endpoints:
        groups.setdefault(homes.get(name), []).append(name)
    return tuple(name for group in groups.values() for name in group)


def crossings(ring: Sequence[str], homes: Mapping[str, str | None]) -> int:
    """Count the directed ring edges (last to first included) between different homes.

    A dark endpoint is under no aggregator, so both of its edges count.
    """
    count = 0
    for index, name in enumerate(ring):
        here, there = homes.get(name), homes.get(ring[(index + 1) % len(ring)])
        count += len(ring) > 1 and (here is None or here != there)
    return count


@dataclass(slots=True, frozen=True)
class RingPlace:
    """One endpoint's place in the ring, as the frameworks number it.

    All three build their rings over ranks in ascending order, so one number serves them all:
    TensorFlow orders its collectives by the task index of ``TF_CONFIG``, torch.distributed by
    ``RANK``, and NCCL, with one rank a node, connects the nodes in the order of their ranks.
    """

    endpoint: str
    tf_index: int
    """``task.index`` in ``TF_CONFIG``, and the place in its ``cluster.worker`` list."""
    torch_rank: int
    """``RANK``."""
    nccl_rank: int
    """Rank in the communicator."""
    nccl_previous: int
    """Rank from which the ring receives."""
    nccl_next: int
    """Rank to which it sends."""


def exported(ring: Sequence[str]) -> tuple[RingPlace, ...]:
    """Return every endpoint's numbers for a ring in this order; ``ring`` is in rank order.

    Raises ValueError when an endpoint stands twice: no framework has a rank for that.
    """
    if len(set(ring)) != len(ring):
        raise ValueError("an endpoint stands in the ring twice")
    size = len(ring)
    return tuple(
        RingPlace(name, rank, rank, rank, (rank - 1) % size, (rank + 1) % size)
        for rank, name in enumerate(ring)
    )
