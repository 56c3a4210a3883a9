"""Between the agents' messages about checkpoints and the controller's engine values. Pure.

What an agent says of checkpoints decides which step a job resumes from, and is shown and kept. So
an entry with an impossible value is left out, and its number is returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from checkpoints.ledger import Key, Member
from checkpoints.manifest import MAX_LENGTH
from checkpoints.values import MAX_RANKS, MAX_STEP
from container_mgr.checkpoints import layout
from container_mgr.volumes import rules
from controller.devices.agents.messages import (
    TEXT_CHARS,
    duration,
    key_message,
    mount_message,
    past,
)
from controller.devices.checkpoints import (
    FetchFault,
    FetchProgress,
    Folder,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    GetStored,
    Holding,
    HoldingKind,
    Keep,
    KeepCopy,
    KeepParity,
    KeepStored,
    Source,
    Verified,
)
from protos import agent_pb2 as pb

MAX_BATCH = 1000
"""Entries of one message; an agent sends no more."""
MAX_MEMBERS = 64
"""Of one set."""
_MAX_FAULTS = 1000
_MAX_DAMAGES = 16
_DAMAGE_CHARS = 1100
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DIGEST = re.compile(r"[0-9a-f]{8}")
_KINDS = {
    pb.HOLDING_OWN: HoldingKind.OWN,
    pb.HOLDING_COPY: HoldingKind.COPY,
    pb.HOLDING_PARITY: HoldingKind.PARITY,
    pb.HOLDING_STORED: HoldingKind.STORED,
    pb.HOLDING_AWAITS: HoldingKind.AWAITS,
    pb.HOLDING_MISSING: HoldingKind.MISSING,
    pb.HOLDING_REFUSED: HoldingKind.REFUSED,
    pb.HOLDING_IGNORED: HoldingKind.IGNORED,
}
_WHOLE = frozenset({HoldingKind.OWN, HoldingKind.COPY, HoldingKind.STORED})
"""Kinds that are nothing without a digest."""

Owns = Callable[[str], bool]
"""Whether an endpoint is one of the server's."""
_Told = TypeVar("_Told", pb.Holding, pb.Verified)


def boot_id_of(batch: pb.HoldingsBatch) -> str:
    """Read what names the start of a server's machine; empty for what is none."""
    return batch.boot_id if _BOOT_ID.fullmatch(batch.boot_id) else ""


def port_of(batch: pb.HoldingsBatch) -> int | None:
    """Read where an agent gives parts to others; None for what is no port."""
    return batch.transfer_port if 0 < batch.transfer_port < 2**16 else None


def holdings_of(
    server: str, batch: pb.HoldingsBatch, owns: Owns, now: float
) -> tuple[tuple[Holding, ...], int]:
    """Read what a server holds, received at ``now``, and how many entries were left out."""
    told = [*batch.holdings, *batch.ignored]
    found = tuple(
        holding
        for message in told[:MAX_BATCH]
        if (holding := _holding_of(server, message, owns, now)) is not None
    )
    return found, len(told) - len(found)


def _holding_of(server: str, message: pb.Holding, owns: Owns, now: float) -> Holding | None:
    kind, key = _KINDS.get(message.kind), _told_key(message, owns)
    if kind is None or key is None:
        return None
    covers = _covers_of(message) if kind is HoldingKind.PARITY else ()
    possible = (
        layout.is_folder(message.folder)
        and (_DIGEST.fullmatch(message.digest) or (not message.digest and kind not in _WHOLE))
        and message.bytes <= MAX_LENGTH
        and covers is not None
        and len(message.why) <= TEXT_CHARS
    )
    if not possible:
        return None
    written_s = message.written_s if message.HasField("written_s") else None
    return Holding(
        server=server,
        folder=message.folder,
        key=key,
        rank=message.rank,
        endpoint=message.endpoint,
        kind=kind,
        digest=message.digest,
        bytes=message.bytes,
        covers=covers or (),
        why=message.why,
        written_s=None if written_s is None or not duration(written_s) else written_s,
        seen_at=past(message.seen_at, now) or 0.0,
    )


def _told_key(message: _Told, owns: Owns) -> Key | None:
    """Return the step that an entry is about; None where its rank or its endpoint cannot be."""
    step = message.step
    possible = (
        message.HasField("step")
        and step.step <= MAX_STEP
        and step.epoch <= MAX_STEP
        and message.rank < MAX_RANKS
        and rules.NAME.fullmatch(message.endpoint)
        and owns(message.endpoint)
    )
    return Key(step.step, step.epoch) if possible else None


