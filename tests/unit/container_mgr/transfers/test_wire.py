"""The protocol: keys, frames and hostile bytes, over a pair of sockets."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.ledger import Key, Member
from checkpoints.manifest import FileSums, Sum
from container_mgr.transfers import wire
from container_mgr.transfers.channel import Channel
from container_mgr.transfers.gate import SendGate
from container_mgr.transfers.wire import (
    Ask,
    AskBytes,
    AskCheck,
    AskPart,
    FrameKind,
    NotTrustedError,
    PartHead,
    PeerRefusalError,
    PeerSession,
    WireError,
)
from tests.unit.container_mgr.transfers.fakes import FOLDER, files_of, manifest_of

SECRET = b"s" * 32


@contextmanager
def pair() -> Iterator[tuple[Channel, Channel]]:
    one, two = socket.socketpair()
    left, right = Channel(one, SendGate()), Channel(two, SendGate())
    try:
        yield left, right
    finally:
        left.close()
        right.close()


def soon(channel: Channel) -> float:
    return channel.deadline(10)


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Run in a thread; the result joins it."""
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(20)
        return found[0]

    return result


def meet(left: Channel, right: Channel, client: bytes, server: bytes) -> tuple[Any, Any]:
    def serve() -> PeerSession:
        name, nonce = wire.hello(right, soon(right))
        return wire.prove(right, name, server, (nonce, os.urandom(32)), soon(right))

    served = beside(serve)
    try:
        session: Any = wire.greet(left, FOLDER.name, client, os.urandom(32), soon(left))
    except (WireError, OSError) as error:
        session = error
        left.close()
    return session, served()


def test_both_ends_prove_the_key() -> None:
    with pair() as (left, right):
        client, server = meet(left, right, FOLDER.key, FOLDER.key)
        client.send(*wire.dump_ask(AskCheck()), soon(left))
        assert wire.parse_ask(*server.receive(100, soon(right))) == AskCheck()
        server.send(FrameKind.CHECKED, b"{}", soon(right))
        assert client.expect(FrameKind.CHECKED, 100, soon(left)) == b"{}"


def test_a_server_with_another_key_is_not_trusted() -> None:
    with pair() as (left, right):
        client, server = meet(left, right, FOLDER.key, bytes(32))
        assert isinstance(client, NotTrustedError)
        assert isinstance(server, OSError)


def test_a_client_with_another_key_is_not_trusted() -> None:
    with pair() as (left, right):

        def serve() -> PeerSession:
            name, nonce = wire.hello(right, soon(right))
            return wire.prove(right, name, FOLDER.key, (nonce, os.urandom(32)), soon(right))

        served = beside(serve)
        left.send(
            b"LLP1" + bytes([len(FOLDER.name)]) + FOLDER.name.encode() + bytes(32), soon(left)
        )
        proof = left.receive(64, soon(left))
        left.send(proof[32:], soon(left))  # played back
        assert isinstance(served(), NotTrustedError)


def test_the_key_is_never_sent() -> None:
    """All that a listener in the rank's network sees."""
    seen = bytearray()
    one, relay_one = socket.socketpair()
    relay_two, two = socket.socketpair()

    def relay(source: socket.socket, target: socket.socket) -> None:
        while block := source.recv(4096):
            seen.extend(block)
            target.sendall(block)

    for pairs in ((relay_one, relay_two), (relay_two, relay_one)):
        threading.Thread(target=relay, args=pairs, daemon=True).start()
    left, right = Channel(one, SendGate()), Channel(two, SendGate())
    client, server = meet(left, right, FOLDER.key, FOLDER.key)
    client.send(*wire.dump_ask(AskCheck()), soon(left))
    server.receive(100, soon(right))
    assert FOLDER.key not in seen
    assert FOLDER.key[:8] not in seen
    left.close()
    right.close()


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_random_bytes_are_no_greeting(block: bytes) -> None:
    with pair() as (left, right):
        left.send(block, soon(left)) if block else None
        left.abort()
        with pytest.raises((WireError, OSError)):
            name, nonce = wire.hello(right, soon(right))
            wire.prove(right, name, SECRET, (nonce, bytes(32)), soon(right))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_changed_frame_is_refused(noise: bytes, at: int) -> None:
    with pair() as (left, right):
        PeerSession(left, SECRET, server=False).send(FrameKind.READ, b'{"offset":0}', soon(left))
        raw = bytearray(right.receive(5 + 12 + 16, soon(right)))
        changed = bytes(raw[: at % len(raw)] + noise + raw[at % len(raw) :])
        if changed[: len(raw)] == raw:
            return
        left.close()
        with pair() as (again, other):
            again.send(changed, soon(again))
            again.abort()
            with pytest.raises((WireError, OSError)):
                PeerSession(other, SECRET, server=True).receive(1000, soon(other))


