"""Converts and checks the messages about checkpoints. Pure.

Every value of a request is checked and every list of it bounded here, before it reaches a folder
or another server. Raises AgentError ``invalid``, and ``not_found`` for another server's endpoint.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from base.addresses import split_address
from checkpoints.ledger import Key, Member
from checkpoints.manifest import MAX_LENGTH
from checkpoints.values import MAX_RANKS, path_fault
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.contract import News
from container_mgr.checkpoints.values import (
    FetchProgress,
    Folder,
    Get,
    GetFrom,
    GetLocal,
    GetRebuilt,
    GetStored,
    Holding,
    Keep,
    KeepCopy,
    KeepParity,
    KeepStored,
    Kind,
    Source,
    Verified,
)
from container_mgr.ranks import policy
from container_mgr.rpc.messages import mount_of, where_of
from container_mgr.values import AgentError, Scope, ServedEndpoint, ServerFacts, VolumeMount
from container_mgr.volumes import rules
from protos import agent_pb2 as pb

MAX_KEEPS = 4096
"""Of one job on one server: a few steps of each of its ranks."""
MAX_GETS = 16_384
MAX_DROPS = 1024
"""Steps in one call."""
MAX_MEMBERS = 64
"""Of one set."""
MAX_BATCH = 1000
"""Holdings in one message, which stays below gRPC's 4 MiB."""
MAX_VERIFIED = 100
"""Parts that were read again in one message."""
MAX_WHY = 300
MAX_DAMAGES = 8
MAX_DAMAGE = 1100
"""Characters: a path and what is wrong with it."""
MAX_FAULTS = 1000

_DIGEST = re.compile(r"[0-9a-f]{8}")
_SERVER = re.compile(r"[a-z0-9-]{1,63}")
_KINDS = {
    Kind.OWN: pb.HOLDING_OWN,
    Kind.COPY: pb.HOLDING_COPY,
    Kind.PARITY: pb.HOLDING_PARITY,
    Kind.STORED: pb.HOLDING_STORED,
    Kind.AWAITS: pb.HOLDING_AWAITS,
    Kind.MISSING: pb.HOLDING_MISSING,
    Kind.REFUSED: pb.HOLDING_REFUSED,
    Kind.IGNORED: pb.HOLDING_IGNORED,
}


def folder_of(name: str) -> str:
    """Read the name of a job's folders."""
    layout.check_folder(name)
    return name


def key_of(message: pb.StepKey, obj: str) -> Key:
    """Read a step."""
    key = Key(message.step, message.epoch)
    policy.check_step(obj, key)
    return key


def step_of(request: pb.CloseStepRequest) -> Key:
    """Read the step that a coordinator has closed."""
    return _required(request, request.folder)


def drops_of(request: pb.DropStepsRequest) -> list[Key]:
    """Read which steps are to be removed."""
    _most(request.steps, MAX_DROPS, "steps", request.folder)
    return [key_of(step, request.folder) for step in request.steps]


def keeps_of(request: pb.KeepRequest) -> list[Keep]:
    """Read what is to be kept. Takes a while when there is much."""
    _most(request.keeps, MAX_KEEPS, "copies, parities and writes", request.folder)
    return [_keep_of(keep, request.folder) for keep in request.keeps]


def _keep_of(keep: pb.Keep, obj: str) -> Keep:
    rank, key = _rank(keep.rank, obj), _required(keep, obj)
    match keep.WhichOneof("what"):
        case "copy":
            source = _source_of(keep.copy, obj)
            _require(source.rank != rank, obj, "a copy is of another rank's part")
            _check_ip(source.address, obj)
            return KeepCopy(rank, key, source)
        case "parity":
            members = _sources_of(keep.parity.members, obj)
            for member in members:
                if member.address:
                    _check_ip(member.address, obj)
            ranks = [member.rank for member in members]
            _require(len(ranks) > 1 and rank in ranks, obj, "a rank keeps the parity of its set")
            return KeepParity(rank, key, members)
        case "store":
            store = _store_of(keep.store, obj)
            _require(not store.read_only, obj, f"store {store.volume} is read-only")
            return KeepStored(rank, key, store)
    raise AgentError("invalid", obj, "a keep says nothing to keep", _NEWER)


