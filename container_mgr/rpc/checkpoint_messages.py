"""Checks the requests about checkpoints, and bounds the replies. Pure.

Every value of a request is checked and every list of it bounded here, before it reaches a folder
or another server. Raises AgentError ``invalid``, and ``not_found`` for another server's endpoint.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from agentlink.bounds import Most, require
from agentlink.checkpoints import (
    MAX_BATCH,
    MAX_FAULTS,
    FetchProgress,
    Folder,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    Gets,
    GetStored,
    Holding,
    HoldingKind,
    Keep,
    KeepCopy,
    KeepParity,
    Keeps,
    KeepStored,
    Verified,
)
from agentlink.codec import read, write
from agentlink.parts import possible_step
from agentlink.values import Scope, VolumeMount
from base.addresses import split_address
from checkpoints.ledger import Key
from checkpoints.values import path_fault
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.contract import News
from container_mgr.ranks import policy
from container_mgr.values import ServedEndpoint, ServerFacts, refusing
from container_mgr.volumes import rules
from protos import agent_pb2 as pb

MAX_DROPS = 1024
"""Steps in one call."""
MAX_VERIFIED = 100
"""Parts that were read again in one message."""
MAX_WHY = 300
MAX_DAMAGES = 8
MAX_DAMAGE = 1100
"""Characters: a path and what is wrong with it."""


def folder_of(name: str) -> str:
    """Read the name of a job's folders."""
    layout.check_folder(name)
    return name


def key_of(message: pb.StepKey, obj: str) -> Key:
    """Read a step."""
    with refusing(obj):
        return possible_step(read(Key, message))


def step_of(request: pb.CloseStepRequest) -> Key:
    """Read the step that a coordinator has closed."""
    with refusing(request.folder):
        require(request.HasField("step"), "the step is missing")
    return key_of(request.step, request.folder)


def drops_of(request: pb.DropStepsRequest) -> list[Key]:
    """Read which steps are to be removed."""
    with refusing(request.folder):
        Most(MAX_DROPS, "steps")(request.steps)
    return [key_of(step, request.folder) for step in request.steps]


def keeps_of(request: pb.KeepRequest) -> tuple[Keep, ...]:
    """Read what is to be kept. Takes a while when there is much."""
    with refusing(request.folder):
        keeps = read(Keeps, request).keeps
        for keep in keeps:
            _check_keep(keep, request.folder)
    return keeps


def _check_keep(keep: Keep, obj: str) -> None:
    match keep:
        case KeepCopy():
            require(keep.source.rank != keep.rank, "a copy is of another rank's part")
            _check_ip(keep.source.address)
        case KeepParity():
            for member in keep.members:
                if member.address:
                    _check_ip(member.address)
            ranks = [member.rank for member in keep.members]
            require(len(ranks) > 1 and keep.rank in ranks, "a rank keeps the parity of its set")
        case KeepStored():
            _check_store(keep.store, obj)
            require(not keep.store.read_only, f"store {keep.store.volume} is read-only")


def fetch_of(
    request: pb.FetchRequest,
    facts: ServerFacts,
    endpoints: Mapping[str, ServedEndpoint] | None,
) -> tuple[Folder, Key, tuple[GetPart, ...]]:
    """Read what is to be fetched. Takes a while when there is much."""
    obj = folder_of(request.folder)
    with refusing(obj):
        folder = read(Folder, request)
        most = policy.most_checkpoints(folder.where, facts)
        policy.check_folder_facts(obj, folder.key, folder.size_bytes, most)
        asked = read(Gets, request)
        for get in asked.gets:
            policy.check_endpoint(get.endpoint, endpoints, obj)
            _check_how(get, endpoints, obj)
        doubles = len({(get.rank, get.endpoint, get.part) for get in asked.gets}) < len(asked.gets)
        require(not doubles, "a rank gets the same part twice")
    return folder, asked.key, asked.gets


def _check_how(get: GetPart, endpoints: Mapping[str, ServedEndpoint] | None, obj: str) -> None:
    match get.how:
        case GetLocal(endpoint):
            policy.check_endpoint(endpoint, endpoints, obj)
        case GetFrom(source):
            split_address(source.address, lowest=1)
        case GetRebuilt(covers, parts, parities):
            part, ranks = get.part, {member.rank for member in covers}
            require(part in ranks, f"rank {part} is not in the set that it is rebuilt from")
            for sources in (parts, parities):
                others = {source.rank for source in sources}
                require(
                    others == ranks - {part},
                    "a part is rebuilt from all other members of its set",
                )
                for source in sources:
                    split_address(source.address, lowest=1)  # maybe of this machine: emulated racks
        case GetStored(store):
            _check_store(store, obj)


def _check_store(mount: VolumeMount, obj: str) -> None:
    rules.check_name(mount.volume, obj)
    if mount.scope is Scope.SITE:
        require(not mount.owner, "the volume itself has no owner")
    else:
        rules.check_owner(mount.owner, obj)
    clean = not mount.path or (mount.path[0] == "/" and not path_fault(mount.path[1:]))
    require(clean, f"{mount.path[:80]!r} is not the path of a store")  # in no container


def _check_ip(address: str) -> None:
    """Refuse what is not the address of one host."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise ValueError(f"{address[:80]!r} is not an IP address") from None
    usable = not (found.is_multicast or found.is_loopback or found.is_unspecified)
    require(usable and "%" not in address, f"{address} is not the address of a host")


def holdings_batches(news: News) -> Iterator[pb.HoldingsBatch]:
    """Convert news of what is held, in lists that one message can carry; at least one."""
    for start in range(0, max(1, len(news.holdings)), MAX_BATCH):
        end = start + MAX_BATCH
        told = news.holdings[start:end]
        yield pb.HoldingsBatch(
            holdings=[_holding(one) for one in told if one.kind is not HoldingKind.IGNORED],
            ignored=[_holding(one) for one in told if one.kind is HoldingKind.IGNORED],
            caught_up=news.caught_up and end >= len(news.holdings),
        )


def _holding(holding: Holding) -> pb.Holding:
    return write(pb.Holding, holding, why=_clean(holding.why, MAX_WHY))


def progress_message(progress: FetchProgress) -> pb.FetchProgress:
    """Convert how far a fetch is."""
    faults = tuple(
        replace(fault, message=_clean(fault.message, MAX_WHY))
        for fault in progress.faults[:MAX_FAULTS]
    )
    return write(pb.FetchProgress, replace(progress, faults=faults))


def verified_batches(verified: Sequence[Verified]) -> Iterator[pb.VerifyBatch]:
    """Convert parts that were read again, in lists that one message can carry."""
    for start in range(0, len(verified), MAX_VERIFIED):
        batch = verified[start : start + MAX_VERIFIED]
        yield pb.VerifyBatch(
            verified=[write(pb.Verified, one, damages=_damages(one.damages)) for one in batch]
        )


def _damages(damages: Sequence[str]) -> Iterable[str]:
    """Return the first damages; the last one counts the others."""
    shown = [_clean(text, MAX_DAMAGE) for text in damages[:MAX_DAMAGES]]
    if len(damages) > MAX_DAMAGES:
        shown[-1] = f"and {len(damages) - MAX_DAMAGES + 1} more"
    return shown


def _clean(text: str, most: int) -> str:
    """Return a text that can be sent: a program chooses names of files as it likes."""
    return text[:most].encode(errors="backslashreplace").decode()