def test_a_frame_is_not_played_back() -> None:
    with pair() as (left, right):
        client = PeerSession(left, SECRET, server=False)
        client.send(FrameKind.CHECK, b"{}", soon(left))
        raw = right.receive(5 + 2 + 16, soon(right))
        server = PeerSession(right, SECRET, server=True)
        left.send(raw + raw, soon(left))
        server.receive(100, soon(right))
        with pytest.raises(WireError, match="changed"):
            server.receive(100, soon(right))


def test_a_length_is_bounded_before_it_is_read() -> None:
    with pair() as (left, right):
        left.send(b"\x01\xff\xff\xff\xff", soon(left))
        with pytest.raises(WireError, match="accepted"):
            PeerSession(right, SECRET, server=True).receive(wire.MAX_REQUEST, soon(right))


@pytest.mark.parametrize(
    "ask",
    [AskPart(Key(1, 2), 3, "gpu3", parity=True), AskBytes(1, 2, 3), AskCheck()],
)
def test_requests_survive(ask: Ask) -> None:
    assert wire.parse_ask(*wire.dump_ask(ask)) == ask


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["step", "epoch", "rank", "endpoint", "offset", "length", "pace"]),
            inner,
        )
    ),
    max_leaves=20,
)


@given(st.sampled_from(FrameKind), JSON)
def test_hostile_requests_are_refused_or_in_bounds(kind: FrameKind, body: Any) -> None:
    try:
        ask = wire.parse_ask(kind, json.dumps(body).encode())
    except WireError:
        return
    match ask:
        case AskPart(key, rank, endpoint, _):
            assert min(key) >= 0 and rank >= 0 and 0 < len(endpoint) <= wire.MAX_FOLDER
        case AskBytes(offset, length, pace):
            assert offset >= 0 and 0 <= length <= wire.MAX_READ and pace >= 0


@given(st.sampled_from(FrameKind), st.binary(max_size=200))
def test_bytes_that_are_no_json(kind: FrameKind, body: bytes) -> None:
    with pytest.raises(WireError):
        wire.parse_ask(kind, b"\xff" + body)


def test_a_head_with_its_set() -> None:
    manifests = tuple(manifest_of(rank, files_of(rank, 10)) for rank in range(4))
    covers = tuple(Member(one.rank, one.digest, one.bytes) for one in manifests)
    head = PartHead(manifests[0], covers, manifests)
    with pair() as (left, right):
        sent = beside(
            lambda: wire.send_head(PeerSession(left, SECRET, server=True), head, soon(left))
        )
        found = wire.receive_head(PeerSession(right, SECRET, server=False), soon(right))
        assert sent() is None
    assert found == head


@pytest.mark.parametrize(("depth", "good"), [(2, True), (5, False)])
def test_a_manifest_with_as_many_files_as_may_be(depth: int, good: bool) -> None:
    """With long names it has more than 16 MiB, and is refused before it is read."""
    names = ("/".join([f"{number:05}".ljust(203, "x")] * depth) for number in range(16_384))
    large = replace(manifest_of(0, {}), files=FileSums(dict.fromkeys(names, Sum(0, 0))))
    with pair() as (left, right):
        end = left.deadline(60)

        def send() -> None:
            with suppress(OSError):
                wire.send_head(PeerSession(left, SECRET, server=True), PartHead(large), end)

        sent = beside(send)
        session = PeerSession(right, SECRET, server=False)
        if good:
            assert wire.receive_head(session, end).manifest.files == large.files
        else:
            with pytest.raises(WireError):
                wire.receive_head(session, end)
            right.abort()
        sent()


def test_a_refusal_is_told_in_printable_words() -> None:
    with pair() as (left, right):
        PeerSession(left, SECRET, server=True).fail("no\x1b[31m", soon(left), damaged=True)
        with pytest.raises(PeerRefusalError, match=r"no\?\[31m") as refused:
            PeerSession(right, SECRET, server=False).expect(FrameKind.HEAD, 10, soon(right))
        assert refused.value.damaged


@given(length=st.integers(0, wire.MAX_READ), pace=st.integers(0, 1 << 40))
def test_patience_outlasts_the_pace(length: int, pace: int) -> None:
    assert wire.patience(length, pace) >= length / max(pace, wire.SLOWEST)
