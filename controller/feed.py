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
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from controller.errors import ServiceError
from controller.views_base import View
from controller.views_fabric import EventView
from controller.views_stream import (
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


@dataclass(slots=True, frozen=True)
class Frame:
    """One message of the feed, with its bytes, which are made once for all readers."""

    type: FrameType
    data: Payload
    wire: bytes
    """As a server-sent event."""
    id: str | None = None


Filter = Callable[[Sequence[Frame]], Sequence[Frame]]
"""Cuts frames down to what a reader may see."""


def frame(kind: FrameType, data: Payload, ident: str | None = None) -> Frame:
    """Make a frame and its bytes."""
    view: View = data
    # JSON has no line breaks of its own, so one ``data`` line holds it.
    head = f"event: {kind}\ndata: " if ident is None else f"id: {ident}\nevent: {kind}\ndata: "
    wire = head.encode("ascii") + view.model_dump_json().encode() + b"\n\n"
    return Frame(kind, data, wire, ident)


class Reader:
    """One reader's queue; its owner takes, the feed puts and never waits."""

    def __init__(
        self,
        readers: set[Reader],
        missed: Iterable[Frame] = (),
        keep: Filter | None = None,
        most: int | None = QUEUE_FRAMES,
    ) -> None:
        """``readers`` is whom the feed puts to; the reader leaves it when it is closed.

        At most ``most`` frames wait for it, any number with None.
        """
        self._queue: deque[Frame] = deque(missed)
        self._ready = asyncio.Event()
        self._keep = keep
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
            while self._queue:
                found: Sequence[Frame] = list(self._queue)
                self._queue.clear()
                if self._keep is not None:
                    found = self._keep(found)
                if found:
                    return list(found)
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


class Feed:
    """Publishes frames to readers. Lives on the loop that owns the state."""

    def __init__(self) -> None:
        self._boot = secrets.token_hex(3)
        self._number = 0
        self._kept: deque[Frame] = deque(maxlen=KEPT_FRAMES)
        self._readers: set[Reader] = set()
        self._followers: set[Reader] = set()
        """Parts of the controller, which are always there; they take no samples."""

    @property
    def readers(self) -> int:
        """How many read now; nobody else wants samples."""
        return len(self._readers)

    def publish(self, kind: FrameType, data: Payload) -> None:
        """Send one frame to every reader; samples are not kept for later ones."""
        if kind == "sample":
            if not self._readers:
                return
            made = frame(kind, data)
        else:
            self._number += 1
            made = frame(kind, data, f"{self._boot}-{self._number}")
            self._kept.append(made)
            for follower in self._followers:
                follower.put(made)
        for reader in self._readers:
            reader.put(made)

    def follow(self) -> Reader:
        """Begin to read all but samples, as a part of the controller.

        Everything reaches it, a storm of events too: one look may publish more than a queue holds,
        and a part of the controller has no lists to read afresh.
        """
        return Reader(self._followers, most=None)

    def read(self, last_id: str | None, keep: Filter | None = None) -> Reader:
        """Begin to read: first what came after ``last_id``. ServiceError ``unavailable``.

        With an id that is no longer known the first frame is ``resync``. Close the reader, or
        iterate over it.
        """
        if len(self._readers) >= MAX_READERS:
            raise ServiceError(
                "unavailable",
                f"{MAX_READERS} readers follow the stream already",
                object="stream",
                hint="close some, or read /top instead",
            )
        return Reader(self._readers, self._missed(last_id), keep)

    def close(self) -> None:
        """Let every reader go: there is no more to come."""
        for reader in (*self._readers, *self._followers):
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
    return frame("resync", ResyncView(reason=reason))
