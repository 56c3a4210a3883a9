"""Where copies of the parts lie, and how a lost part comes back. Pure; streams are given.

The layouts are SCR's (LLNL/scr, ``doc/rst/users/overview.rst``): *single* keeps no copy,
*partner* a second copy elsewhere (2B bytes a rank), *xor* a parity over a set of N ranks
(B.N/(N-1) bytes a rank), which survives any one of the set.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from checkpoints.values import Apart, Place, Scheme, are_apart

BLOCK = 1 << 20
MAX_MATCHED = 1024
"""Ranks for which partners are searched by augmenting paths when no rotation fits."""


class NotApartError(ValueError):
    """The ranks cannot be kept apart as asked; the message names what is too large."""


@dataclass(slots=True, frozen=True)
class Layout:
    """How the parts of one step are protected."""

    scheme: Scheme = Scheme.SINGLE
    apart: Apart = Apart.SERVER
    partner: tuple[int, ...] = ()
    """For each rank, the rank beside which its copy lies; a permutation without fixed points."""
    sets: tuple[tuple[int, ...], ...] = ()
    """For ``xor``: each rank is in one set; a set's order is its ring of parities."""

    def set_of(self, rank: int) -> tuple[int, ...]:
        """Return the set that a rank is in; empty without one."""
        return next((members for members in self.sets if rank in members), ())


def lay_out(scheme: Scheme, places: Sequence[Place], apart: Apart, size: int = 4) -> Layout:
    """Lay out copies for ranks at ``places``; ``size`` is the least of an XOR set.

    Raises NotApartError when the ranks cannot be kept apart.
    """
    if scheme is Scheme.PARTNER:
        return Layout(scheme, apart, partners(places, apart))
    if scheme is Scheme.XOR:
        return Layout(scheme, apart, sets=xor_sets(places, apart, size))
    return Layout(Scheme.SINGLE, apart)


def not_apart(layout: Layout, places: Sequence[Place]) -> tuple[int, ...]:
    """Return ranks whose copy or set is not apart at ``places``: they need a new layout."""
    found = {
        rank
        for rank, other in enumerate(layout.partner)
        if not are_apart(places[rank], places[other], layout.apart)
    }
    for members in layout.sets:
        found |= {
            one
            for one in members
            if any(
                one != other and not are_apart(places[one], places[other], layout.apart)
                for other in members
            )
        }
    return tuple(sorted(found))


