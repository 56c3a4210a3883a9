from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.schemes import (
    NotApartError,
    chunk_bytes,
    lay_out,
    not_apart,
    parity,
    partners,
    rebuild,
    space,
    xor_sets,
    xor_streams,
)
from checkpoints.values import Apart, Place, Scheme, are_apart


def rack(*homes: str) -> list[Place]:
    """Make places from texts like ``s0a1``: server s0, aggregator a1; ``s0`` is dark."""
    return [Place(f"gpu{i}", home[:2], home[2:]) for i, home in enumerate(homes)]


PLACES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=2, max_size=7).map(
    lambda homes: rack(*(f"s{s}a{a}" for s, a in homes))
)


def possible(places: Sequence[Place], apart: Apart) -> bool:
    """Return whether any permutation keeps all apart, by trying all."""
    return any(
        all(are_apart(places[i], places[o], apart) for i, o in enumerate(order))
        for order in permutations(range(len(places)))
    )


@settings(deadline=None)
@given(PLACES, st.sampled_from(Apart))
def test_partners_are_a_derangement_exactly_when_there_is_one(
    places: list[Place], apart: Apart
) -> None:
    try:
        found = partners(places, apart)
    except NotApartError as error:
        assert not possible(places, apart)
        assert "holds" in str(error)
        return
    assert sorted(found) == list(range(len(places)))
    assert all(are_apart(places[i], places[o], apart) for i, o in enumerate(found))
    assert not_apart(lay_out(Scheme.PARTNER, places, apart), places) == ()


def test_the_group_that_is_too_large_is_named() -> None:
    with pytest.raises(NotApartError, match="server s0 holds 3 of 5 ranks; at most 2"):
        partners(rack("s0a0", "s0a1", "s0a0", "s1a0", "s2a1"), Apart.SERVER)
    with pytest.raises(NotApartError, match="aggregator a0 holds 2 of 3 ranks; at most 1"):
        partners(rack("s0a0", "s1a0", "s2a1"), Apart.AGGREGATOR)
    with pytest.raises(NotApartError, match="gpu1 is dark"):
        partners(rack("s0a0", "s1"), Apart.AGGREGATOR)
    with pytest.raises(NotApartError, match="second rank"):
        partners(rack("s0a0"), Apart.SERVER)
    with pytest.raises(NotApartError, match="server s0 holds 3 of 4 ranks; at most 2"):
        xor_sets(rack("s0a0", "s0a0", "s0a0", "s1a0"), Apart.SERVER, 2)
    with pytest.raises(NotApartError, match="needs 4 ranks; the job has 2"):
        xor_sets(rack("s0a0", "s1a0"), Apart.SERVER, 4)


def test_four_thousand_ranks_get_partners_on_other_aggregators() -> None:
    places = [Place(f"gpu{i}", f"srv{i // 8}", f"as{i // 8 % 64}") for i in range(4096)]
    found = partners(places, Apart.AGGREGATOR)
    assert sorted(found) == list(range(4096))
    assert all(are_apart(places[i], places[o], Apart.AGGREGATOR) for i, o in enumerate(found))


def test_a_regroup_can_bring_copies_together() -> None:
    before = rack("s0a0", "s1a1", "s2a0", "s3a1")
    layout = lay_out(Scheme.PARTNER, before, Apart.AGGREGATOR)
    after = rack("s0a0", "s1a0", "s2a0", "s3a1")
    assert not_apart(layout, before) == ()
    assert set(not_apart(layout, after)) & {0, 1, 2}
    sets = lay_out(Scheme.XOR, before, Apart.AGGREGATOR, 2)
    assert not_apart(sets, before) == ()
    assert not_apart(sets, after)


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=24),
    st.integers(2, 5),
)
def test_xor_sets_cover_all_ranks_once(servers: list[int], size: int) -> None:
    places = rack(*(f"s{s}a0" for s in servers))
    largest = max(servers.count(s) for s in servers)
    feasible = len(servers) >= size and largest <= len(servers) // size
    try:
        sets = xor_sets(places, Apart.SERVER, size)
    except NotApartError:
        assert not feasible
        return
    assert feasible
    assert sorted(rank for members in sets for rank in members) == list(range(len(servers)))
    lengths = {len(members) for members in sets}
    assert min(lengths) >= size and max(lengths) - min(lengths) <= 1
    for members in sets:
        assert len({places[rank].server for rank in members}) == len(members)


PARTS = st.lists(st.binary(max_size=200), min_size=2, max_size=6)


@given(PARTS, st.data())
def test_any_one_member_of_a_set_comes_back_identical(
    parts: list[bytes], data: st.DataObject
) -> None:
    lengths = [len(part) for part in parts]
    parities = []
    for member in range(len(parts)):
        out = io.BytesIO()
        # A member's own part is never read for its own parity.
        sources = [io.BytesIO(p) if i != member else None for i, p in enumerate(parts)]
        assert parity(member, sources, lengths, out) == chunk_bytes(max(lengths), len(parts))
        parities.append(out.getvalue())
    lost = data.draw(st.integers(0, len(parts) - 1))
    left = [io.BytesIO(p) if i != lost else None for i, p in enumerate(parts)]
    kept = [io.BytesIO(p) if i != lost else None for i, p in enumerate(parities)]
    out = io.BytesIO()
    assert rebuild(lost, left, kept, lengths, out) == lengths[lost]
    assert out.getvalue() == parts[lost]


def test_blocks_of_a_long_part() -> None:
    parts = [bytes([i + 1, 7 * i, 255 - i]) * (1_200_000 + i) for i in range(3)]
    lengths = [len(part) for part in parts]
    parities = []
    for member in range(3):
        out = io.BytesIO()
        parity(member, [io.BytesIO(p) for p in parts], lengths, out)
        parities.append(out.getvalue())
    out = io.BytesIO()
    rebuild(1, [io.BytesIO(p) for p in parts], [io.BytesIO(p) for p in parities], lengths, out)
    assert out.getvalue() == parts[1]


def test_two_lost_members_and_short_parts_are_errors() -> None:
    parts = [b"abc", b"defg", b"hi"]
    lengths = [3, 4, 2]
    with pytest.raises(ValueError, match="missing: only one may be"):
        rebuild(0, [None, None, io.BytesIO(b"hi")], [None, None, None], lengths, io.BytesIO())
    with pytest.raises(OSError, match="member 1 of the set"):
        parity(0, [None, io.BytesIO(b""), io.BytesIO(parts[2])], lengths, io.BytesIO())


def test_one_hop_of_a_ring() -> None:
    out = io.BytesIO()
    assert xor_streams([io.BytesIO(b"\x0f\xff").read, io.BytesIO(b"\xf0\x0f").read], 2, out) == 2
    assert out.getvalue() == b"\xff\xf0"


def test_space() -> None:
    assert space(Scheme.SINGLE, 12) == 12
    assert space(Scheme.PARTNER, 12) == 24
    assert space(Scheme.XOR, 12, 4) == 16
