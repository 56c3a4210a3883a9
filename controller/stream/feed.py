"""The live feed: one publisher and many readers, none of which can block it.

Every frame except samples has an id, so a reader that reconnects continues where it stopped. A
reader that does not keep up loses its queue and gets a frame that asks it to read the lists again.

A reader receives all frames from the moment ``read`` returns: a client that reads the lists after
that misses no change.
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
        """The message as a server-sent event; encoded once for all readers, on first use."""
        view: View = self.data
        # This JSON has no line breaks, so one ``data`` line holds it.
        head = f"event: {self.type}\ndata: "
        if self.id is not None:
            head = f"id: {self.id}\n{head}"
        return head.encode("ascii") + view.model_dump_json().encode() + b"\n\n"


class FrameFilter(Protocol):
    """Reduces frames to what some readers may see; readers with the same key share the result."""

    @property
    def key(self) -> Hashable:
        """Identifies readers that may see the same."""
        ...

    def frame(self, item: Frame) -> Frame | None:
        """Return what they may see of a frame, None if nothing."""
        ...


class Reader:
    """One reader's queue: its owner takes frames, the feed adds them and never waits."""

    def __init__(
        self,
        readers: set[Reader],
        missed: Iterable[Frame] = (),
        most: int | None = QUEUE_FRAMES,
    ) -> None:
        """Join ``readers``, to whom the feed publishes, until ``close``.

        At most ``most`` frames wait in the queue; None is unlimited.
        """
        self._queue: deque[Frame] = deque(missed)
        self._ready = asyncio.Event()
        self._open = True
        self._readers = readers
        self._most = most
        readers.add(self)

    @property
    def closed(self) -> bool:
        """Whether the reader gets no more frames."""
        return not self._open

    def put(self, item: Frame) -> None:
        """Add a frame; when the queue is full, replace its contents by a resync."""
        if self._most is not None and len(self._queue) >= self._most:
            self._queue.clear()
            item = _resync("this reader was too slow: frames were dropped")
        self._queue.append(item)
        self._ready.set()

    def close(self) -> None:
        """Leave the feed; a pending ``batch`` returns no frames."""
        self._open = False
        self._readers.discard(self)
        self._ready.set()

    async def batch(self) -> list[Frame]:
        """Wait for frames and return all in the queue; none once the reader is closed."""
        while self._open:
            if self._queue:
                found = list(self._queue)
                self._queue.clear()
                return found
            self._ready.clear()
            await self._ready.wait()
        return []

    async def __aiter__(self) -> AsyncGenerator[Frame]:
        """Yield frame after frame; close when the iteration ends."""
        try:
            while found := await self.batch():
                for item in found:
                    yield item
        finally:
            self.close()


@dataclass(slots=True, frozen=True)
class _Channel:
    """Readers that may see the same: every frame is cut and encoded once for all of them."""

    cut: FrameFilter
    readers: set[Reader] = field(default_factory=set)

    def put(self, item: Frame) -> None:
        shown = self.cut.frame(item)
        if shown is not None:
            for reader in self.readers:
                reader.put(shown)


class Feed:
    """Publishes frames to readers. Runs on the loop that owns the state."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(3)
        self._number = 0
        self._kept: deque[Frame] = deque(maxlen=KEPT_FRAMES)
        self._readers: set[Reader] = set()
        """Readers without a cut."""
        self._channels: dict[Hashable, _Channel] = {}
        self._followers: set[Reader] = set()
        """Parts of the controller; they are always connected and get no samples."""

    @property
    def readers(self) -> int:
        """Number of readers; only they get samples."""
        return len(self._readers) + sum(len(c.readers) for c in self._channels.values())

    def publish(self, kind: FrameType, data: Payload) -> None:
        """Send one frame to every reader; samples are not kept for later readers."""
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
        """Start to read all frames except samples, as a part of the controller.

        The queue is unlimited: one round of changes may publish more frames than a bounded queue
        holds, and a part of the controller has no lists to read again.
        """
        return Reader(self._followers, most=None)

    def read(self, last_id: str | None, cut: FrameFilter | None = None) -> Reader:
        """Start to read with the frames after ``last_id``. ServiceError ``unavailable``.

        If the id is not known any more, the first frame is ``resync``. With ``cut``, frames are
        reduced to what it leaves. The caller closes the reader, or iterates over it.
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
        """Close all readers."""
        cut = [reader for channel in self._channels.values() for reader in channel.readers]
        for reader in (*self._readers, *self._followers, *cut):
            reader.close()

    def _missed(self, last_id: str | None) -> list[Frame]:
        if not last_id:
            return []
        boot, _, number = last_id.rpartition("-")
        oldest = self._number - len(self._kept)
        if boot != self._boot or not number.isdecimal() or len(number) > 18:
            return [_resync("the stream has restarted since")]
        seen = int(number)
        if seen > self._number or seen < oldest:
            return [_resync("the missed frames are no longer kept")]
        return list(self._kept)[len(self._kept) - (self._number - seen) :]


def _resync(reason: str) -> Frame:
    return Frame("resync", ResyncView(reason=reason))
