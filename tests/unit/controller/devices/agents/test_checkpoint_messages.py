"""Checkpoints between controller and agent: what one writes the other reads, and no lie passes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlink import checkpoints as engine
from agentlink.codec import read, write
from agentlink.ranks import RankCheckpoint
from agentlink.values import Scope, VolumeMount, Where
from checkpoints.ledger import Key, Member
from container_mgr.checkpoints.contract import News
from container_mgr.rpc import checkpoint_messages as wire
from container_mgr.rpc import messages as wire_ranks
from container_mgr.values import ServerFacts
from controller.devices.agents import checkpoint_messages as messages
from controller.devices.agents.messages import rank_message
from protos import agent_pb2 as pb
from tests.unit.controller.devices.agents.specs import SPEC

FACTS = ServerFacts(cores=4, memory_bytes=2**53)
SECRET = b"\xaaK" * 16

digests = st.text("0123456789abcdef", min_size=8, max_size=8)
counts = st.integers(1, 2**53)
ranks = st.integers(0, 65_535)
names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
folders = st.from_regex(r"[a-z0-9-]{1,63}\.[0-9a-f]{8}", fullmatch=True)
keys = st.builds(Key, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
hosts = st.builds("10.{}.{}.{}".format, *[st.integers(1, 254)] * 3)
stores = st.one_of(
    st.builds(VolumeMount, names, st.just("/shared"), st.just(False)),
    st.builds(
        VolumeMount, names, st.just(""), st.just(False), st.just(Scope.PROJECT), names, counts
    ),
)


def sources(ranked: st.SearchStrategy[int] = ranks) -> st.SearchStrategy[engine.Source]:
    return st.builds(engine.Source, ranked, digests, counts, names, names, hosts)


@st.composite
def keeps(draw: Any) -> engine.Keep:
    rank, key = draw(ranks), draw(keys)
    others = st.lists(ranks.filter(lambda r: r != rank), min_size=1, max_size=5, unique=True)
    match draw(st.sampled_from(["copy", "parity", "store"])):
        case "copy":
            return engine.KeepCopy(rank, key, draw(sources(st.just(draw(others)[0]))))
        case "parity":
            members = [draw(sources(st.just(one))) for one in (rank, *draw(others))]
            return engine.KeepParity(rank, key, tuple(members))
    return engine.KeepStored(rank, key, draw(stores))


@st.composite
def gets(draw: Any) -> engine.GetPart:
    part = draw(ranks)
    others = draw(st.lists(ranks.filter(lambda r: r != part), min_size=1, max_size=5, unique=True))
    how: Any
    match draw(st.sampled_from(["local", "from", "rebuilt", "stored"])):
        case "local":
            how = engine.GetLocal(draw(names))
        case "from":
            how = engine.GetFrom(draw(sources()))
        case "rebuilt":
            covers = [Member(one, draw(digests), draw(counts)) for one in (part, *others)]
            parts, parities = (
                tuple(draw(sources(st.just(one))) for one in others) for _ in range(2)
            )
            how = engine.GetRebuilt(tuple(covers), parts, parities)
        case _:
            how = engine.GetStored(draw(stores))
    return engine.GetPart(draw(ranks), draw(names), part, draw(digests), draw(counts), how)


@given(folders, st.lists(keeps(), max_size=4), st.integers(0, 2**64 - 1))
def test_keeps_arrive_as_they_were_sent(
    folder: str, sent: list[engine.Keep], pace_bps: int
) -> None:
    raw = write(pb.KeepRequest, engine.Keeps(folder, tuple(sent), pace_bps)).SerializeToString()
    request = pb.KeepRequest.FromString(raw)
    assert wire.folder_of(request.folder) == folder
    assert request.pace_bps == pace_bps
    assert wire.keeps_of(request) == tuple(sent)


@given(
    st.builds(engine.Folder, folders, st.just(SECRET), st.sampled_from(list(Where)), counts),
    keys,
    st.lists(gets(), max_size=4, unique_by=lambda get: (get.rank, get.endpoint, get.part)),
)
def test_fetches_arrive_as_they_were_sent(
    folder: engine.Folder, key: Key, sent: list[engine.GetPart]
) -> None:
    request = messages.fetch_request(folder, key, sent, lambda source: f"{source.address}:7410")
    request = pb.FetchRequest.FromString(request.SerializeToString())
    arrived, step, parts = wire.fetch_of(request, FACTS, None)
    assert (arrived, step) == (folder, key)
    assert parts == tuple(with_ports(one) for one in sent)


def with_ports(get: engine.GetPart) -> engine.GetPart:
    def at(source: engine.Source) -> engine.Source:
        return dataclasses.replace(source, address=f"{source.address}:7410")

    match get.how:
        case engine.GetFrom(source):
            return dataclasses.replace(get, how=engine.GetFrom(at(source)))
        case engine.GetRebuilt(covers, parts, parities):
            how = engine.GetRebuilt(covers, tuple(map(at, parts)), tuple(map(at, parities)))
            return dataclasses.replace(get, how=how)
    return get


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)


@st.composite
def holdings(draw: Any) -> engine.Holding:
    kind, rank = draw(st.sampled_from(list(engine.HoldingKind))), draw(ranks)
    covers: tuple[Member, ...] = ()
    if kind is engine.HoldingKind.PARITY:
        others = draw(
            st.lists(ranks.filter(lambda r: r != rank), min_size=1, max_size=5, unique=True)
        )
        covers = tuple(Member(one, draw(digests), draw(counts)) for one in (rank, *others))
    return engine.Holding(
        folder=draw(folders),
        key=draw(keys),
        rank=rank,
        endpoint=draw(names),
        kind=kind,
        digest=draw(digests),
        bytes=draw(counts),
        covers=covers,
        why=draw(texts),
        written_s=draw(st.none() | st.floats(0, 1e9)),
        seen_at=draw(st.floats(0.5, 1e9)),
    )


@given(st.lists(holdings(), max_size=4))
def test_holdings_arrive_as_they_were_told(told: list[engine.Holding]) -> None:
    (batch,) = wire.holdings_batches(News(tuple(told)))
    batch = pb.HoldingsBatch.FromString(batch.SerializeToString())
    found, left_out = messages.holdings_of("srv0", batch, lambda endpoint: True, 2e9)
    assert left_out == 0
    ignored = [
        one for one in told if one.kind is engine.HoldingKind.IGNORED
    ]  # a field of their own
    others = [one for one in told if one.kind is not engine.HoldingKind.IGNORED]
    assert found == tuple(dataclasses.replace(one, server="srv0") for one in (*others, *ignored))


verifications = st.builds(
    engine.Verified, keys, ranks, names, st.sampled_from(list(engine.HoldingKind)), st.tuples(texts)
)
faults = st.builds(engine.FetchFault, ranks, ranks, names | st.just(""), texts)
progress = st.builds(engine.FetchProgress, counts, counts, st.booleans(), st.tuples(faults))


@given(verifications, progress)
def test_what_became_of_parts_arrives(one: engine.Verified, far: engine.FetchProgress) -> None:
    (batch,) = wire.verified_batches([one])
    found, left_out = messages.verified_of("srv0", batch, lambda endpoint: True)
    assert (found, left_out) == ([dataclasses.replace(one, server="srv0")], 0)
    assert read(engine.FetchProgress, wire.progress_message(far)) == far


@given(
    st.builds(
        RankCheckpoint,
        folders,
        st.integers(1, 65_536),
        st.sampled_from(["rename", "dcp", "marker: done"]),
        st.sampled_from(list(Where)),
        counts,
        st.just(SECRET),
        st.none() | keys,
    )
)
def test_what_a_rank_needs_arrives(sent: RankCheckpoint) -> None:
    message = rank_message(dataclasses.replace(SPEC, checkpoint=sent))
    arrived = wire_ranks.spec_of(pb.Rank.FromString(message.SerializeToString()))
    assert arrived.checkpoint == sent


def test_a_rank_without_checkpoints_has_none() -> None:
    assert wire_ranks.spec_of(rank_message(SPEC)).checkpoint is None


def told(**changed: Any) -> pb.Holding:
    message = pb.Holding(
        folder="red.0123abcd",
        step=pb.StepKey(step=10, epoch=1),
        rank=1,
        endpoint="gpu0",
        kind=pb.HOLDING_OWN,
        digest="0000beef",
        bytes=4096,
        written_s=1.0,
        seen_at=1000.0,
    )
    for name, value in changed.items():
        if name in {"step", "epoch"}:
            setattr(message.step, name, value)
        elif isinstance(value, list):
            message.covers.extend(value)
        else:
            setattr(message, name, value)
    return message


def owns(endpoint: str) -> bool:
    return endpoint in {"gpu0", "../gpu0"}


def member(rank: int = 0, digest: str = "0000cafe", size: int = 1) -> pb.Member:
    return pb.Member(rank=rank, digest=digest, bytes=size)


SET = [member(0), member(1)]


@pytest.mark.parametrize(
    "lie",
    [
        told(folder=""),
        told(folder="red"),
        told(folder="../etc.01234567"),
        told(step=2**63),
        told(epoch=2**64 - 1),
        pb.Holding(folder="red.0123abcd", endpoint="gpu0", kind=pb.HOLDING_AWAITS),
        told(rank=65_536),
        told(endpoint=""),
        told(endpoint="gpu1"),
        told(endpoint="../gpu0"),
        told(kind=0),
        told(kind=99),
        told(digest=""),
        told(kind=pb.HOLDING_COPY, digest=""),
        told(digest="nonsense"),
        told(digest="0000beef\n"),
        told(bytes=2**53 + 1),
        told(why="w" * 1001),
        told(kind=pb.HOLDING_PARITY),
        told(kind=pb.HOLDING_PARITY, covers=SET[:1]),
        told(kind=pb.HOLDING_PARITY, covers=[member(0), member(2)]),
        told(kind=pb.HOLDING_PARITY, covers=[*SET, member(1)]),
        told(kind=pb.HOLDING_PARITY, covers=[*SET, member(65_536)]),
        told(kind=pb.HOLDING_PARITY, covers=[*SET, member(2, "x")]),
        told(kind=pb.HOLDING_PARITY, covers=[*SET, member(2, size=2**60)]),
        told(kind=pb.HOLDING_PARITY, covers=[member(n) for n in range(65)]),
    ],
)
def test_a_lie_is_left_out_and_harms_no_other_entry(lie: pb.Holding) -> None:
    batch = pb.HoldingsBatch(holdings=[told(), lie, told(rank=2)])
    found, left_out = messages.holdings_of("srv0", batch, owns, 2000.0)
    assert [holding.rank for holding in found] == [1, 2]
    assert left_out == 1


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e300, -1.0])
def test_a_time_that_is_none_harms_no_holding(number: float) -> None:
    batch = pb.HoldingsBatch(holdings=[told(written_s=number, seen_at=number)])
    ((holding,), _) = messages.holdings_of("srv0", batch, owns, 2000.0)
    assert (holding.written_s, holding.seen_at) == (None, 0.0)
    later = pb.HoldingsBatch(holdings=[told(seen_at=3000.0)])
    assert messages.holdings_of("srv0", later, owns, 2000.0)[0][0].seen_at == 2000.0


def test_a_set_is_believed_with_a_parity_only() -> None:
    batch = pb.HoldingsBatch(
        holdings=[told(covers=SET), told(kind=pb.HOLDING_PARITY, covers=SET, digest="")]
    )
    (part, parity), _ = messages.holdings_of("srv0", batch, owns, 2000.0)
    assert part.covers == ()
    assert parity.covers == (Member(0, "0000cafe", 1), Member(1, "0000cafe", 1))


def test_a_list_without_end_is_cut() -> None:
    batch = pb.HoldingsBatch(holdings=[told()] * 1_500)
    found, left_out = messages.holdings_of("srv0", batch, owns, 2000.0)
    assert (len(found), left_out) == (1000, 500)


@pytest.mark.parametrize(
    ("batch", "boot_id", "port"),
    [
        (pb.HoldingsBatch(), "", None),
        (pb.HoldingsBatch(boot_id="x" * 99_999, transfer_port=65_536), "", None),
        (
            pb.HoldingsBatch(boot_id="01234567-89ab-cdef-0123-456789abcdef", transfer_port=7410),
            "01234567-89ab-cdef-0123-456789abcdef",
            7410,
        ),
    ],
)
def test_what_a_server_says_of_itself(
    batch: pb.HoldingsBatch, boot_id: str, port: int | None
) -> None:
    assert (messages.boot_id_of(batch), messages.port_of(batch)) == (boot_id, port)


@given(st.binary(max_size=400))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    readers: list[tuple[Any, Callable[[Any], object]]] = [
        (pb.HoldingsBatch, lambda m: messages.holdings_of("srv0", m, owns, 1.0)),
        (pb.VerifyBatch, lambda m: messages.verified_of("srv0", m, owns)),
        (pb.FetchProgress, partial(read, engine.FetchProgress)),
    ]
    for kind, reader in readers:
        try:
            message = kind.FromString(raw)
        except Exception:  # noqa: S112 - protobuf's own refusal
            continue
        reader(message)
