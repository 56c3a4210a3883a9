"""The live feed: one publisher, any number of readers, none of whom can hold it up.

Every frame but a sample has an id, so that a reader that was away goes on where it stopped. A
reader that does not keep up loses its queue and is told to read the lists afresh.

A reader counts from the moment ``read`` returns, not from its first frame: who reads the lists
after that misses nothing.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Hashable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from controller.base.errors import ServiceError
from controller.schema.base import View
from controller.schema.fabric import EventView
from controller.schema.stream import (
    ChangedView,
    ResyncView,
    SampleView,
    TransactionFrameView,
)

KEPT_FRAMES = 2048
QUEUE_FRAMES = 256
MAX_READERS = 1000

FrameType = Literal["sample", "event", "changed", "transaction", "resync"]
Payload = SampleView | EventView | ChangedView | TransactionFrameView | ResyncView


@dataclass(frozen=True)
class Frame:
    """One message of the feed."""

    type: FrameType
    data: Payload
    id: str | None = None

    @cached_property
    def wire(self) -> bytes:
        """The message as a server-sent event: made once for all readers, when one is there."""
        view: View = self.data
        # JSON has no line breaks of its own, so one ``data`` line holds it.
        head = f"event: {self.type}\ndata: "
        if self.id is not None:
            head = f"id: {self.id}\n{head}"
        return head.encode("ascii") + view.model_dump_json().encode() + b"\n\n"


class Cut(Protocol):
    """Cuts frames down to what some readers may see; those with the same key share it."""

    @property
    def key(self) -> Hashable:
        """What the readers have in common."""
        ...

    def frame(self, item: Frame) -> Frame | None:
        """Return what they may see of a frame, None for nothing."""
        ...


class Reader:
    """One reader's queue; its owner takes, the feed puts and never waits."""

    def __init__(
        self,
        readers: set[Reader],
        missed: Iterable[Frame] = (),
        most: int | None = QUEUE_FRAMES,
    ) -> None:
        """``readers`` is whom the feed puts to; the reader leaves it when it is closed.

        At most ``most`` frames wait for it, any number with None.
        """
        self._queue: deque[Frame] = deque(missed)
        self._ready = asyncio.Event()
        self._open = True
        self._readers = readers
        self._most = most
        readers.add(self)

    @property
    def closed(self) -> bool:
        """Whether no more frames come."""
        return not self._open

    def put(self, item: Frame) -> None:
        """Add a frame; who does not keep up loses all that waits."""
        if self._most is not None and len(self._queue) >= self._most:
            self._queue.clear()
            item = _resync("this reader was too slow: frames were dropped")
        self._queue.append(item)
        self._ready.set()

    def close(self) -> None:
        """Leave the feed; who waits for frames gets none any more."""
        self._open = False
        self._readers.discard(self)
        self._ready.set()

    async def batch(self) -> list[Frame]:
        """Wait for frames and return all there are; none when the reader was closed."""
        while self._open:
            if self._queue:
                found = list(self._queue)
                self._queue.clear()
                return found
            self._ready.clear()
            await self._ready.wait()
        return []

    async def __aiter__(self) -> AsyncGenerator[Frame]:
        """Yield frame after frame; close when nobody iterates any more."""
        try:
            while found := await self.batch():
                for item in found:
                    yield item
        finally:
            self.close()


@dataclass(slots=True, frozen=True)
class _Channel:
    """Readers who see the same of everything: it is cut, and encoded, once for all of them."""

    cut: Cut
    readers: set[Reader] = field(default_factory=set)

    def put(self, item: Frame) -> None:
        shown = self.cut.frame(item)
        if shown is not None:
            for reader in self.readers:
                reader.put(shown)


class Feed:
    """Publishes frames to readers. Lives on the loop that owns the state."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(3)
        self._number = 0
        self._kept: deque[Frame] = deque(maxlen=KEPT_FRAMES)
        self._readers: set[Reader] = set()
        """Those who see everything."""
        self._channels: dict[Hashable, _Channel] = {}
        self._followers: set[Reader] = set()
        """Parts of the controller, which are always there; they take no samples."""

    @property
    def readers(self) -> int:
        """How many read now; nobody else wants samples."""
        return len(self._readers) + sum(len(c.readers) for c in self._channels.values())

    def publish(self, kind: FrameType, data: Payload) -> None:
        """Send one frame to every reader; samples are not kept for later ones."""
        if kind == "sample":
            if not self.readers:
                return
            made = Frame(kind, data)
        else:
            self._number += 1
            made = Frame(kind, data, f"{self._boot}-{self._number}")
            self._kept.append(made)
            for follower in self._followers:
                follower.put(made)
        for reader in self._readers:
            reader.put(made)
        for key, channel in list(self._channels.items()):
            if channel.readers:
                channel.put(made)
            else:
                del self._channels[key]

    def follow(self) -> Reader:
        """Begin to read all but samples, as a part of the controller.

        Everything reaches it, a storm of events too: one look may publish more than a queue holds,
        and a part of the controller has no lists to read afresh.
        """
        return Reader(self._followers, most=None)

    def read(self, last_id: str | None, cut: Cut | None = None) -> Reader:
        """Begin to read: first what came after ``last_id``. ServiceError ``unavailable``.

        With an id that is no longer known the first frame is ``resync``. With ``cut`` only what
        that leaves comes. Close the reader, or iterate over it.
        """
        if self.readers >= MAX_READERS:
            raise ServiceError(
                "unavailable",
                f"{MAX_READERS} readers follow the stream already",
                object="stream",
                hint="close some, or read /top instead",
            )
        missed = self._missed(last_id)
        if cut is None:
            return Reader(self._readers, missed)
        channel = self._channels.setdefault(cut.key, _Channel(cut))
        shown = [channel.cut.frame(item) for item in missed]
        return Reader(channel.readers, [item for item in shown if item is not None])

    def close(self) -> None:
        """Let every reader go: there is no more to come."""
        cut = [reader for channel in self._channels.values() for reader in channel.readers]
        for reader in (*self._readers, *self._followers, *cut):
            reader.close()

    def _missed(self, last_id: str | None) -> list[Frame]:
        if not last_id:
            return []
        boot, _, number = last_id.rpartition("-")
        oldest = self._number - len(self._kept)
        if boot != self._boot or not number.isdecimal() or len(number) > 18:
            return [_resync("the stream began anew since")]
        seen = int(number)
        if seen > self._number or seen < oldest:
            return [_resync("what was missed is no longer kept")]
        return list(self._kept)[len(self._kept) - (self._number - seen) :]


def _resync(reason: str) -> Frame:
    return Frame("resync", ResyncView(reason=reason))
