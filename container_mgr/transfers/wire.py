"""The protocol by which one agent reads another's parts, in ranges.

No library does this over a socket that was made in another network namespace: HTTP servers
and rsync bring listeners and processes of their own, and neither proves a job's key.

The client opens with a greeting: magic, the job's folder, 32 random bytes. The server answers
with 32 of its own and a proof, HMAC-SHA256 with the job's key over both and the folder; then the
client proves itself likewise. The key never travels, and no proof can be played back or to the
other side. Frames that follow have a kind, a length, a JSON body (or a manifest) and a tag of the
session's own key, so a relay of the connection can change neither a request nor a manifest; a
manifest's sums then decide about the bytes. Bytes come in chunks without a tag: a length, then
that many. A chunk of length 0 means that a frame ``FAIL`` follows in place of the rest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from agentlink.checkpoints import HoldingKind
from checkpoints import manifest
from checkpoints.ledger import Key, Member
from checkpoints.manifest import Manifest
from checkpoints.values import MAX_RANKS, MAX_STEP
from container_mgr.transfers.channel import Channel

PORT = 7409
"""TCP port of a rank's parts, at its own address on e0."""
HANDSHAKE_S = 10.0
ANSWER_S = 60.0
"""The longest wait for the next request, and for the answer to one that reads no files."""
CHECK_S = 600.0
"""The longest wait for a part that is read again."""
MAX_FOLDER = 255
MAX_REQUEST = 4096
MAX_READ = 64 << 20
"""Bytes of one request to read."""
MAX_CHUNK = 1 << 20
MAX_MEMBERS = 64
MAX_MANIFESTS = 64 << 20
"""Bytes of all manifests of a parity's set."""
MAX_WHY = 500
SLOWEST = 64 << 10
"""Bytes per second below which a transfer is given up, unless its pace is slower."""

_MAGIC = b"LLP1"
_NONCE, _PROOF, _TAG = 32, 32, 16
_HEAD = struct.Struct("!BI")
_LENGTH = struct.Struct("!I")


class WireError(Exception):
    """The other end does not keep to the protocol, or does not have the job's key."""


class NotTrustedError(WireError):
    """The other end does not have the job's key."""


class PeerRefusalError(Exception):
    """The other end refused; ``damaged``: the part that it held is not whole."""

    def __init__(self, why: str, *, damaged: bool = False) -> None:
        super().__init__(why)
        self.damaged = damaged


class FrameKind(IntEnum):
    """What a frame is."""

    PART = 1
    READ = 2
    CHECK = 3
    HEAD = 4
    MANIFEST = 5
    DATA = 6
    CHECKED = 7
    FAIL = 8


@dataclass(slots=True, frozen=True)
class AskPart:
    """Asks for a part: of ``rank``, in the folder of ``endpoint``; a parity or not."""

    key: Key
    rank: int
    endpoint: str
    parity: bool

    @property
    def kinds(self) -> tuple[HoldingKind, ...]:
        """The kinds of parts to look up, in this order."""
        return (HoldingKind.PARITY,) if self.parity else (HoldingKind.OWN, HoldingKind.COPY)


@dataclass(slots=True, frozen=True)
class AskBytes:
    """Asks for a range of the part's stream, at most ``pace`` bytes per second (0: no limit)."""

    offset: int
    length: int
    pace: int


@dataclass(slots=True, frozen=True)
class AskCheck:
    """Asks that the part is read again and compared with its manifest."""


Ask = AskPart | AskBytes | AskCheck


@dataclass(slots=True, frozen=True)
class PartHead:
    """A part as its holder describes it."""

    manifest: Manifest
    covers: tuple[Member, ...] = ()
    manifests: tuple[Manifest, ...] = ()


