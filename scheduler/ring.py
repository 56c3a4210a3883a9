"""Orders rings so that few edges cross between aggregators, and numbers their ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def order(endpoints: Sequence[str], homes: Mapping[str, str | None]) -> tuple[str, ...]:
    """Order endpoints so that the fewest ring edges cross between aggregators.

    Stable: aggregators come in the order in which they first appear, endpoints of one
    aggregator keep their order, so an order that is already grouped is returned as is.
    """
    groups: dict[str | None, list[str]] = {}
    for name in endpoints:
        groups.setdefault(homes.get(name), []).append(name)
    return tuple(name for group in groups.values() for name in group)


def crossings(ring: Sequence[str], homes: Mapping[str, str | None]) -> int:
    """Count the directed ring edges (last to first included) between different homes.

    A dark endpoint has no aggregator, so both of its edges count.
    """
    count = 0
    for index, name in enumerate(ring):
        here, there = homes.get(name), homes.get(ring[(index + 1) % len(ring)])
        count += len(ring) > 1 and (here is None or here != there)
    return count


@dataclass(slots=True, frozen=True)
class RingPlace:
    """One endpoint's place in the ring, as the frameworks number it.

    All three build their rings over ranks in ascending order, so they share one number:
    TensorFlow orders its collectives by the task index of ``TF_CONFIG``, torch.distributed by
    ``RANK``, and NCCL, with one rank per node, connects the nodes in the order of their ranks.
    """

    endpoint: str
    tf_index: int
    """``task.index`` in ``TF_CONFIG``, and the place in its ``cluster.worker`` list."""
    torch_rank: int
    """``RANK``."""
    nccl_rank: int
    """Rank in the communicator."""
    nccl_previous: int
    """The rank it receives from."""
    nccl_next: int
    """The rank it sends to."""


def exported(ring: Sequence[str]) -> tuple[RingPlace, ...]:
    """Return every endpoint's numbers in the ring; ``ring`` is in rank order.

    Raises ValueError when an endpoint occurs twice.
    """
    if len(set(ring)) != len(ring):
        raise ValueError("an endpoint is in the ring twice")
    size = len(ring)
    return tuple(
        RingPlace(name, rank, rank, rank, (rank - 1) % size, (rank + 1) % size)
        for rank, name in enumerate(ring)
    )