def partners(places: Sequence[Place], apart: Apart) -> tuple[int, ...]:
    """Return for each rank the rank that keeps its copy: every rank keeps exactly one.

    Ranks sorted by group and rotated by the largest group fit whenever groups alone decide; where
    servers and aggregators cross, other rotations and then augmenting paths are tried.
    """
    count = len(places)
    if count < 2:
        raise NotApartError("a partner needs a second rank; use scheme single")
    order = _grouped(places, apart)
    largest = max(count for _, count in _groups(places, apart).items())
    for shift in (largest, *range(1, count)):
        if shift < count and all(
            are_apart(places[order[i]], places[order[(i + shift) % count]], apart)
            for i in range(count)
        ):
            found = [0] * count
            for i, rank in enumerate(order):
                found[rank] = order[(i + shift) % count]
            return tuple(found)
        if count > MAX_MATCHED:
            break
    if 2 * largest > count or count > MAX_MATCHED:
        raise NotApartError(_too_large(places, apart, count // 2))
    return _matched(places, apart)


def xor_sets(places: Sequence[Place], apart: Apart, size: int) -> tuple[tuple[int, ...], ...]:
    """Divide ranks into sets of at least ``size`` (>= 2) whose members are pairwise apart.

    Sizes differ by at most one where groups alone decide. Raises NotApartError.
    """
    count = len(places)
    if size < 2:
        raise NotApartError("an XOR set needs two members")
    if count < size:
        raise NotApartError(f"an XOR set of {size} needs {size} ranks; the job has {count}")
    sets = count // size
    order = _grouped(places, apart)
    dealt = [order[i::sets] for i in range(sets)]
    if all(_fits(places, members, apart) for members in dealt):
        return tuple(tuple(members) for members in dealt)
    packed: list[list[int]] = [[] for _ in range(sets)]
    for rank in order:
        room = [
            members
            for members in packed
            if all(are_apart(places[rank], places[other], apart) for other in members)
        ]
        if not room:
            raise NotApartError(_too_large(places, apart, sets))
        min(room, key=len).append(rank)
    if min(len(members) for members in packed) < 2:
        raise NotApartError(_too_large(places, apart, sets))
    return tuple(tuple(members) for members in packed)


def space(scheme: Scheme, part: int, members: int = 2) -> int:
    """Return the total bytes for a rank's part of ``part`` bytes, copies included."""
    if scheme is Scheme.PARTNER:
        return 2 * part
    if scheme is Scheme.XOR:
        return part + chunk_bytes(part, members)
    return part


def _fits(places: Sequence[Place], members: Sequence[int], apart: Apart) -> bool:
    return all(
        are_apart(places[one], places[other], apart)
        for i, one in enumerate(members)
        for other in members[i + 1 :]
    )


def _group(place: Place, apart: Apart) -> str:
    if apart is Apart.SERVER or not place.aggregator:
        return f"server {place.server}"
    return f"aggregator {place.aggregator}"


def _groups(places: Sequence[Place], apart: Apart) -> Counter[str]:
    groups = Counter(f"server {place.server}" for place in places)
    if apart is Apart.AGGREGATOR:
        groups.update(f"aggregator {place.aggregator}" for place in places if place.aggregator)
    return groups


def _grouped(places: Sequence[Place], apart: Apart) -> list[int]:
    """Return ranks with equal groups side by side, the largest group first."""
    sizes = Counter(_group(place, apart) for place in places)
    return sorted(
        range(len(places)),
        key=lambda rank: (
            -sizes[_group(places[rank], apart)],
            _group(places[rank], apart),
            places[rank].server,
            rank,
        ),
    )


def _too_large(places: Sequence[Place], apart: Apart, most: int) -> str:
    dark = sorted(place.endpoint for place in places if not place.aggregator)
    if apart is Apart.AGGREGATOR and dark:
        return f"{dark[0]} is dark: it is apart from nothing by aggregator"
    groups = _groups(places, apart)
    name, size = min(groups.items(), key=lambda item: (-item[1], item[0]))
    held = f"{name} holds {size} of {len(places)} ranks"
    if size > most:
        return f"{held}; at most {most} keep copies apart"
    return f"no arrangement keeps all copies apart by {apart}; {held}"


def _matched(places: Sequence[Place], apart: Apart) -> tuple[int, ...]:
    """Match every rank with a keeper by augmenting paths (breadth first)."""
    count = len(places)
    may = [
        [o for o in range(count) if are_apart(places[r], places[o], apart)] for r in range(count)
    ]
    kept_by: list[int | None] = [None] * count
    keeps: list[int | None] = [None] * count
    for start in range(count):
        came: dict[int, int] = {}
        ranks = deque([start])
        end = None
        while ranks and end is None:
            rank = ranks.popleft()
            for keeper in may[rank]:
                if keeper in came:
                    continue
                came[keeper] = rank
                holder = keeps[keeper]
                if holder is None:
                    end = keeper
                    break
                ranks.append(holder)
        if end is None:
            raise NotApartError(_too_large(places, apart, count // 2))
        while end is not None:
            rank = came[end]
            before = kept_by[rank]
            kept_by[rank], keeps[end] = end, rank
            end = before
    return tuple(keeper for keeper in kept_by if keeper is not None)


# The parity ring. A part is one stream: its files in the manifest's order, padded with zeros to
# N-1 chunks. Member i of N keeps the parity of the one chunk of each other member j that has
# index (i - j - 1) mod N; so each chunk is in one parity, and never in its own member's.


class ByteSource(Protocol):
    """A part or parity that can be read at any place."""

    def seek(self, offset: int, /) -> int:
        """Go to ``offset`` bytes from the start."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


class ByteSink(Protocol):
    """Where a rebuilt part or a parity goes."""

    def write(self, block: bytes, /) -> object:
        """Write a block whole."""


def chunk_bytes(longest: int, members: int) -> int:
    """Return the bytes of a parity of a set of ``members`` whose longest part has ``longest``."""
    return -(-longest // (members - 1))


def parity(
    member: int, parts: Sequence[ByteSource | None], lengths: Sequence[int], out: ByteSink
) -> int:
    """Write the parity that ``member`` keeps; its own part is not read. Returns bytes.

    ``lengths`` are the bytes of every part, in the order of the set. Raises OSError when a part
    ends before its length.
    """
    members, chunk = len(lengths), chunk_bytes(max(lengths), len(lengths))
    streams = [
        _Slice(_given(parts[j]), lengths[j], ((member - j - 1) % members) * chunk, j)
        for j in range(members)
        if j != member
    ]
    return xor_streams([stream.read for stream in streams], chunk, out)


def rebuild(
    lost: int,
    parts: Sequence[ByteSource | None],
    parities: Sequence[ByteSource | None],
    lengths: Sequence[int],
    out: ByteSink,
) -> int:
    """Write the part that member ``lost`` had, from all others' parts and parities.

    Returns its bytes. What the lost member itself kept is not read.
    """
    members, chunk = len(lengths), chunk_bytes(max(lengths), len(lengths))
    left = lengths[lost]
    for index in range(members - 1):
        keeper = (lost + 1 + index) % members
        streams = [_Slice(_given(parities[keeper]), chunk, 0, keeper)]
        streams += [
            _Slice(_given(parts[j]), lengths[j], ((keeper - j - 1) % members) * chunk, j)
            for j in range(members)
            if j not in {lost, keeper}
        ]
        take = min(chunk, left)
        xor_streams([stream.read for stream in streams], take, out)
        left -= take
    return lengths[lost]


def xor_streams(sources: Sequence[Callable[[int], bytes]], length: int, out: ByteSink) -> int:
    """Write the XOR of ``length`` bytes of each source; a source is asked for exact amounts.

    Holds two blocks in memory. It is also one hop of a ring: what came, and one's own.
    """
    done = 0
    while done < length:
        size = min(BLOCK, length - done)
        total = np.zeros(size, dtype=np.uint8)
        for source in sources:
            np.bitwise_xor(total, np.frombuffer(source(size), dtype=np.uint8), out=total)
        out.write(total.tobytes())
        done += size
    return done


def _given(source: ByteSource | None) -> ByteSource:
    if source is None:
        raise ValueError("a part or parity of another member is missing: only one may be")
    return source


class _Slice:
    """Exact reads from ``start`` on, with zeros behind the end of a part."""

    def __init__(self, source: ByteSource, length: int, start: int, member: int) -> None:
        self._source, self._left, self._member = source, max(0, length - start), member
        self._at = start

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        blocks = []
        while wanted:
            self._source.seek(self._at)
            block = self._source.read(wanted)
            if not block:
                raise OSError(f"what member {self._member} of the set gave ends too early")
            blocks.append(block)
            self._at += len(block)
            self._left -= len(block)
            wanted -= len(block)
        return b"".join(blocks).ljust(size, b"\0")
