"""Measures who limits a training: its input, alone and together with the model.

    python3 -m probe.loading '{"directory": "/volume", ...}'

Three phases take turns, block after block: the loader alone (its ceiling), the model alone on a
batch that is in memory already, and both. The model is a step of a stated time, as in DLIO and
MLPerf Storage, whose accelerator sleeps. Where neither of them is reached together, a last phase
reads further ahead. Prints one line ``phase`` for each. The first steps of a phase do not count:
they fill the pipeline (DLIO leaves out the first one, too).
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probe import common
from probe.volume import disk, scratch
from probe.volume.loaders import LOADERS, BatchTimes, Pipeline
from probe.volume.samples import SampleReader, Samples, can_read_directly, spend

Phase = Literal["loader", "model", "both", "deeper"]

PHASES: tuple[Phase, ...] = ("loader", "model", "both")
LEAST_STEPS = 4
"""Steps that a phase counts at least, however long they take."""
START_S = 600.0
"""Longest time until another rank has started and made its data set."""
MODULES = {"torch": "torch", "tf": "tensorflow"}
"""By loader: what it imports."""
MOST_STRETCH = 10.0
"""How many times longer than requested a phase may take to count them."""


@dataclass(slots=True, frozen=True)
class LoadingPlan:
    """What to measure. Times in seconds, sizes in bytes."""

    directory: Path
    loader: str
    data_bytes: int
    sample_bytes: int
    """A multiple of probe.volume.samples.ALIGNMENT."""
    per_file: int
    batch: int
    workers: int
    prefetch: int
    deeper: int
    """Batches ahead in the last phase."""
    decode_s: float
    busy: bool
    """The decoder keeps a core busy instead of sleeping."""
    step_s: float
    direct: bool
    seconds: float
    """Seconds of one phase of one block."""
    blocks: int
    enough: float
    """Share of a ceiling that counts as reached."""
    seed: int


@dataclass(slots=True)
class PhaseCounts:
    """What one phase counted. Times in seconds, sums."""

    steps: int = 0
    seconds: float = 0.0
    wait_s: float = 0.0
    compute_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0


class Bench:
    """The phases over one data set."""

    def __init__(self, plan: LoadingPlan, samples: Samples, *, direct: bool) -> None:
        self._plan = plan
        self._reader = SampleReader(samples, direct=direct, decode_s=plan.decode_s, busy=plan.busy)
        self._samples = samples

    def measure(self, phase: Phase, block: int) -> float:
        """Run one phase, print its line, and return its samples a second."""
        before, read = disk.spent(), self._reader.count.value * self._samples.sample_bytes
        counted = self._model() if phase == "model" else self._loading(phase, block)
        after = disk.spent()
        samples = counted.steps * self._plan.batch
        common.emit(
            "phase",
            phase=phase,
            block=block,
            samples=samples,
            steps=counted.steps,
            seconds=counted.seconds,
            wait_s=counted.wait_s,
            compute_s=counted.compute_s,
            read_s=counted.read_s,
            decode_s=counted.decode_s,
            read_bytes=self._reader.count.value * self._samples.sample_bytes - read,
            block_bytes=after.read_bytes - before.read_bytes,
            cores=disk.usage(before, after),
        )
        return samples / counted.seconds

    def _model(self) -> PhaseCounts:
        """Steps on a batch that is there already."""
        counted = PhaseCounts()
        began = time.monotonic()
        while counted.steps < LEAST_STEPS or counted.seconds < self._plan.seconds:
            step = time.monotonic()
            spend(self._plan.step_s, busy=False)
            counted.compute_s += time.monotonic() - step
            counted.steps += 1
            counted.seconds = time.monotonic() - began
        return counted

    def _loading(self, phase: Phase, block: int) -> PhaseCounts:
        """The loader alone, or a training: wait for a batch, compute, again."""
        plan = self._plan
        ahead = plan.deeper if phase == "deeper" else plan.prefetch
        pipeline = Pipeline(plan.batch, plan.workers, ahead, self._samples.count, plan.seed + block)
        with LOADERS[plan.loader](pipeline, self._reader) as batches:
            self._steps(phase, batches, self._warm_up(ahead))
            return self._steps(phase, batches, LEAST_STEPS, plan.seconds)

    def _warm_up(self, ahead: int) -> int:
        """Return the steps after which the queue is as full as it stays."""
        return ahead * (self._plan.workers if self._plan.loader == "torch" else 1) + 1

    def _steps(
        self, phase: Phase, batches: Iterator[BatchTimes], least: int, seconds: float = 0.0
    ) -> PhaseCounts:
        """Run steps: at least so many, and for so long, but not without end."""
        most = MOST_STRETCH * self._plan.seconds
        counted = PhaseCounts()
        began = time.monotonic()
        while counted.steps < least or counted.seconds < seconds:
            asked = time.monotonic()
            batch = next(batches)
            there = time.monotonic()
            counted.wait_s += there - asked
            counted.read_s += batch.read_s
            counted.decode_s += batch.decode_s
            if phase != "loader":
                spend(self._plan.step_s, busy=False)
                counted.compute_s += time.monotonic() - there
            counted.steps += 1
            counted.seconds = time.monotonic() - began
            if counted.seconds >= most:
                break
        return counted


def main(plan: LoadingPlan) -> None:
    """Make the data set, measure, remove it. Rank 0 starts each phase on all ranks at once."""
    under = disk.device(plan.directory)
    common.emit(
        "device", filesystem=under.filesystem, number=under.number, direct_loop=under.direct_loop
    )
    me = common.identity()
    try:
        _check(plan, under)
        with scratch.Scratch(plan.directory, f"ll-input-{me.job}-{me.rank}") as own:
            if own.removed:
                common.emit("removed", names=own.removed[:100])
            _take_turns(plan, me, _bench(plan, own.path))
    except scratch.ScratchError as refused:
        common.emit("refused", reason=refused.reason, hint=refused.hint)


def _check(plan: LoadingPlan, under: disk.DirectoryDevice) -> None:
    """Refuse (ScratchError) a measurement without meaning."""
    if under.refusal:
        raise scratch.ScratchError(under.refusal, "choose a volume on a disk or a file server")
    module = MODULES.get(plan.loader)
    if module is not None and importlib.util.find_spec(module) is None:
        raise scratch.ScratchError(
            f"loader {plan.loader} needs the module {module}",
            "set `image` to one that has it, or loader=builtin",
        )


def _bench(plan: LoadingPlan, folder: Path) -> Bench:
    """Make the data set. Raises ScratchError."""
    count = max(plan.data_bytes // plan.sample_bytes, plan.batch)
    samples = Samples(folder, count, plan.sample_bytes, plan.per_file)
    try:
        samples.make()
    except OSError as error:
        raise scratch.ScratchError(
            f"a data set of {plan.data_bytes} bytes cannot be written: {error.strerror}",
            "free space on the volume, raise its quota, or set a smaller `data`",
        ) from None
    direct = plan.direct and can_read_directly(samples.shard(0))
    common.emit("data", samples=samples.count, direct=direct)
    return Bench(plan, samples, direct=direct)


def _take_turns(plan: LoadingPlan, me: common.Rank, bench: Bench) -> None:
    """Measure the phases in turns, as rank 0 directs."""

    def measure(arguments: common.Fields) -> common.Fields:
        return {"rate": bench.measure(arguments["phase"], arguments["block"])}

    longest = 3 * MOST_STRETCH * plan.seconds + START_S
    handlers = {"measure": measure}
    if me.rank:
        common.serve(me, handlers, silence_s=longest)
        return
    rates: dict[Phase, list[float]] = {phase: [] for phase in (*PHASES, "deeper")}
    with common.Coordinator(me, handlers, connect_s=START_S) as ranks:

        def turn(phase: Phase, block: int) -> None:
            calls = {r: ("measure", {"phase": phase, "block": block}) for r in range(me.size)}
            answers = ranks.call_all(calls, longest)
            for answer in answers.values():
                if isinstance(answer, common.PeerError):
                    raise answer
                rates[phase].append(float(answer["rate"]))

        for block in range(plan.blocks):
            for phase in PHASES:
                turn(phase, block)
        ceiling, model, both = (statistics.median(rates[phase]) for phase in PHASES)
        if both < plan.enough * ceiling and both < plan.enough * model:
            for block in range(plan.blocks):
                turn("deeper", block)


def plan_of(text: str) -> LoadingPlan:
    """Read a plan. Raises ValueError, TypeError."""
    fields: dict[str, Any] = json.loads(text)
    return LoadingPlan(**{**fields, "directory": Path(fields["directory"])})


if __name__ == "__main__":
    asked = plan_of(sys.argv[1])
    common.run_probe(lambda: main(asked), threads=asked.workers + 1)
