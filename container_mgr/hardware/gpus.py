"""Watches the GPUs of this server, each in its own thread: one that hangs delays no other.

The threads are daemons. Each writes only its own slot; the event loop only reads. A call that never
returns is given up, and another thread asks: NVML may work again without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from base import clock
from container_mgr.hardware.nvml import (
    DEFAULT_LIBRARY,
    FATAL_XIDS,
    GpuLostError,
    GpuReadings,
    NvmlError,
    NvmlGpu,
)
from container_mgr.values import GpuFault, Unfit

INTERVAL_S = 1.0
HANG_S = 3.0
"""A reading that takes longer means that the driver hangs. A healthy one takes under 0.2 s."""
FRESH_S = 3.5
SLOW_S = 1.0
"""A GPU whose reading takes longer proves no longer that NVML itself works."""
RETRY_S = 30.0
"""A call that hangs is given up after this time, the next one after twice that, and so on."""
LONGEST_RETRY_S = 3600.0
MAX_GIVEN_UP = 32
"""Calls on one GPU that were given up: each may hold a thread until the process ends."""
_POLL_S = 0.05


@dataclass(slots=True)
class Slot:
    """The state of one GPU. Times are monotonic seconds."""

    started: float | None = None
    """When the reading that is in progress started."""
    finished: float | None = None
    """When the newest reading that ended, or failed, had started."""
    wanted: threading.Event = field(default_factory=threading.Event)
    """A reading is wanted now."""
    read_at: float | None = None
    reading: GpuReadings = field(default_factory=GpuReadings)
    lost: str = ""
    """What NVML says of a GPU that does not work."""
    unknown: str = ""
    """Why NVML says nothing of any GPU."""
    index: int | None = None
    minor: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held to write the result of a reading, and to give one up."""
    turn: int = 0
    """The thread that reads it: counts those whose call was given up."""
    retry_at: float = 0.0
    """When a call that hangs is given up, while one does."""


def unfit(
    slot: Slot, now: float, hang_s: float = HANG_S, others: Sequence[Slot] = ()
) -> Unfit | None:
    """Return what is wrong with a GPU; None when nothing is. Pure.

    ``others`` are the server's other GPUs: when all of them hang as well, it is NVML.
    """
    if _hangs(slot, now, hang_s):
        if others and all(_hangs(other, now, SLOW_S) for other in others):
            text = f"NVML does not work: it hangs on all {len(others) + 1} GPUs"
            return Unfit(GpuFault.LIBRARY, text)
        return Unfit(GpuFault.HANG, "NVML hangs on this GPU")
    if slot.unknown:
        return Unfit(GpuFault.LIBRARY, f"NVML does not work: {slot.unknown}")
    if slot.lost:
        said = "" if slot.lost.lower() == "gpu is lost" else f": {slot.lost}"  # NVML's own words
        return Unfit(GpuFault.LOST, f"the GPU is lost{said}")
    xid = slot.reading.values.get("xid")
    if isinstance(xid, int) and xid in FATAL_XIDS:
        return Unfit(GpuFault.XID, f"Xid {xid}: {FATAL_XIDS[xid]}")
    unread = Unfit(GpuFault.UNREAD, "the GPU has not been read yet")
    return None if slot.read_at is not None else unread


def _hangs(slot: Slot, now: float, hang_s: float) -> bool:
    started = slot.started  # read once: the reading may end between two lines
    return started is not None and now - started > hang_s


