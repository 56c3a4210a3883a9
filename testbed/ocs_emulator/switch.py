"""Runs an emulated switch: advances the model in time and updates the data plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import structlog

from testbed.ocs_emulator.alarms import AlarmBook, AlarmKind, Happening
from testbed.ocs_emulator.dataplane import DataPlane, NoDataPlane
from testbed.ocs_emulator.faults import Faults
from testbed.ocs_emulator.model import OpticalModel

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")

_WATCH_S = 0.25
"""Poll interval of the links, so that a reconnected one gets its light back."""

_UNWATCHED_S = 60.0
"""Poll interval without links that can appear or disappear."""
_JOURNAL = 10_000
"""Number of commands in the journal."""


@dataclass(slots=True, frozen=True)
class Heard:
    """A command of any front end; ``at`` is model time, ``changes`` if it changes circuits."""

    at: float
    command: str
    changes: bool


class EmulatedSwitch:
    """Owns the model; every change of light goes through ``refresh``.

    ``listeners`` receive the unsolicited events. ``faults`` are the faults of its front ends.
    """

    def __init__(self, model: OpticalModel, dataplane: DataPlane) -> None:
        self.model = model
        self.alarms = AlarmBook(model)
        self.faults = Faults()
        self.listeners: list[Callable[[Happening], None]] = []
        self.journal: deque[Heard] = deque(maxlen=_JOURNAL)
        """The latest commands of all sessions, in the order of execution."""
        self._dataplane = dataplane
        self._thread = (
            None
            if isinstance(dataplane, NoDataPlane)
            else ThreadPoolExecutor(1, thread_name_prefix="ocs-dataplane")
        )
        self._lock = asyncio.Lock()
        self._poke = asyncio.Event()
        self._clock: asyncio.Task[None] | None = None
        self._stopped = False

    def now(self) -> float:
        """The model's time."""
        return asyncio.get_running_loop().time()

    async def start(self) -> None:
        """Make every port dark and start the clock. Raises OSError without a data plane."""
        await self._in_thread(self._dataplane.open)
        await self.refresh()
        self._clock = asyncio.create_task(self._run(), name="ocs-clock")

    async def stop(self) -> None:
        """Stop the clock; every port goes dark, as in a power failure. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        if self._clock is not None:
            self._clock.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._clock
        async with self._lock:
            await self._in_thread(self._dataplane.close)
        if self._thread is not None:
            self._thread.shutdown()

    async def work(self, command: str, *, changes: bool) -> None:
        """Record a command and wait for the time that a change or a read takes."""
        self.journal.append(Heard(self.now(), command, changes))
        timing = self.model.personality.timing
        service_s = timing.command_s if changes else timing.read_s
        if service_s:
            await asyncio.sleep(service_s)

    def poke(self) -> None:
        """Wake the clock after mirrors start to move."""
        self._poke.set()

    def emit(self, happening: Happening) -> None:
        """Send an event to all front ends."""
        for listener in self.listeners:
            listener(happening)

    def changed(self, name: str, user: str) -> None:
        """Report that ``user`` made or removed a circuit, and update the light."""
        self.emit(Happening(AlarmKind.CHANGED, name, user=user))
        self.poke()

    async def refresh(self) -> None:
        """Make packets follow the current light."""
        async with self._lock:
            now = self.now()
            missing: frozenset[str] = frozenset()
            if not isinstance(self._dataplane, NoDataPlane):
                paths, carrier = self._light(now)
                missing = await self._in_thread(lambda: self._dataplane.sync(paths, carrier))
            self.model.set_tuned(now)
            self.model.set_failed(missing)
            news = self.alarms.update()
        for happening in news:
            self.emit(happening)

    def _light(self, now: float) -> tuple[dict[str, str], frozenset[str]]:
        """Return the paths of frames, and the fibers whose far ends show a carrier."""
        fiber, broken = self.model.personality.fiber, self.model.light.broken
        paths = {
            fiber(source): fiber(sink)
            for circuit in self.model.ready(now)
            for source, sink in circuit.paths()
            if source not in broken and sink not in broken
        }
        return paths, frozenset(map(fiber, self.model.carrier(now)))

    async def _run(self) -> None:
        while True:
            event = self.model.next_event(self.now())
            watch_s = _UNWATCHED_S if self._thread is None else _WATCH_S
            pause = watch_s if event is None else min(max(event - self.now(), 0.0), watch_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._poke.wait()
                    self._poke.clear()
                    continue
            try:
                await self.refresh()
            except Exception:
                # The switch must survive a failure of its data plane; the next round retries.
                _log.exception("data plane")
                await asyncio.sleep(_WATCH_S)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        if self._thread is None:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
