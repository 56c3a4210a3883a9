"""Streams what a server holds: all of it to a new reader, then changes, the last state of each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

from agentlink.checkpoints import Holding, HoldingKind
from checkpoints.ledger import Key
from container_mgr.checkpoints.contract import News

BATCH = 256
"""Holdings of one message."""
MAX_SAID = 1024
"""Reports kept for one endpoint's folder besides what it holds: the newest."""
_LASTING = frozenset({HoldingKind.OWN, HoldingKind.COPY, HoldingKind.PARITY})

Slot = tuple[str, str, HoldingKind, int, Key]


def slot_of(holding: Holding, of: HoldingKind | None = None) -> Slot:
    """Return what a holding is about; ``of``: what kind of part is missing or refused."""
    kind = of or holding.kind
    if kind in {HoldingKind.AWAITS, HoldingKind.REFUSED, HoldingKind.MISSING}:
        kind = HoldingKind.OWN
    return holding.folder, holding.endpoint, kind, holding.rank, holding.key


class HoldingsFeed:
    """The last holding of each place. ``report`` may be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: dict[tuple[str, str], dict[Slot, Holding]] = {}
        self._pending: dict[Slot, None] = {}
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._closed = False

    def report(self, holding: Holding, of: HoldingKind | None = None) -> None:
        """Replace the last report of its place, and send it to the reader."""
        slot = slot_of(holding, of)
        with self._lock:
            said = self._state.setdefault(slot[:2], {})
            said.pop(slot, None)
            said[slot] = holding
            self._trim(said)
            self._pending[slot] = None
            self._wake()

    def last(self, slot: Slot) -> Holding | None:
        """Return the last report of a place."""
        with self._lock:
            return self._state.get(slot[:2], {}).get(slot)

    def forget(self, folder: str) -> None:
        """Drop all reports of a job."""
        with self._lock:
            for place in [p for p in self._state if p[0] == folder]:
                for slot in self._state.pop(place):
                    self._pending.pop(slot, None)

    async def news(self) -> AsyncIterator[News]:
        """Yield everything, then changes; a later call ends this one."""
        woken = asyncio.Event()
        mine = asyncio.get_running_loop(), woken
        with self._lock:
            if self._closed:
                return
            self._wake()
            self._reader = mine
            self._pending = dict.fromkeys(slot for said in self._state.values() for slot in said)
            left = len(self._pending)
        caught_up = False
        while True:
            woken.clear()
            with self._lock:
                if self._reader is not mine:
                    return
                batch, taken = self._next_batch()
            left -= taken
            if batch:
                yield News(tuple(batch))
            if not caught_up and (left <= 0 or not batch):
                caught_up = True
                yield News(caught_up=True)
            if not batch:
                await woken.wait()

    def close(self) -> None:
        """End the reader, and each that comes later."""
        with self._lock:
            self._closed = True
            self._wake()
            self._reader = None

    def _next_batch(self) -> tuple[list[Holding], int]:
        """Return a batch, empty when nothing waits, and how many places it covers."""
        batch: list[Holding] = []
        taken = 0
        while self._pending and len(batch) < BATCH:
            slot = next(iter(self._pending))
            del self._pending[slot]
            taken += 1
            said = self._state.get(slot[:2], {})
            holding = said.get(slot)
            if holding is None:
                continue
            batch.append(holding)
            if holding.kind is HoldingKind.MISSING or (
                holding.kind is HoldingKind.IGNORED and not holding.why
            ):
                del said[slot]  # it is reported once
        return batch, taken

    def _trim(self, said: dict[Slot, Holding]) -> None:
        if len(said) <= MAX_SAID:
            return
        spare = [slot for slot, one in said.items() if one.kind not in _LASTING]
        for slot in spare[: len(said) - MAX_SAID]:
            del said[slot]
            self._pending.pop(slot, None)

    def _wake(self) -> None:
        if self._reader is None:
            return
        loop, woken = self._reader
        try:
            loop.call_soon_threadsafe(woken.set)
        except RuntimeError:  # its loop is closed
            self._reader = None