class PeerSession:
    """A connection whose ends have proved the job's key."""

    def __init__(self, channel: Channel, secret: bytes, *, server: bool) -> None:
        self.channel = channel
        mine, theirs = (b"server", b"client") if server else (b"client", b"server")
        self._mine = hmac.digest(secret, mine, hashlib.sha256)
        self._theirs = hmac.digest(secret, theirs, hashlib.sha256)
        self._sent = self._received = 0

    def send(self, kind: FrameKind, body: bytes, deadline: float) -> None:
        """Send a frame. Raises OSError."""
        head = _HEAD.pack(kind, len(body))
        tag = _tag(self._mine, self._sent, head, body)
        self._sent += 1
        self.channel.send(head + body + tag, deadline)

    def receive(self, most: int, deadline: float) -> tuple[FrameKind, bytes]:
        """Return the next frame. Raises WireError and OSError."""
        head = self.channel.receive(_HEAD.size, deadline)
        number, length = _HEAD.unpack(head)
        if length > most:
            raise WireError(f"a frame of {length} bytes, where {most} are accepted")
        body = self.channel.receive(length, deadline)
        tag = self.channel.receive(_TAG, deadline)
        if not hmac.compare_digest(tag, _tag(self._theirs, self._received, head, body)):
            raise WireError("a frame was changed on its way")
        self._received += 1
        try:
            return FrameKind(number), body
        except ValueError:
            raise WireError(f"a frame of the unknown kind {number}") from None

    def fail(self, why: str, deadline: float, *, damaged: bool = False) -> None:
        """Send that a request cannot be answered. Raises OSError."""
        self.send(FrameKind.FAIL, _dump({"why": why[:MAX_WHY], "damaged": damaged}), deadline)

    def begin_chunk(self, length: int, deadline: float) -> None:
        """Announce that many bytes; 0: a frame FAIL follows. Raises OSError."""
        self.channel.send(_LENGTH.pack(length), deadline)

    def chunk(self, most: int, deadline: float) -> int:
        """Return how many bytes follow. Raises PeerRefusalError, WireError and OSError."""
        (length,) = _LENGTH.unpack(self.channel.receive(_LENGTH.size, deadline))
        if length > min(most, MAX_CHUNK):
            raise WireError(f"a chunk of {length} bytes, where {most} are left")
        if not length:
            self.expect(FrameKind.FAIL, MAX_REQUEST, deadline)
            raise WireError("a chunk without bytes")
        return int(length)

    def expect(self, wanted: FrameKind, most: int, deadline: float) -> bytes:
        """Return the body of the next frame. Raises PeerRefusalError for FAIL, and as receive."""
        kind, body = self.receive(max(most, MAX_REQUEST), deadline)
        if kind is FrameKind.FAIL:
            told = _object(body)
            why = told.get("why")
            text = why[:MAX_WHY] if isinstance(why, str) else "no reason given"
            raise PeerRefusalError(
                "".join(c if c.isprintable() else "?" for c in text),
                damaged=told.get("damaged") is True,
            )
        if kind is not wanted:
            raise WireError(f"a frame {kind.name}, where {wanted.name} is due")
        return body


def greet(channel: Channel, folder: str, key: bytes, nonce: bytes, deadline: float) -> PeerSession:
    """Open a connection as its client; ``nonce`` are 32 fresh random bytes.

    Raises NotTrustedError when the other end does not have the key, and OSError.
    """
    name = folder.encode()
    if not 0 < len(name) <= MAX_FOLDER:
        raise WireError("the folder's name is too long")
    channel.send(_MAGIC + bytes([len(name)]) + name + nonce, deadline)
    theirs = channel.receive(_NONCE, deadline)
    proof = channel.receive(_PROOF, deadline)
    if not hmac.compare_digest(proof, _proof(key, b"server", name, nonce, theirs)):
        raise NotTrustedError("it does not have the job's key")
    channel.send(_proof(key, b"client", name, nonce, theirs), deadline)
    return PeerSession(channel, _proof(key, b"session", name, nonce, theirs), server=False)


def hello(channel: Channel, deadline: float) -> tuple[str, bytes]:
    """Receive a greeting as a server: the folder's name and the client's nonce.

    Raises WireError and OSError.
    """
    if channel.receive(len(_MAGIC), deadline) != _MAGIC:
        raise WireError("no greeting of a transfer")
    name = channel.receive(channel.receive(1, deadline)[0], deadline)
    nonce = channel.receive(_NONCE, deadline)
    try:
        return name.decode("ascii"), nonce
    except UnicodeDecodeError:
        raise WireError("the folder's name is not ASCII") from None


def prove(
    channel: Channel, folder: str, key: bytes, nonces: tuple[bytes, bytes], deadline: float
) -> PeerSession:
    """Answer a greeting; ``nonces`` are the client's and 32 fresh random bytes.

    A folder that is not known gets a key of random bytes.

    Raises NotTrustedError when the client does not have the key, and OSError.
    """
    name, (theirs, nonce) = folder.encode(), nonces
    channel.send(nonce + _proof(key, b"server", name, theirs, nonce), deadline)
    proof = channel.receive(_PROOF, deadline)
    if not hmac.compare_digest(proof, _proof(key, b"client", name, theirs, nonce)):
        raise NotTrustedError("it does not have the job's key")
    return PeerSession(channel, _proof(key, b"session", name, theirs, nonce), server=True)


