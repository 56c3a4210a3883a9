"""The agents' messages about checkpoints, as this controller believes and sends them. Pure.

What an agent says of checkpoints decides which step a job resumes from, and is shown and kept. So
an entry with an impossible value is left out, and its number is returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from agentlink.bounds import FOLDER, Refused, past
from agentlink.checkpoints import (
    MAX_BATCH,
    Folder,
    GetFrom,
    GetPart,
    GetRebuilt,
    Gets,
    Holding,
    HoldingKind,
    Source,
    Verified,
)
from agentlink.codec import read, write
from checkpoints.ledger import Key
from protos import agent_pb2 as pb

_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WHOLE = frozenset({HoldingKind.OWN, HoldingKind.COPY, HoldingKind.STORED})
"""Kinds that are nothing without a digest."""

Owns = Callable[[str], bool]
"""Whether an endpoint is one of the server's."""
Address = Callable[[Source], str]
"""Where the agent of a source gives its parts: HOST:PORT. Raises EngineError."""


def boot_id_of(batch: pb.HoldingsBatch) -> str:
    """Read what names the start of a server's machine; empty for an invalid name."""
    return batch.boot_id if _BOOT_ID.fullmatch(batch.boot_id) else ""


def port_of(batch: pb.HoldingsBatch) -> int | None:
    """Read where an agent gives parts to others; None for an invalid one."""
    return batch.transfer_port if 0 < batch.transfer_port < 2**16 else None


def holdings_of(
    server: str, batch: pb.HoldingsBatch, owns: Owns, now: float
) -> tuple[tuple[Holding, ...], int]:
    """Read what a server holds, received at ``now``, and how many entries were left out."""
    told = [*batch.holdings, *batch.ignored]
    read = (_holding_of(server, message, owns, now) for message in told[:MAX_BATCH])
    found = tuple(holding for holding in read if holding is not None)
    return found, len(told) - len(found)


def _holding_of(server: str, message: pb.Holding, owns: Owns, now: float) -> Holding | None:
    covers = {} if message.kind == pb.HOLDING_PARITY else {"covers": ()}
    seen_at = past(message.seen_at, now) or 0.0
    try:
        holding = read(Holding, message, server=server, seen_at=seen_at, **covers)
    except Refused:
        return None
    possible = (
        owns(holding.endpoint)
        and FOLDER.fullmatch(holding.folder)
        and (holding.digest or holding.kind not in _WHOLE)
        and (covers or any(holding.rank == member.rank for member in holding.covers))
    )
    return holding if possible else None


def verified_of(server: str, batch: pb.VerifyBatch, owns: Owns) -> tuple[list[Verified], int]:
    """Read which parts were read again, and how many entries were left out."""
    found = []
    for message in batch.verified[:MAX_BATCH]:
        try:
            one = read(Verified, message, server=server)
        except Refused:
            continue
        if owns(one.endpoint):
            found.append(one)
    return found, len(batch.verified) - len(found)


def fetch_request(
    folder: Folder, key: Key, gets: Sequence[GetPart], address: Address
) -> pb.FetchRequest:
    """Write what a server is to fetch. Raises ValueError for what cannot be sent."""
    message = write(pb.FetchRequest, folder)
    message.MergeFrom(
        write(pb.FetchRequest, Gets(tuple(_addressed(get, address) for get in gets), key))
    )
    return message


def _addressed(get: GetPart, address: Address) -> GetPart:
    match get.how:
        case GetFrom(source):
            return replace(get, how=GetFrom(replace(source, address=address(source))))
        case GetRebuilt(covers, parts, parities):
            sources = (
                tuple(replace(one, address=address(one)) for one in them)
                for them in (parts, parities)
            )
            return replace(get, how=GetRebuilt(covers, *sources))
    return get
