"""Options that several verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.ask.settings import Flags, resolve
from console.cli.errors import usage
from console.cli.show.output import Output

if TYPE_CHECKING:
    from console.cli.ask.client import Client

OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="How to print what was found.", show_default=True)
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Go on until interrupted.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def connect(ctx: typer.Context) -> Client:
    """Return a client of the controller; use it as a context manager."""
    from console.cli.ask.client import Client  # noqa: PLC0415 - httpx is not needed for --help

    return Client(resolve(ctx.find_object(Flags) or Flags()))


def one_of(output: Output, *allowed: Output) -> Output:
    """Refuse an ``-o`` that the verb has no form for."""
    if output not in allowed:
        known = "|".join(allowed)
        raise usage(f"-o {output} is not possible here", f"one of: -o {known}")
    return output
