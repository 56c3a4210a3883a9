"""Parses the trainer's JSON lines and collects them over all ranks of a job."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from testbed.demo.errors import DemoError

Line = TypeVar("Line", "StepLine", "EndLine")


@dataclass(slots=True, frozen=True)
class StepLine:
    """One step of one rank; ``t`` is the wall-clock time of its end."""

    step: int
    t: float
    step_s: float
    compute_s: float
    comm_s: float
    samples_s: float
    loss: float


@dataclass(slots=True, frozen=True)
class EndLine:
    """The end of one rank's training."""

    completion_s: float
    samples_s: float
    final_loss: float
    accuracy: float
    step_s_median: float
    exposed_comm_fraction: float


@dataclass(slots=True)
class TrainerLog:
    """All lines of a job's ranks so far."""

    job: str
    ranks: int
    gradient_bytes: int = 0
    steps: dict[int, list[StepLine]] = field(default_factory=dict)
    ends: dict[int, EndLine] = field(default_factory=dict)

    def add(self, rank: int, text: str) -> StepLine | EndLine | None:
        """Add one line of output. Raises DemoError(failed) when it reports a failed training.

        Lines of other programs (such as a library's message) and repeated lines are skipped.
        """
        document = _document(text)
        if document is None:
            return None
        event = document["event"]
        try:
            if event == "start":
                self.gradient_bytes = int(document["gradient_bytes"])
            elif event == "step":
                return self._add_step(rank, _values(StepLine, document))
            elif event == "end":
                self.ends[rank] = _values(EndLine, document)
                return self.ends[rank]
        except (KeyError, TypeError, ValueError) as error:
            raise DemoError(
                "failed",
                f"rank {rank} printed a line that cannot be parsed: {error}",
                object=f"job/{self.job}",
                hint="the image's trainer has another version than this demo",
            ) from error
        if event == "error":
            raise DemoError(
                "failed",
                f"rank {rank}: {document.get('kind')}: {document.get('error')}",
                object=f"job/{self.job}",
                hint=f"see: lightloom logs {self.job}",
            )
        return None

    def _add_step(self, rank: int, line: StepLine) -> StepLine | None:
        lines = self.steps.setdefault(rank, [])
        if lines and line.step <= lines[-1].step:
            return None
        lines.append(line)
        return line

    @property
    def complete(self) -> bool:
        """True when every rank has ended."""
        return len(self.ends) == self.ranks

    @property
    def started_at(self) -> float:
        """Wall-clock time at which rank 0 started its first trained step."""
        first = self.steps[0][0]
        return first.t - first.step_s

    @property
    def ended_at(self) -> float:
        """Wall-clock time at which rank 0 ended its last trained step."""
        return self.steps[0][-1].t

    @property
    def exposed_comm_fraction(self) -> float:
        """Mean exposed communication fraction over all ranks."""
        return statistics.fmean(end.exposed_comm_fraction for end in self.ends.values())


def longest_gap_s(steps: list[StepLine], regroup: tuple[float, float] | None) -> float:
    """Return by how much the longest step exceeds the usual step of its phase, in seconds.

    ``regroup`` is the start and end of a regroup, which changes the usual step. A step that
    overlaps it is compared with the usual step after it, which is the shorter one, so that the
    gap is never understated.
    """
    if regroup is None:
        return _longest_excess(steps, steps)
    begin, _ = regroup
    before = [step for step in steps if step.t < begin]
    after = [step for step in steps if step.t >= begin]
    quiet = [step for step in after if step.t - step.step_s >= regroup[1]]
    return max(_longest_excess(before, before), _longest_excess(after, quiet or before))


def _longest_excess(steps: list[StepLine], usual: list[StepLine]) -> float:
    if not steps or not usual:
        return 0.0
    return max(step.step_s for step in steps) - statistics.median(step.step_s for step in usual)


def _document(text: str) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "event" in document else None


def _values(kind: type[Line], document: dict[str, Any]) -> Line:
    numbers: dict[str, Any] = {f.name: document[f.name] for f in fields(kind)}
    if not all(isinstance(number, int | float) for number in numbers.values()):
        raise ValueError(f"{document} contains no numbers")
    return kind(**numbers)