class Gpus:
    """Watches GPUs by UUID. Never blocks its caller."""

    def __init__(
        self,
        uuids: Sequence[str],
        *,
        library: str = DEFAULT_LIBRARY,
        interval_s: float = INTERVAL_S,
        hang_s: float = HANG_S,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._library = library
        self._interval_s = interval_s
        self._hang_s = hang_s
        self._clock = clock
        self._slots = {uuid: Slot() for uuid in uuids}
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        for uuid, slot in self._slots.items():
            self._begin(uuid, slot)
        threading.Thread(target=self._give_up, name="gpus", daemon=True).start()

    def _begin(self, uuid: str, slot: Slot) -> None:
        args = uuid, slot, slot.turn
        threading.Thread(target=self._watch, args=args, name=f"gpu {uuid}", daemon=True).start()

    def stop(self) -> None:
        """Stop the threads without waiting for calls that hang."""
        self._stop.set()
        for slot in self._slots.values():
            slot.wanted.set()

    def request_read(self, uuid: str) -> float:
        """Have a GPU read now; return the moment since which :meth:`is_read` can be asked."""
        now = self._clock()
        if (slot := self._slots.get(uuid)) is not None:
            slot.wanted.set()
        return now

    def is_read(self, uuid: str, since: float) -> bool:
        """Return whether a reading that began after ``since`` is over, or none can be had."""
        slot = self._slots.get(uuid)
        return slot is None or (slot.finished is not None and slot.finished >= since)

    def settled(self) -> bool:
        """Return whether every GPU was read, is lost or hangs."""
        now = self._clock()
        return all(
            s.read_at is not None or s.lost or s.unknown or _hangs(s, now, self._hang_s)
            for s in self._slots.values()
        )

    def wait_until_settled(self, timeout_s: float) -> None:
        """Block until :meth:`settled`, ``timeout_s`` at most."""
        deadline = clock.monotonic() + timeout_s
        while not self.settled() and clock.monotonic() < deadline:
            clock.sleep(_POLL_S)

    def unfit(self, uuid: str) -> Unfit | None:
        """Return what is wrong with a GPU; None when nothing is."""
        slot = self._slots.get(uuid)
        if slot is None:
            return Unfit(GpuFault.UNREAD, "not watched")
        others = [one for one in self._slots.values() if one is not slot]
        return unfit(slot, self._clock(), self._hang_s, others)

    def why_unfit(self, uuid: str) -> str:
        """Return what is wrong with a GPU, in words; empty when nothing is."""
        found = self.unfit(uuid)
        return found.reason if found else ""

    def reading(self, uuid: str) -> GpuReadings | None:
        """Return the latest figures; None without recent ones."""
        slot = self._slots.get(uuid)
        if slot is None or slot.read_at is None or self._clock() - slot.read_at > FRESH_S:
            return None
        return slot.reading

    def indices(self) -> dict[str, int]:
        """Return NVML's index of every GPU that has one, by UUID."""
        return {u: s.index for u, s in self._slots.items() if s.index is not None}

    def minor(self, uuid: str) -> int | None:
        """Return the N of a GPU's ``/dev/nvidiaN``; None when the driver does not say."""
        slot = self._slots.get(uuid)
        return slot.minor if slot else None

    def _watch(self, uuid: str, slot: Slot, turn: int) -> None:
        device: NvmlGpu | None = None
        while not self._stop.is_set():
            slot.wanted.clear()
            begun = self._clock()
            with slot.lock:
                if slot.turn != turn:
                    return
                if slot.started is None:  # else the call that was given up still counts
                    slot.started = begun
                    slot.retry_at = begun + RETRY_S
            lost = unknown = ""
            reading: GpuReadings | None = None
            try:
                device = device or NvmlGpu(self._library, uuid)
                reading = device.read()
            except GpuLostError as error:
                lost = str(error)
            except NvmlError as error:
                unknown = str(error)
            with slot.lock:
                if slot.turn != turn:
                    return
                if device is not None and reading is not None:
                    slot.index, slot.minor = device.index, device.minor
                    slot.reading, slot.read_at = reading, self._clock()
                else:
                    device = None  # a GPU that returns is found by its UUID
                slot.lost, slot.unknown = lost, unknown
                slot.started, slot.finished = None, begun
            slot.wanted.wait(self._interval_s)

    def _give_up(self) -> None:
        """Have another thread ask where a call hangs for long."""
        while not self._stop.wait(self._interval_s):
            now = self._clock()
            for uuid, slot in self._slots.items():
                with slot.lock:
                    started = slot.started
                    if started is None or now < slot.retry_at or slot.turn >= MAX_GIVEN_UP:
                        continue
                    slot.turn += 1
                    slot.retry_at = now + min(2 * (now - started), LONGEST_RETRY_S)
                self._begin(uuid, slot)
