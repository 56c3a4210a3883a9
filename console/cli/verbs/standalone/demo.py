"""``demo``: experiments on the emulated rack: the paper's, a lost GPU, jobs under Slurm."""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from pathlib import Path
from types import FrameType, ModuleType
from typing import Annotated, Any

import typer

from console.cli.ask.asking import print_answer
from console.cli.ask.files import reading
from console.cli.ask.options import OutputOption
from console.cli.show import output as out
from console.cli.show.output import OutputFormat


class Case(StrEnum):
    """The paper's two cases (GPUs of the red and the blue job), a lost GPU, jobs under Slurm."""

    A = "a"
    B = "b"
    SPARE = "spare"
    SLURM = "slurm"


class RatesFrom(StrEnum):
    """The measured step from which the link rates of cases a and b follow."""

    RING = "ring"
    ALONE = "alone"


def demo(
    case: Annotated[
        Case,
        typer.Argument(
            help="a: red 4 and blue 2 GPUs; b: 3 and 3; spare: a GPU is lost;"
            " slurm: 20 jobs under Slurm."
        ),
    ],
    *,
    arms: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: fragmented,reordered,regrouped,live;"
            " of spare: undisturbed,spare,shared,zero;"
            " of slurm: blind,tree,switches,lightloom. [default: all]"
        ),
    ] = None,
    directory: Annotated[Path, typer.Option("--out", help="Folder for plots and figures.")] = Path(
        "out"
    ),
    site: Annotated[
        Path | None, typer.Option(help="Site file; the paper's, or spare.yaml.")
    ] = None,
    recalibrate: Annotated[
        bool, typer.Option("--recalibrate", help="Measure this machine again.")
    ] = False,
    rates_from: Annotated[
        RatesFrom,
        typer.Option(
            help="The step that gives a and b their link rates: of a ring on unshaped links,"
            " or of a rank alone."
        ),
    ] = RatesFrom.RING,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run an experiment on the emulated rack. Needs root; writes JSON and plots.

    Cases a and b are the paper's. Spare trains a job, loses one of its GPUs and compares a spare
    that takes its place by moving light with a restart from shared storage and from zero. Slurm
    runs a mixture of trainings under Slurm without lightloom and with it, on a rack of its own.

    Uses a rack that is up, and leaves it up; otherwise brings one up and takes it down again.
    """
    out.logs_to_stderr()
    from testbed import demo as experiment  # noqa: PLC0415 - loads rack, Docker and plots
    from testbed.demo import slurm, spare  # noqa: PLC0415

    _interrupt_on_sigterm()
    given: dict[str, Any] = {
        "arms": None if arms is None else [name.strip() for name in arms.split(",")],
        "out_dir": directory,
        "site_path": site,
        "progress": out.message,
    }
    ran: ModuleType = {Case.SPARE: spare, Case.SLURM: slurm}.get(case, experiment)
    if ran is experiment:
        given |= {
            "case": case.value,
            "recalibrate": recalibrate,
            "rates_from": experiment.Base(rates_from.value),
        }
    with reading(site or (spare.SPARE_SITE if ran is spare else experiment.PAPER_SITE)):
        result = ran.run(**given)
    print_answer(result, output, lambda found: out.show(ran.render(found)))


def _interrupt_on_sigterm() -> None:
    """Clean up the rack and its jobs on SIGTERM as on SIGINT.

    SIGINT is set again because shells ignore it in background processes. Libraries fork helpers
    that inherit the handler and are ended by SIGTERM; they exit at once and clean up nothing.
    """
    owner = os.getpid()

    def end(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:
            os._exit(128 + number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
