"""``store``: what the controller's store does not know."""

from __future__ import annotations

import typer

from console.cli.ask.asking import answer
from console.cli.ask.options import OutputOption
from console.cli.show import output as out
from console.cli.show.output import OutputFormat

store = typer.Typer(no_args_is_help=True, help="What an older copy of the store does not know.")


@store.callback()
def _group() -> None:
    """Hold the verb below as a command of the group, though it is the only one."""


@store.command("accept")
def accept(ctx: typer.Context, *, output: OutputOption = OutputFormat.TABLE) -> None:
    """Give up what the store, an older copy, does not know. Its checkpoints are removed.

    Containers of unknown jobs go on until they are stopped on their servers.
    """
    done = "the store is accepted: checkpoints that it does not know are removed"
    answer(ctx, output, lambda client: client.post("/store/accept"), lambda _: out.line(done))