def fetch_of(
    request: pb.FetchRequest,
    facts: ServerFacts,
    endpoints: Mapping[str, ServedEndpoint] | None,
) -> tuple[Folder, Key, list[Get]]:
    """Read what is to be fetched. Takes a while when there is much."""
    obj = folder_of(request.folder)
    where = where_of(request.where, obj)
    most = policy.most_checkpoints(where, facts)
    policy.check_folder_facts(obj, request.key, request.size_bytes, most)
    _most(request.gets, MAX_GETS, "parts", obj)
    gets = [_get_of(get, obj, endpoints) for get in request.gets]
    doubles = len({(get.rank, get.endpoint, get.part) for get in gets}) < len(gets)
    _require(not doubles, obj, "a rank gets the same part twice")
    folder = Folder(name=obj, key=request.key, where=where, size_bytes=request.size_bytes)
    return folder, _required(request, obj), gets


def _get_of(get: pb.Get, obj: str, endpoints: Mapping[str, ServedEndpoint] | None) -> Get:
    policy.check_endpoint(get.endpoint, endpoints, obj)
    part = _rank(get.part, obj)
    return Get(
        rank=_rank(get.rank, obj),
        endpoint=get.endpoint,
        part=part,
        digest=_digest(get.digest, obj),
        bytes=_bytes(get.bytes, obj),
        how=_how_of(get, part, obj, endpoints),
    )


def _how_of(
    get: pb.Get, part: int, obj: str, endpoints: Mapping[str, ServedEndpoint] | None
) -> GetLocal | GetFrom | GetRebuilt | GetStored:
    match get.WhichOneof("how"):
        case "local":
            policy.check_endpoint(get.local, endpoints, obj)
            return GetLocal(get.local)
        case "from":
            source = _source_of(getattr(get, "from"), obj)
            _check_address(source.address, obj)
            return GetFrom(source)
        case "rebuild":
            return _rebuilt_of(get.rebuild, part, obj)
        case "store":
            return GetStored(_store_of(get.store, obj))
    raise AgentError("invalid", obj, "a part is fetched from nowhere", _NEWER)


def _rebuilt_of(message: pb.Rebuild, part: int, obj: str) -> GetRebuilt:
    _most(message.covers, MAX_MEMBERS, "members", obj)
    covers = tuple(
        Member(_rank(one.rank, obj), _digest(one.digest, obj), _bytes(one.bytes, obj))
        for one in message.covers
    )
    ranks = {member.rank for member in covers}
    _require(len(ranks) == len(covers) > 1, obj, "a set has two members or more, each once")
    _require(part in ranks, obj, f"rank {part} is not in the set that it is rebuilt from")
    parts = _sources_of(message.parts, obj)
    parities = _sources_of(message.parities, obj, parities=True)
    for sources in (parts, parities):
        others = {source.rank for source in sources}
        _require(
            others == ranks - {part}, obj, "a part is rebuilt from all other members of its set"
        )
        for source in sources:
            _check_address(source.address, obj)
    return GetRebuilt(covers, parts, parities)


def _sources_of(
    messages: Sequence[pb.Source], obj: str, *, parities: bool = False
) -> tuple[Source, ...]:
    _most(messages, MAX_MEMBERS, "members", obj)
    sources = tuple(_source_of(one, obj, parity=parities) for one in messages)
    doubles = len({source.rank for source in sources}) < len(sources)
    _require(not doubles, obj, "a rank is named twice in one set")
    return sources


def _source_of(message: pb.Source, obj: str, *, parity: bool = False) -> Source:
    """Read a source; a parity's digest and size may be unknown to the caller."""
    policy.check_endpoint(message.endpoint, None, obj)
    _require(_SERVER.fullmatch(message.server), obj, f"{message.server[:80]!r} is no server")
    unknown = parity and not message.digest
    return Source(
        rank=_rank(message.rank, obj),
        digest="" if unknown else _digest(message.digest, obj),
        bytes=_bytes(message.bytes, obj, least=0 if parity else 1),
        endpoint=message.endpoint,
        server=message.server,
        address=message.address,
    )


def _store_of(message: pb.VolumeMount, obj: str) -> VolumeMount:
    mount = mount_of(message)
    rules.check_name(mount.volume, obj)
    if mount.scope is Scope.SITE:
        _require(not mount.owner, obj, "the volume itself has no owner")
    else:
        rules.check_owner(mount.owner, obj)
    clean = not mount.path or (mount.path[0] == "/" and not path_fault(mount.path[1:]))
    _require(clean, obj, f"{mount.path[:80]!r} is not the path of a store")  # in no container
    return mount


