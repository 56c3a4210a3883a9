"""The trainer's checkpoints: one file per step, whole once it has its name. NumPy and files only.

``step-N`` is the state after N trained steps: a run that restores it goes on with step N. It is
written as ``step-N.tmp`` and renamed when all its bytes are on the disk, which is what lightloom's
rule ``rename`` waits for. Floats are stored bit by bit, so training goes on as if nothing had
happened.

:class:`Slow` is the rival that most programs use: a store that all share and that has a limited
rate. Only rank 0 writes there; the others wait for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from testbed.trainer_data import Floats

KEEP = 2
"""Steps that the trainer keeps itself; a step is removed only after a newer one is whole."""
PREFIX, PART = "step-", ".tmp"
CHUNK = 256 * 1024
"""Bytes that a limited store accepts at once."""


@dataclass(slots=True, frozen=True)
class Saved:
    """The state of a training after ``step`` steps. ``of`` names the training it belongs to."""

    step: int
    weights: Floats
    momentum: Floats
    loss: float
    """Loss of the last trained step, over the global batch."""
    of: str


def encode(saved: Saved) -> list[memoryview]:
    """Return the pieces of a checkpoint file: a line of JSON, then the floats as they are.

    No sum and no copy: a rank has a share of a core, and the holder of the file sums it.
    """
    head = {"step": saved.step, "loss": saved.loss, "of": saved.of, "floats": saved.weights.size}
    floats = (saved.weights, saved.momentum)
    return [
        memoryview((json.dumps(head) + "\n").encode()),
        *(np.ascontiguousarray(part).data.cast("B") for part in floats),
    ]


def decode(data: bytes, step: int, of: str) -> Saved:
    """Return the checkpoint in ``data``.

    Raises ValueError when it is torn, of another step or of another training ``of``.
    """
    head, _, floats = data.partition(b"\n")
    try:
        told = json.loads(head)
        count, found = int(told["floats"]), int(told["step"])
        loss, owner = float(told["loss"]), str(told["of"])
        if len(floats) != 2 * 4 * count:
            raise ValueError(f"{len(floats)} bytes instead of {8 * count}")
        both = np.frombuffer(floats, dtype=np.float32)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the checkpoint of step {step} is damaged: {error}") from error
    if found != step:
        raise ValueError(f"the checkpoint of step {step} holds step {found}")
    if owner != of:
        raise ValueError(f"the checkpoint of step {step} is of {owner}, this training is {of}")
    return Saved(step, both[:count], both[count:], loss, of)


@dataclass(slots=True, frozen=True)
class CheckpointDirectory:
    """A directory of checkpoints that is as fast as its disk or memory."""

    path: Path
    keep: int = KEEP

    def write(self, saved: Saved) -> None:
        """Write a step as a whole, then remove the oldest. Raises OSError; nothing stays then."""
        target = self.path / f"{PREFIX}{saved.step}"
        part = target.with_name(target.name + PART)
        try:
            with part.open("wb") as file:
                self.put(file.write, encode(saved))
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        for old in self.steps()[: -self.keep]:
            (self.path / f"{PREFIX}{old}").unlink(missing_ok=True)

    def read(self, step: int, of: str) -> Saved:
        """Read one step. Raises OSError, ValueError as :func:`decode`."""
        with (self.path / f"{PREFIX}{step}").open("rb") as file:
            return decode(b"".join(self.transfer(file.read)), step, of)

    def steps(self) -> list[int]:
        """Return the whole steps in the directory, the oldest first."""
        names = (path.name.removeprefix(PREFIX) for path in self.path.glob(f"{PREFIX}*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def put(self, write: Callable[[memoryview], Any], pieces: Sequence[memoryview]) -> None:
        """Pass all bytes to ``write``."""
        for piece in pieces:
            write(piece)

    def transfer(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        """Yield everything that ``read`` returns."""
        while piece := read(CHUNK):
            yield piece


@dataclass(slots=True, frozen=True)
class Slow(CheckpointDirectory):
    """A store with a limited rate, emulated by pauses between chunks."""

    bytes_per_s: float = 20e6

    def put(self, write: Callable[[memoryview], Any], pieces: Sequence[memoryview]) -> None:
        """Pass all bytes to ``write`` no faster than the store."""
        begin, done = time.monotonic(), 0
        for piece in pieces:
            for first in range(0, len(piece), CHUNK):
                done += len(part := piece[first : first + CHUNK])
                write(part)
                self._wait(begin, done)

    def transfer(self, read: Callable[[int], bytes]) -> Iterator[bytes]:
        """Yield everything that ``read`` returns no faster than the store."""
        begin, done = time.monotonic(), 0
        for piece in CheckpointDirectory.transfer(self, read):
            done += len(piece)
            self._wait(begin, done)
            yield piece

    def _wait(self, begin: float, done: int) -> None:
        time.sleep(max(0.0, begin + done / self.bytes_per_s - time.monotonic()))


@dataclass(slots=True, frozen=True)
class TrainerCheckpoints:
    """Where and when this rank writes, and what it goes on from."""

    folder: CheckpointDirectory | None = None
    every: int = 0
    """Steps between two checkpoints; 0 for none."""
    alone: bool = False
    """Rank 0 writes for all ranks, which wait for it."""
    restore_from: CheckpointDirectory | None = None
    restore_step: int | None = None

    def due(self, done: int) -> bool:
        """Whether a checkpoint follows the training of ``done`` steps."""
        return self.folder is not None and self.every > 0 and done % self.every == 0

    def restored(self, of: str) -> Saved | None:
        """Read what this run goes on from; None for a start at 0. Raises OSError, ValueError."""
        if self.restore_from is None or self.restore_step is None:
            return None
        return self.restore_from.read(self.restore_step, of)


def from_environment(env: dict[str, str], every: int | None) -> TrainerCheckpoints:
    """Read lightloom's variables. ``every`` None reads LIGHTLOOM_CHECKPOINT_EVERY.

    Raises ValueError for a variable that is not a number.
    """
    steps = every if every is not None else int(env.get("LIGHTLOOM_CHECKPOINT_EVERY") or 0)
    if steps < 0:
        raise ValueError(f"checkpoints every {steps} steps")
    directory = env.get("LIGHTLOOM_CHECKPOINT_DIR")
    source, step = env.get("LIGHTLOOM_RESTORE_DIR"), env.get("LIGHTLOOM_RESTORE_STEP")
    return TrainerCheckpoints(
        folder=CheckpointDirectory(Path(directory)) if directory else None,
        every=steps,
        restore_from=CheckpointDirectory(Path(source)) if source else None,
        restore_step=int(step) if step else None,
    )


def shared(
    store: Path, every: int, bytes_per_s: float, rank: int, ranks: int
) -> TrainerCheckpoints:
    """Return the rival: rank 0 writes to a slow store, from which all ranks read at once.

    Raises OSError when the store cannot be listed.
    """
    store.mkdir(parents=True, exist_ok=True)
    newest = Slow(store).steps()[-1:]
    return TrainerCheckpoints(
        folder=Slow(store, bytes_per_s=bytes_per_s) if rank == 0 else CheckpointDirectory(store),
        every=every,
        alone=True,
        restore_from=Slow(store, bytes_per_s=bytes_per_s / ranks) if newest else None,
        restore_step=newest[0] if newest else None,
    )