def dump_ask(ask: Ask) -> tuple[FrameKind, bytes]:
    """Return the frame of a request."""
    match ask:
        case AskPart(key, rank, endpoint, parity):
            body: dict[str, Any] = {
                "step": key.step,
                "epoch": key.epoch,
                "rank": rank,
                "endpoint": endpoint,
            }
            return FrameKind.PART, _dump({**body, "parity": parity})
        case AskBytes(offset, length, pace):
            return FrameKind.READ, _dump({"offset": offset, "length": length, "pace": pace})
        case AskCheck():
            return FrameKind.CHECK, b"{}"


def parse_ask(kind: FrameKind, body: bytes) -> Ask:
    """Read a request that may be hostile. Raises WireError."""
    found = _object(body)
    if kind is FrameKind.PART:
        endpoint = found.get("endpoint")
        if not isinstance(endpoint, str) or not 0 < len(endpoint) <= MAX_FOLDER:
            raise WireError("invalid endpoint name")
        key = Key(_whole(found, "step", MAX_STEP), _whole(found, "epoch", MAX_STEP))
        rank = _whole(found, "rank", MAX_RANKS)
        return AskPart(key, rank, endpoint, found.get("parity") is True)
    if kind is FrameKind.READ:
        return AskBytes(
            _whole(found, "offset", 2**63 - 1),
            _whole(found, "length", MAX_READ),
            _whole(found, "pace", 2**63 - 1),
        )
    if kind is FrameKind.CHECK:
        return AskCheck()
    raise WireError(f"a frame {kind.name} is not a request")


def send_head(session: PeerSession, head: PartHead, deadline: float) -> None:
    """Send what is known of a part. Raises OSError and ValueError."""
    covers = [list(member) for member in head.covers]
    body = _dump({"covers": covers, "manifests": len(head.manifests)})
    session.send(FrameKind.HEAD, body, deadline)
    for one in (head.manifest, *head.manifests):
        session.send(FrameKind.MANIFEST, manifest.dump(one), deadline)


def receive_head(session: PeerSession, deadline: float) -> PartHead:
    """Receive what is known of a part. Raises PeerRefusalError, WireError and OSError."""
    found = _object(session.expect(FrameKind.HEAD, MAX_REQUEST * MAX_MEMBERS, deadline))
    count = _whole(found, "manifests", MAX_MEMBERS)
    listed = found.get("covers")
    if not isinstance(listed, list) or len(listed) > MAX_MEMBERS:
        raise WireError("too many members of a set")
    covers = tuple(_member(one) for one in listed)
    left, manifests = MAX_MANIFESTS, []
    for _ in range(1 + count):
        body = session.expect(FrameKind.MANIFEST, min(left, manifest.MAX_BYTES), deadline)
        left -= len(body)
        try:
            manifests.append(manifest.parse(body))
        except ValueError as error:
            raise WireError(f"a manifest that cannot be read: {error}") from None
    return PartHead(manifests[0], covers, tuple(manifests[1:]))


def patience(length: int, pace: int) -> float:
    """Return the longest time in seconds that a range of ``length`` bytes may take."""
    return ANSWER_S + length / (min(pace / 2, SLOWEST) if pace else SLOWEST)


def _member(one: Any) -> Member:
    if not isinstance(one, list) or len(one) != 3 or not isinstance(one[1], str):
        raise WireError("a member of a set that cannot be read")
    fields = {"rank": one[0], "bytes": one[2]}
    rank, size = _whole(fields, "rank", MAX_RANKS), _whole(fields, "bytes", 2**63 - 1)
    return Member(rank, one[1][:64], size)


def _whole(found: dict[str, Any], name: str, most: int) -> int:
    value = found.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise WireError(f"{name} is not a whole number from 0 to {most}")
    return value


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise WireError("a frame that is not JSON") from None
    if not isinstance(found, dict):
        raise WireError("a frame that is not a JSON object")
    return found


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _proof(key: bytes, role: bytes, folder: bytes, client: bytes, server: bytes) -> bytes:
    parts = b"".join(len(part).to_bytes(2, "big") + part for part in (role, folder, client, server))
    return hmac.digest(key, b"lightloom transfer 1" + parts, hashlib.sha256)


def _tag(key: bytes, number: int, head: bytes, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + head + body, hashlib.sha256)[:_TAG]