def _check_ip(address: str, obj: str) -> None:
    """Refuse what is not the address of one host."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        raise AgentError("invalid", obj, f"{address[:80]!r} is not an IP address") from None
    usable = not (found.is_multicast or found.is_loopback or found.is_unspecified)
    _require(usable and "%" not in address, obj, f"{address} is not the address of a host")


def _check_address(address: str, obj: str) -> None:
    """Refuse what is not HOST:PORT. An agent of an emulated rack may be on this machine."""
    try:
        split_address(address, lowest=1)
    except ValueError as error:
        raise AgentError("invalid", obj, str(error)) from None


def _rank(number: int, obj: str) -> int:
    _require(number < MAX_RANKS, obj, f"a rank is 0 to {MAX_RANKS - 1}")
    return number


def _digest(text: str, obj: str) -> str:
    _require(_DIGEST.fullmatch(text), obj, f"{text[:80]!r} is not the digest of a part")
    return text


def _bytes(number: int, obj: str, least: int = 1) -> int:
    _require(least <= number <= MAX_LENGTH, obj, f"a part has {least} to {MAX_LENGTH} bytes")
    return number


def _required(message: pb.CloseStepRequest | pb.FetchRequest | pb.Keep, obj: str) -> Key:
    _require(message.HasField("step"), obj, "the step is missing")
    return key_of(message.step, obj)


def _most(entries: Sequence[object], most: int, what: str, obj: str) -> None:
    _require(len(entries) <= most, obj, f"{len(entries)} {what}; at most {most} in one list")


def _require(ok: object, obj: str, message: str) -> None:
    if not ok:
        raise AgentError("invalid", obj, message)


_NEWER = "is the controller newer than the agent?"


def holdings_batches(news: News) -> Iterator[pb.HoldingsBatch]:
    """Convert news of what is held, in lists that one message can carry; at least one."""
    for start in range(0, max(1, len(news.holdings)), MAX_BATCH):
        end = start + MAX_BATCH
        told = news.holdings[start:end]
        yield pb.HoldingsBatch(
            holdings=[_holding_message(one) for one in told if one.kind is not Kind.IGNORED],
            ignored=[_holding_message(one) for one in told if one.kind is Kind.IGNORED],
            caught_up=news.caught_up and end >= len(news.holdings),
        )


def _holding_message(holding: Holding) -> pb.Holding:
    return pb.Holding(
        folder=holding.folder,
        step=_key_message(holding.key),
        rank=holding.rank,
        endpoint=holding.endpoint,
        kind=_KINDS[holding.kind],
        digest=holding.digest,
        bytes=holding.bytes,
        covers=[
            pb.Member(rank=rank, digest=digest, bytes=size) for rank, digest, size in holding.covers
        ],
        why=_clean(holding.why, MAX_WHY),
        written_s=holding.written_s,
        seen_at=holding.seen_at,
    )


def progress_message(progress: FetchProgress) -> pb.FetchProgress:
    """Convert how far a fetch is."""
    return pb.FetchProgress(
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        done=progress.done,
        faults=[
            pb.FetchFault(
                rank=fault.rank,
                part=fault.part,
                endpoint=fault.endpoint,
                message=_clean(fault.message, MAX_WHY),
            )
            for fault in progress.faults[:MAX_FAULTS]
        ],
    )


def verified_batches(verified: Sequence[Verified]) -> Iterator[pb.VerifyBatch]:
    """Convert parts that were read again, in lists that one message can carry."""
    for start in range(0, len(verified), MAX_VERIFIED):
        batch = verified[start : start + MAX_VERIFIED]
        yield pb.VerifyBatch(verified=[_verified_message(one) for one in batch])


def _verified_message(one: Verified) -> pb.Verified:
    return pb.Verified(
        step=_key_message(one.key),
        rank=one.rank,
        endpoint=one.endpoint,
        kind=_KINDS[one.kind],
        damages=_damages(one.damages),
    )


def _damages(damages: Sequence[str]) -> Iterable[str]:
    """Return the first damages; the last one says how many there are besides."""
    shown = [_clean(text, MAX_DAMAGE) for text in damages[:MAX_DAMAGES]]
    if len(damages) > MAX_DAMAGES:
        shown[-1] = f"and {len(damages) - MAX_DAMAGES + 1} more"
    return shown


def _key_message(key: Key) -> pb.StepKey:
    return pb.StepKey(step=key.step, epoch=key.epoch)


def _clean(text: str, most: int) -> str:
    """Return a text that can be sent: a program chooses names of files as it likes."""
    return text[:most].encode(errors="backslashreplace").decode()
