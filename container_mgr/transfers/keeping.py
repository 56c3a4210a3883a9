"""Makes what one rank keeps: a copy, a parity, a part in a store. All of it blocks, in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from crc32c import crc32c

from agentlink.checkpoints import Holding, HoldingKind, Keep, KeepCopy, KeepParity, KeepStored
from base import clock
from checkpoints import schemes
from checkpoints.ledger import Member
from checkpoints.manifest import FileSums, Sum
from container_mgr.checkpoints.contract import Holder, Receiving
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.transfers import part_sources, parts, pulling, stores
from container_mgr.transfers.part_sources import PartSource, PeerRoutes, check_manifest
from container_mgr.transfers.parts import DamagedPartError
from container_mgr.transfers.pulling import EndedError, PullError, Stop
from container_mgr.values import AgentError

PARITY = "parity"
"""The one file of a parity."""


@dataclass(slots=True, frozen=True)
class Keeper:
    """Where one rank keeps things, and how it reaches the others of its job."""

    holder: Holder
    reach: PeerRoutes
    endpoint: str
    store: Path | None = None
    """The directory of the store's owner, for a part that goes there."""


def keep(keeper: Keeper, what: Keep, stop: Stop) -> None:
    """Make one holding and report it, or why it was not made. Ends silently when stopped."""
    try:
        match what:
            case KeepCopy():
                _copy(keeper, what, stop)
            case KeepParity():
                _parity(keeper, what, stop)
            case KeepStored():
                _store(keeper, what, stop)
    except EndedError:
        return
    except (PullError, AgentError, DamagedPartError, OSError, ValueError) as error:
        text = error.message if isinstance(error, AgentError) else str(error)
        with suppress(AgentError):
            keeper.reach.held.report(failure(keeper, what, text))


def place_of(keeper: Keeper, what: Keep) -> PartPlace:
    """Return where the thing lies; what goes to a store is the rank's own part."""
    match what:
        case KeepCopy(_, key, source):
            return PartPlace(
                keeper.reach.folder, keeper.endpoint, HoldingKind.COPY, source.rank, key
            )
        case KeepParity(rank, key, _):
            return PartPlace(keeper.reach.folder, keeper.endpoint, HoldingKind.PARITY, rank, key)
        case KeepStored(rank, key, _):
            return PartPlace(keeper.reach.folder, keeper.endpoint, HoldingKind.OWN, rank, key)


def failure(keeper: Keeper, what: Keep, why: str) -> Holding:
    """Return the holding with the reason; ``missing`` would replace the rank's own part too."""
    place = place_of(keeper, what)
    names = {KeepCopy: "the copy", KeepParity: "the parity", KeepStored: "the part in the store"}
    return Holding(
        folder=place.folder,
        key=place.key,
        rank=place.rank,
        endpoint=place.endpoint,
        kind=HoldingKind.MISSING if isinstance(what, KeepCopy) else HoldingKind.REFUSED,
        why=f"{names[type(what)]} was not made: {why}"[:500],
        seen_at=clock.time(),
    )


def _copy(keeper: Keeper, what: KeepCopy, stop: Stop) -> None:
    place, source = place_of(keeper, what), what.source
    there = keeper.reach.held.find(place)
    if there is not None and there.manifest.digest == source.digest:
        return
    part_source = keeper.reach.open(what.key, source, stop)
    try:
        found = part_source.head().manifest
        check_manifest(found, what.key, source)
        receiving = keeper.holder.receive(place, found.bytes)
        try:
            part_sources.copy(part_source, receiving.root, stop)
            receiving.keep(found)
        finally:
            receiving.give_up()
    finally:
        part_source.close()


def _parity(keeper: Keeper, what: KeepParity, stop: Stop) -> None:
    place, members = place_of(keeper, what), what.members
    covers = tuple(Member(one.rank, one.digest, one.bytes) for one in members)
    there = keeper.reach.held.find(place)
    if there is not None and there.covers == covers:
        return
    mine = next((i for i, one in enumerate(members) if one.rank == what.rank), None)
    if mine is None or len(members) < 2:
        raise ValueError("the set does not have the rank that keeps its parity")
    size = schemes.chunk_bytes(max(one.bytes for one in members), len(members))
    opened: list[PartSource] = []
    try:
        for one in members:
            opened.append(keeper.reach.open(what.key, one, stop, ahead=pulling.AHEAD))
            check_manifest(opened[-1].head().manifest, what.key, one)
        receiving = keeper.holder.receive(place, size)
        try:
            total = _write_parity(mine, opened, receiving, stop)
            manifests = tuple(one.head().manifest for one in opened)
            made = replace(manifests[mine], files=FileSums({PARITY: total}))
            root = Path(f"/proc/self/fd/{receiving.root}")
            receiving.keep(HeldPart(place, root, made, covers, manifests))
        finally:
            receiving.give_up()
    finally:
        for each in opened:
            each.close()


def _write_parity(mine: int, opened: Sequence[PartSource], receiving: Receiving, stop: Stop) -> Sum:
    with os.fdopen(parts.create_file(receiving.root, PARITY), "wb") as file:
        out = Summed(file.write, stop)
        sources = [None if i == mine else one for i, one in enumerate(opened)]
        schemes.parity(mine, sources, [one.head().manifest.bytes for one in opened], out)
    return out.total


def _store(keeper: Keeper, what: KeepStored, stop: Stop) -> None:
    part = keeper.reach.held.find(place_of(keeper, what))
    if part is None:
        raise ValueError("the rank's part is no longer held")
    if keeper.store is None:
        raise ValueError("the store has no directory")
    try:
        stores.write(keeper.store, keeper.reach.folder, part, keeper.reach.pace, stop)
    except DamagedPartError as error:
        keeper.reach.held.damaged(part.place, str(error))
        raise
    keeper.reach.held.report(
        Holding(
            folder=keeper.reach.folder,
            key=what.key,
            rank=what.rank,
            endpoint=keeper.endpoint,
            kind=HoldingKind.STORED,
            digest=part.manifest.digest,
            bytes=part.manifest.bytes,
            seen_at=clock.time(),
        )
    )


class Summed:
    """A sink that sums what it passes on."""

    def __init__(self, write: Callable[[bytes], object], stop: Stop) -> None:
        self._write = write
        self._stop = stop
        self.total = Sum(0, 0)

    def write(self, block: bytes, /) -> None:
        """Write a block whole. Raises EndedError and OSError."""
        self._stop.check()
        self._write(block)
        self.total = Sum(self.total.bytes + len(block), crc32c(block, self.total.crc32c))
