"""A site, and trainers' lines of measurements of type ``scaling``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from measure.envelope import Row
from measure.kinds import Line, MeasuredEndpoint, MeasuredSite, Run
from measure.scaling.kind import SCALING
from measure.scaling.nets import count, resnet
from measure.scaling.steps import SKIPPED

HOMES = ("as0", "as1", "as0", "as1", "as0", "as1")
StepOf = Callable[[int, int, int], tuple[float, float]]
"""Compute and communication of x, batch, ranks: seconds."""


def fabric(homes: Sequence[str] = HOMES) -> MeasuredSite:
    return MeasuredSite(
        [MeasuredEndpoint(f"gpu{n}", f"srv{n}", home) for n, home in enumerate(homes)]
    )


def usual(x: int, batch: int, ranks: int) -> tuple[float, float]:
    """A machine with 1 ms a step, 10 GFLOP/s and a ring of 20 MB/s."""
    counts = count(resnet(x))
    compute = 1e-3 + 3 * counts.flops * batch / ranks / 10e9
    return compute, 2 * (ranks - 1) / ranks * 4 * counts.parameters / 20e6


def options(run: Run) -> dict[str, str]:
    words = list(run.command[3:])
    return dict(zip(words[::2], words[1::2], strict=True))


def lines_of(site: MeasuredSite, chosen: Row, machine: StepOf = usual) -> list[Line]:
    lines = []
    for number, run in enumerate(SCALING.runs(chosen, site, 1)):
        given_ = options(run)
        x, batch = int(given_["--model"].removeprefix("resnet")), int(given_["--global-batch"])
        ranks = len(run.endpoints)
        compute, comm = machine(x, batch, ranks)
        for rank in range(ranks):
            for step in range(int(given_["--samples"]) // batch):
                slow = 10.0 if step < SKIPPED else 1.0
                record = {
                    "event": "step",
                    "step": step,
                    "step_s": slow * (compute + comm),
                    "compute_s": slow * compute,
                    "comm_s": slow * comm,
                    "loss": 2.3,
                }
                lines.append(Line(number, rank, record))
            lines.append(Line(number, rank, {"event": "end", "rank": rank}))
    return lines
