"""``checkpoints``: a job's checkpoints; verify, drop them, and how often to write."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from console.cli.ask.asking import answer, print_answer
from console.cli.ask.options import (
    CountOption,
    IntervalOption,
    JobArgument,
    OutputOption,
    WatchOption,
    WideOutput,
    YesOption,
    connect,
)
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.checkpoints import interval_lines, show_checkpoints
from console.cli.show.output import OutputFormat
from console.cli.show.text import plural, size

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
VERIFY_S = 600.0
"""Servers read every part they hold; the controller waits as long."""


class _ShowsByDefault(TyperGroup):
    """Reads ``checkpoints JOB`` as ``checkpoints show JOB``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


checkpoints = typer.Typer(
    cls=_ShowsByDefault,
    no_args_is_help=True,
    help="A job's checkpoints: `lightloom checkpoints JOB` shows them.",
)


@checkpoints.command("show")
def show(
    ctx: typer.Context,
    job: JobArgument,
    *,
    output: WideOutput = OutputFormat.TABLE,
    watch: WatchOption = False,
    interval_s: IntervalOption = 1.0,
    count: CountOption = None,
) -> None:
    """Show a job's checkpoints, the newest first; `checkpoints JOB` for short.

    The marked step is the one that a restart would load. -o wide also shows every rank's part.
    """
    if watch and output is OutputFormat.YAML:
        raise usage("-w prints tables or JSON lines", "leave -o yaml out")
    with connect(ctx) as client:
        path = _path(client, job)
        if not watch:
            _print(client.get(path), output)
            return
        known: Document | None = None
        updates = 0
        while True:
            view = client.get(path)
            if view != known:
                if output is OutputFormat.JSON:
                    out.json_line(view)
                else:
                    _print(view, output)
                known = view
            updates += 1
            if count is not None and updates >= count:
                return
            time.sleep(interval_s)


@checkpoints.command("verify")
def verify(
    ctx: typer.Context,
    job: JobArgument,
    *,
    step: Annotated[int | None, typer.Option(min=0, help="One step; all if absent.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Read every part of a job's checkpoints and compare it with its sums.

    Exit code 1 when something is damaged, or when a server did not answer.
    """
    view = answer(
        ctx,
        output,
        lambda client: client.post(f"{_path(client, job)}/verify", extra_s=VERIFY_S, step=step),
        _show_verified,
    )
    about = f"job/{view['job']}"
    if view["damaged"]:
        raise CliError(
            "failed",
            f"{plural(len(view['damaged']), 'part')} of job {view['job']} damaged",
            object=about,
            hint="what is damaged is not restored; see `lightloom checkpoints " + view["job"] + "`",
        )
    if view["silent"]:
        raise CliError(
            "failed",
            f"{', '.join(view['silent'])} did not answer: what they hold was not read",
            object=about,
            hint="see `lightloom get nodes`, then verify again",
        )


@checkpoints.command("advise")
def advise(
    ctx: typer.Context, job: JobArgument, *, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Say how often the job should write, from its measured cost and the site's failures."""
    answer(
        ctx,
        output,
        lambda client: client.get(f"{_path(client, job)}/advice"),
        lambda view: out.lines(interval_lines(view)),
    )


@checkpoints.command("drop")
def drop(
    ctx: typer.Context,
    job: JobArgument,
    step: Annotated[int, typer.Argument(min=0, help="The step to remove.")],
    *,
    force: Annotated[
        bool, typer.Option("--force", help="Also the newest complete one, refused otherwise.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove one step of a job's checkpoints, with its copies. It cannot be undone.

    The newest complete step is refused with exit code 6 unless --force is given.
    """
    name = job.removeprefix("job/")
    if not yes:
        out.ask(f"remove step {step} of job {name} and all its copies?")

    def show_dropped(view: Document) -> None:
        restored = view["restore_step"]
        goes_on = "would start at 0" if restored is None else f"would load step {restored}"
        out.line(f"step {step} of job/{name} is removed; a restart {goes_on}")

    answer(
        ctx,
        output,
        lambda client: client.delete(f"{_path(client, job)}/{step}", extra_s=60.0, force=force),
        show_dropped,
    )


def _show_verified(view: Document) -> None:
    if view["damaged"]:
        out.show_table(
            ("STEP", "RUN", "RANK", "ENDPOINT", "KIND", "DAMAGE"),
            [
                (d["step"], d["epoch"], d["rank"], d["endpoint"], d["kind"], damage)
                for d in view["damaged"]
                for damage in d["damages"] or [""]
            ],
        )
    read = f"{plural(view['parts'], 'part')}, {size(view['bytes'])} read"
    out.line(f"{read}: {len(view['damaged'])} damaged")


def _path(client: ControllerClient, job: str) -> str:
    return f"/jobs/{client.part(job.removeprefix('job/'))}/checkpoints"


def _print(view: Document, output: OutputFormat) -> None:
    print_answer(
        view, output, lambda shown: show_checkpoints(shown, wide=output is OutputFormat.WIDE)
    )
