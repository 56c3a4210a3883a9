"""Gives parts from this server's own folders, or from another agent. In threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from agentlink.checkpoints import HoldingKind, Source
from checkpoints.ledger import Key
from checkpoints.manifest import Manifest
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.transfers import parts, wire
from container_mgr.transfers.parts import DamagedPartError, Files, PartStream
from container_mgr.transfers.pulling import Dial, PullError, Remote, Stop
from container_mgr.transfers.threads import Held
from container_mgr.transfers.wire import AskPart, PartHead

_BLOCK = 1 << 20


class PartSource(Protocol):
    """A part or parity that can be read at any place; a ``checkpoints.schemes.Source``.

    All methods raise PullError, which names the faulty endpoint, and EndedError.
    """

    @property
    def endpoint(self) -> str:
        """The endpoint in whose folder it is."""
        ...

    def head(self) -> PartHead:
        """Return what is known of the part."""
        ...

    def seek(self, offset: int, /) -> int:
        """Go to ``offset`` bytes from the start."""
        ...

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        ...

    def read_into(self, view: memoryview) -> int:
        """Read into ``view`` and return how many bytes; 0 at the end."""
        ...

    def check(self) -> str:
        """Have the part read again; return what is wrong. A damaged one is no longer held."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...


class Local:
    """A part of this server."""

    def __init__(
        self,
        held: Held,
        part: HeldPart,
        stop: Stop,
        on_bytes: Callable[[int], None] = lambda n: None,
    ) -> None:
        self.endpoint = part.place.endpoint
        self._held = held
        self._part = part
        self._stop = stop
        self._on_bytes = on_bytes
        self._head = PartHead(part.manifest, part.covers, part.manifests)
        try:
            self._stream = PartStream(part.root, part.manifest)
        except OSError as error:
            raise self._damaged(str(error.strerror)) from error

    def head(self) -> PartHead:
        """See :class:`PartSource`."""
        return self._head

    def seek(self, offset: int, /) -> int:
        """See :class:`PartSource`."""
        return self._stream.seek(offset)

    def read(self, size: int, /) -> bytes:
        """See :class:`PartSource`."""
        self._stop.check()
        try:
            block = self._stream.read(size)
        except DamagedPartError as error:
            raise self._damaged(str(error)) from error
        self._on_bytes(len(block))
        return block

    def read_into(self, view: memoryview) -> int:
        """See :class:`PartSource`."""
        block = self.read(len(view))
        view[: len(block)] = block
        return len(block)

    def check(self) -> str:
        """See :class:`PartSource`."""
        try:
            found = parts.damages(self._part.root, self._part.manifest)
        except OSError as error:
            return self._damaged(str(error.strerror)).why
        return self._damaged(parts.summary(found)).why if found else ""

    def close(self) -> None:
        """See :class:`PartSource`."""
        self._stream.close()

    def _damaged(self, why: str) -> PullError:
        self._held.damaged(self._part.place, why)
        return PullError(f"what {self.endpoint} holds is damaged: {why}", self.endpoint)


@dataclass(slots=True, frozen=True)
class PeerRoutes:
    """How the parts of one job are reached from here."""

    held: Held
    server: str
    folder: str
    dial: Dial
    pace: int = 0
    """Bytes per second of each transfer; 0 for no limit."""

    def open(
        self,
        key: Key,
        source: Source,
        stop: Stop,
        *,
        parity: bool = False,
        ahead: int = wire.MAX_READ,
        on_bytes: Callable[[int], None] = lambda n: None,
    ) -> PartSource:
        """Return who gives a part, or the parity that ``source.rank`` keeps. PullError."""
        ask = AskPart(key, source.rank, source.endpoint, parity)
        if source.server != self.server:
            return Remote(
                self.dial, source, ask, stop, pace=self.pace, ahead=ahead, on_bytes=on_bytes
            )
        place = PartPlace(self.folder, source.endpoint, HoldingKind.OWN, source.rank, key)
        part = self.held.any_of(place, *ask.kinds)
        if part is None:
            why = f"{source.endpoint} does not hold rank {source.rank}'s part of step {key.step}"
            raise PullError(why, source.endpoint)
        return Local(self.held, part, stop, on_bytes)


def check_manifest(found: Manifest, key: Key, source: Source) -> None:
    """Raise PullError unless a manifest belongs to the requested part."""
    if Key(found.step, found.epoch) != key or found.rank != source.rank:
        raise PullError(f"{source.endpoint} gave the manifest of another part", source.endpoint)
    if (found.digest, found.bytes) != (source.digest, source.bytes):
        why = f"{source.endpoint} has the digest {found.digest}, not {source.digest}"
        raise PullError(why, source.endpoint)


def copy(part_source: PartSource, root: int, stop: Stop) -> None:
    """Write a whole part below ``root`` and compare it. PullError, EndedError, OSError."""
    files = Files(root, part_source.head().manifest)
    try:
        buffer = memoryview(bytearray(_BLOCK))
        part_source.seek(0)
        while got := part_source.read_into(buffer):
            stop.check()
            files.write(buffer[:got])
        damages = files.finish()
    finally:
        files.close()
    if damages:
        part_source.check()  # so that its own agent no longer holds it either
        raise PullError(
            f"what {part_source.endpoint} gave {parts.summary(damages)}", part_source.endpoint
        )
