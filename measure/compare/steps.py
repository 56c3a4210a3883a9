"""Reads a run's steps from the program's own lines and its recording. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from measure.compare.settings import WARM_UP
from measure.envelope import Json
from measure.kinds import Line
from measure.statistics import Summary, median, summarise
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.identify import usable

_EXACT = ("nccl", "torch")


@dataclass(slots=True, frozen=True)
class RunSteps:
    """The steps of one run after its warm-up. Seconds.

    Lengths come from the lowest rank that printed any. The parts come from the rank that the others
    wait for: it computes longest, and the time that it sees in collectives is the least.
    """

    step_s: tuple[float, ...] = ()
    compute_s: tuple[float, ...] = ()
    comm_s: tuple[float, ...] = ()
    wait_s: tuple[float, ...] = ()
    other_s: tuple[float, ...] = ()
    """What the lowest rank's step has besides its compute, communication and wait."""
    gradient_bytes: float = 0.0


def steps_of(lines: Iterable[Line], run: int, most: int, skip: int = WARM_UP) -> RunSteps:
    """Return at most ``most`` steps that a run printed as lines with ``event: step``, ``step_s``.

    The first ``skip`` of each rank do not count. A job wrote the lines: anything but a number above
    0 and below a day is left out.
    """
    by_rank: dict[int, list[Line]] = {}
    gradient = 0.0
    for line in lines:
        if line.run != run:
            continue
        if line.record.get("event") == "step" and _seconds(line.record.get("step_s")):
            by_rank.setdefault(line.rank, []).append(line)
        elif line.record.get("event") == "start":
            gradient = _seconds(line.record.get("gradient_bytes"), 1e18) or gradient
    if not by_rank:
        return RunSteps()
    by_rank = {rank: told[skip : skip + most] for rank, told in by_rank.items()}
    first = by_rank[min(by_rank)]
    whole = [told for told in by_rank.values() if len(told) >= len(first)]

    def column(
        name: str, ranks: Sequence[Sequence[Line]], choose: Callable[[Iterable[float]], float]
    ) -> tuple[float, ...]:
        found = []
        for number in range(len(first)):
            values = [_seconds(told[number].record.get(name)) for told in ranks]
            known = [value for value in values if value is not None]
            if len(known) < len(values):
                return ()
            found.append(choose(known))
        return tuple(found)

    return RunSteps(
        column("step_s", [first], max),
        column("compute_s", whole, max),
        column("comm_s", whole, min),
        column("wait_s", whole, max),
        tuple(_other(line.record) for line in first),
        gradient,
    )


def _other(record: Mapping[str, Json]) -> float:
    """Return the seconds of a step that its parts leave; 0 where they overlap."""
    names = ("compute_s", "comm_s", "wait_s")
    told = sum(_seconds(record.get(name)) or 0.0 for name in names)
    return max((_seconds(record.get("step_s")) or 0.0) - told, 0.0)


def pooled(runs: Sequence[RunSteps]) -> Summary | None:
    """Return the summary of all runs' steps in one placement; None without any."""
    return summarise([step for run in runs for step in run.step_s])


def facts_of_run(
    ranks: int, runs: Sequence[RunSteps], recorded: Sequence[StepFacts]
) -> tuple[StepFacts, bool] | None:
    """Return a placement's facts, and whether their bytes are payload; None without any.

    An exact recording comes first, then what the program itself prints of its communication,
    then an estimate from the wire. The program's own steps replace the recording's.
    """
    steps = pooled(runs)
    good = [facts for facts in recorded if usable(facts, ranks)]
    exact = next((facts for facts in reversed(good) if facts.source in _EXACT), None)
    printed = _printed(ranks, runs, steps)
    chosen = exact or printed or (good[-1] if good else None)
    if chosen is None:
        return None
    if steps is not None and chosen is not printed:
        chosen = _with_steps(chosen, steps)
    return (chosen, chosen is printed or chosen.source in _EXACT) if usable(chosen, ranks) else None


def _printed(ranks: int, runs: Sequence[RunSteps], steps: Summary | None) -> StepFacts | None:
    """Return facts from a program that prints ``compute_s`` and ``comm_s`` of each step."""
    computes = [value for run in runs for value in run.compute_s]
    comms = [value for run in runs for value in run.comm_s]
    if steps is None or len(computes) != steps.n or len(comms) != steps.n:
        return None
    waits = [value for run in runs for value in run.wait_s]
    waited = median(waits) if len(waits) == steps.n else None
    # Ranks leave a collective one after the other, and the last of them may compute longest: then
    # the step has more communication than any rank sees, and what compute leaves of it is right.
    rest = steps.median - median(computes) - (waited or 0.0)
    others = [value for run in runs for value in run.other_s]
    exposed = max(rest - median(others), 0.0)
    comm = max(min(median(comms), steps.median), exposed)
    return StepFacts(
        ranks=ranks,
        step_s=steps.median,
        comm_s=comm,
        exposed_s=exposed,
        bytes_per_step=max((run.gradient_bytes for run in runs), default=0.0),
        calls_per_step=1.0,
        wait_s=waited,
        spread=_spread(steps),
        source="printed",
        steps=steps.n,
    )


def _with_steps(facts: StepFacts, steps: Summary) -> StepFacts:
    exposed = min(facts.exposed_s, steps.median)
    return replace(
        facts,
        step_s=steps.median,
        exposed_s=exposed,
        spread=_spread(steps),
        steps=max(facts.steps, steps.n),
    )


def _spread(steps: Summary) -> float:
    return (steps.high - steps.low) / 2 / steps.median


def _seconds(value: Json, most: float = 86_400.0) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < most else None