def _covers_of(message: pb.Holding) -> tuple[Member, ...] | None:
    """Read the set of a parity; None for what is no set of the rank."""
    if not 2 <= len(message.covers) <= MAX_MEMBERS:
        return None
    covers = tuple(Member(one.rank, one.digest, one.bytes) for one in message.covers)
    ranks = {member.rank for member in covers}
    possible = (
        len(ranks) == len(covers)
        and message.rank in ranks
        and max(ranks) < MAX_RANKS
        and all(_DIGEST.fullmatch(one.digest) and one.bytes <= MAX_LENGTH for one in covers)
    )
    return covers if possible else None


def progress_of(message: pb.FetchProgress) -> FetchProgress:
    """Read how far a fetch is."""
    return FetchProgress(
        bytes_done=min(message.bytes_done, MAX_LENGTH),
        bytes_total=min(message.bytes_total, MAX_LENGTH),
        done=message.done,
        faults=tuple(
            FetchFault(
                fault.rank,
                fault.part,
                fault.endpoint if rules.NAME.fullmatch(fault.endpoint) else "",
                fault.message[:TEXT_CHARS],
            )
            for fault in message.faults[:_MAX_FAULTS]
            if fault.rank < MAX_RANKS and fault.part < MAX_RANKS
        ),
    )


def verified_of(server: str, batch: pb.VerifyBatch, owns: Owns) -> tuple[list[Verified], int]:
    """Read which parts were read again, and how many entries were left out."""
    found = []
    for message in batch.verified[:MAX_BATCH]:
        kind, key = _KINDS.get(message.kind), _told_key(message, owns)
        if kind is not None and key is not None:
            damages = tuple(text[:_DAMAGE_CHARS] for text in message.damages[:_MAX_DAMAGES])
            found.append(Verified(server, key, message.rank, message.endpoint, kind, damages))
    return found, len(batch.verified) - len(found)


Address = Callable[[Source], str]
"""Where the agent of a source gives its parts: HOST:PORT. Raises EngineError."""


def keep_request(folder: str, keeps: Iterable[Keep], pace_bps: int) -> pb.KeepRequest:
    """Write what a server is to keep. Raises ValueError for what cannot be sent."""
    return pb.KeepRequest(
        folder=folder, keeps=[_keep_message(keep) for keep in keeps], pace_bps=pace_bps
    )


def _keep_message(keep: Keep) -> pb.Keep:
    message = pb.Keep(rank=keep.rank, step=key_message(keep.key))
    match keep:
        case KeepCopy():
            message.copy.CopyFrom(_source_message(keep.source, keep.source.ip))
        case KeepParity():
            message.parity.members.extend(_source_message(one, one.ip) for one in keep.members)
        case KeepStored():
            message.store.CopyFrom(mount_message(keep.store))
    return message


def fetch_request(
    folder: Folder, key: Key, gets: Sequence[GetPart], address: Address
) -> pb.FetchRequest:
    """Write what a server is to fetch. Raises ValueError for what cannot be sent."""
    return pb.FetchRequest(
        folder=folder.name,
        key=folder.key,
        step=key_message(key),
        where=folder.where,
        size_bytes=folder.size_bytes,
        gets=[_get_message(get, address) for get in gets],
    )


def _get_message(get: GetPart, address: Address) -> pb.Get:
    message = pb.Get(
        rank=get.rank, endpoint=get.endpoint, part=get.part, digest=get.digest, bytes=get.bytes
    )
    match get.how:
        case GetLocal(endpoint):
            message.local = endpoint
        case GetFrom(source):
            getattr(message, "from").CopyFrom(_source_message(source, address(source)))
        case GetRebuilt(covers, parts, parities):
            message.rebuild.CopyFrom(
                pb.Rebuild(
                    covers=[
                        pb.Member(rank=rank, digest=digest, bytes=size)
                        for rank, digest, size in covers
                    ],
                    parts=[_source_message(one, address(one)) for one in parts],
                    parities=[_source_message(one, address(one)) for one in parities],
                )
            )
        case GetStored(store):
            message.store.CopyFrom(mount_message(store))
    return message


def _source_message(source: Source, address: str) -> pb.Source:
    return pb.Source(
        rank=source.rank,
        digest=source.digest,
        bytes=source.bytes,
        address=address,
        endpoint=source.endpoint,
        server=source.server,
    )
