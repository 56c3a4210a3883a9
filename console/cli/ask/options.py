"""Options that several verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.settings import Flags, resolve
from console.cli.errors import usage
from console.cli.show.output import Output

if TYPE_CHECKING:
    from console.cli.ask.client import Client


def formats(*allowed: Output) -> Any:
    """Declare ``-o`` of a verb that has only these formats; another is a usage error."""

    def check(output: Output) -> Output:
        if output not in allowed:
            known = "|".join(allowed)
            raise usage(f"this verb does not support -o {output}", f"one of: -o {known}")
        return output

    return typer.Option("--output", "-o", help="Output format.", show_default=True, callback=check)


OutputOption = Annotated[Output, formats(Output.TABLE, Output.JSON, Output.YAML)]
WideOutput = Annotated[Output, formats(Output.TABLE, Output.WIDE, Output.JSON, Output.YAML)]
NameOutput = Annotated[Output, formats(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)]
AnyOutput = Annotated[Output, formats(*Output)]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Continue until interrupted.")]
IntervalOption = Annotated[
    float, typer.Option("--interval", min=0.1, help="Seconds between updates with -w.")
]
CountOption = Annotated[
    int | None, typer.Option("--count", min=1, help="End -w after this many updates.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def connect(ctx: typer.Context) -> Client:
    """Return a client for the controller; use it as a context manager."""
    from console.cli.ask.client import Client  # noqa: PLC0415 - httpx is not needed for --help

    return Client(resolve(ctx.find_object(Flags) or Flags()))
