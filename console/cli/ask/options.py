"""Options that several verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.complete import names
from console.cli.ask.settings import Flags, resolve
from console.cli.errors import usage
from console.cli.show.output import OutputFormat

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient


def formats(*allowed: OutputFormat) -> Any:
    """Declare ``-o`` of a verb that has only these formats; another is a usage error."""

    def check(output: OutputFormat) -> OutputFormat:
        if output not in allowed:
            known = "|".join(allowed)
            raise usage(f"this verb does not support -o {output}", f"one of: -o {known}")
        return output

    return typer.Option("--output", "-o", help="Output format.", show_default=True, callback=check)


OutputOption = Annotated[
    OutputFormat, formats(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
]
WideOutput = Annotated[
    OutputFormat,
    formats(OutputFormat.TABLE, OutputFormat.WIDE, OutputFormat.JSON, OutputFormat.YAML),
]
NameOutput = Annotated[
    OutputFormat,
    formats(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML, OutputFormat.NAME),
]
AnyOutput = Annotated[OutputFormat, formats(*OutputFormat)]
JobArgument = Annotated[str, typer.Argument(help="A job: red.", autocompletion=names("jobs"))]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Continue until interrupted.")]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.1, help="Seconds between updates with -w.")
]
CountOption = Annotated[
    int | None, typer.Option("--count", min=1, help="End -w after this many updates.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def connect(ctx: typer.Context) -> ControllerClient:
    """Return a client for the controller; use it as a context manager."""
    from console.cli.ask.client import ControllerClient  # noqa: PLC0415 - httpx is not needed for --help

    return ControllerClient(resolve(ctx.find_object(Flags) or Flags()))
