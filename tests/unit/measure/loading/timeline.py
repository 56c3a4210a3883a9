"""A training in simulated time: workers that share a disk and decode, a queue, and a model."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Seconds and bytes a second."""

    disk_bps: float
    decode_s: float
    step_s: float
    sample_bytes: int = 2**17
    batch: int = 8
    workers: int = 4


class Loader:
    """Makes batches in order: a sample waits for the disk, then its worker decodes it."""

    def __init__(self, machine: Machine, prefetch: int) -> None:
        self.machine = machine
        self.prefetch = prefetch
        self.free = [0.0] * machine.workers
        self.disk_free = 0.0
        self.ahead: deque[float] = deque()

    def submit(self, now: float) -> None:
        """Give a batch to the workers; remember when it is complete."""
        done = now
        for _ in range(self.machine.batch):
            start = max(heapq.heappop(self.free), now)
            self.disk_free = max(self.disk_free, start) + (
                self.machine.sample_bytes / self.machine.disk_bps
            )
            end = self.disk_free + self.machine.decode_s
            heapq.heappush(self.free, end)
            done = max(done, end)
        self.ahead.append(done)

    def take(self, now: float) -> float:
        """Return when the next batch is there for somebody who asks ``now``."""
        while len(self.ahead) < max(self.prefetch, 1):
            self.submit(now)
        there = max(self.ahead.popleft(), now)
        if self.prefetch:
            self.submit(there)
        return there


def rate(machine: Machine, *, loads: bool, computes: bool, prefetch: int = 2) -> float:
    """Return samples a second of the loader, the model, or both."""
    steps, warm_up = 200, 20
    loader, now, began = Loader(machine, prefetch), 0.0, 0.0
    for step in itertools.count():
        if step == warm_up:
            began = now
        if step == warm_up + steps:
            break
        if loads:
            now = loader.take(now)
        if computes:
            now += machine.step_s
    return steps * machine.batch / (now - began)
