"""What agents are to fetch for a planned restore, and what a failure says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentlink.checkpoints import (
    FetchFault,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    GetStored,
    Source,
)
from agentlink.values import VolumeMount
from checkpoints.ledger import Key, Missing, PartRoute, Report
from checkpoints.restore import Get, How, Restore
from checkpoints.schemes import chunk_bytes
from checkpoints.values import Places

HowGot = GetLocal | GetFrom | GetRebuilt | GetStored


def parts_by_server(
    restore: Restore, ranks: Sequence[str], places: Places, store: VolumeMount | None
) -> dict[str, tuple[GetPart, ...]]:
    """Return by server the parts that its ranks need; ``ranks`` are endpoints in rank order.

    A program that gathers reads every part. Each comes once to a server, for the rank that starts
    from it if that is there; the agent shows it to the other ranks as well.
    """
    found: dict[str, list[GetPart]] = {}
    own = {get.rank: get for get in restore.gets}
    mine: dict[str, set[int]] = {}
    for get in restore.gets:
        mine.setdefault(places[ranks[get.rank]].server, set()).add(get.way.rank)
    for rank, endpoint in enumerate(ranks):
        server = places[endpoint].server
        wanted: list[tuple[PartRoute, HowGot]] = []
        here = {get.part for get in found.get(server, [])} | mine.get(server, set())
        if rank in own:
            wanted.append((own[rank].way, _planned(own[rank], places, store)))
        wanted += [
            (way, _nearest(way, rank, server, places, store))
            for way in restore.everywhere
            if way.rank not in here
        ]
        found.setdefault(server, []).extend(
            GetPart(rank, endpoint, way.rank, way.digest, way.bytes, how) for way, how in wanted
        )
    return {server: tuple(gets) for server, gets in found.items() if gets}


def _planned(get: Get, places: Places, store: VolumeMount | None) -> HowGot:
    if get.how is How.LOCAL:
        return GetLocal(get.source)
    if get.how is How.FETCH:
        return GetFrom(_source(get.way, get.source, places))
    return _far(get.way, places, store)


def _nearest(
    way: PartRoute, rank: int, server: str, places: Places, store: VolumeMount | None
) -> HowGot:
    here = [name for name in way.holders if places[name].server == server]
    if here:
        return GetLocal(here[0])
    if way.holders:
        return GetFrom(_source(way, way.holders[rank % len(way.holders)], places))
    return _far(way, places, store)


def _far(way: PartRoute, places: Places, store: VolumeMount | None) -> HowGot:
    if way.stored and store is not None:
        return GetStored(store)
    longest = max(member.bytes for member in way.ring)
    size = chunk_bytes(longest, len(way.ring))
    by_rank = {member.rank: member for member in way.ring}
    return GetRebuilt(
        way.ring,
        tuple(
            Source(m, by_rank[m].digest, by_rank[m].bytes, at, places[at].server)
            for m, at in sorted(way.parts_from.items())
        ),
        tuple(
            Source(m, "", size, at, places[at].server)
            for m, at in sorted(way.parities_from.items())
        ),
    )


def _source(way: PartRoute, endpoint: str, places: Places) -> Source:
    return Source(way.rank, way.digest, way.bytes, endpoint, places[endpoint].server)


def blamed(
    key: Key, gets: Iterable[GetPart], faults: Iterable[FetchFault]
) -> tuple[list[Report], bool]:
    """Return what faults say is missing, and whether the store did not have a part.

    Only endpoints that were asked are believed to lack something.
    """
    asked = {(get.rank, get.part): get.how for get in gets}
    missing: list[Report] = []
    store = False
    for fault in faults:
        match asked.get((fault.rank, fault.part)):
            case GetStored():
                store = True
            case GetLocal(endpoint) if fault.endpoint == endpoint:
                missing.append(Missing(key, fault.part, endpoint))
            case GetFrom(source) if fault.endpoint == source.endpoint:
                missing.append(Missing(key, fault.part, source.endpoint))
            case GetRebuilt(parts=parts, parities=parities):
                missing += [
                    Missing(key, one.rank, one.endpoint)
                    for one in (*parts, *parities)
                    if one.endpoint == fault.endpoint
                ]
            case _:
                pass
    return missing, store
