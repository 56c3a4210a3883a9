"""``trace``: the path of an endpoint's light, and its power over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.ask.asking import print_answer
from console.cli.ask.complete import names
from console.cli.ask.options import OutputOption, connect
from console.cli.errors import CliError
from console.cli.show import output as out
from console.cli.show.light import LIGHT_HEADS, Document, light_rows
from console.cli.show.output import OutputFormat
from console.cli.show.text import NONE, duration_s

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient


def power_series(client: ControllerClient, at: str, since_s: float) -> Document:
    """Return the optical power at ``ocs0/1.1.1`` over the last ``since_s`` seconds."""
    switch, port = at.split("/", 1)
    path = f"/switches/{client.part(switch)}/ports/{client.part(port)}/power"
    found: Document = client.get(path, since_s=since_s)
    return found


def trace(
    ctx: typer.Context,
    endpoint: Annotated[
        str, typer.Argument(help="An endpoint: gpu3.", autocompletion=names("endpoints"))
    ],
    *,
    since: Annotated[
        str | None,
        typer.Option(help="Show the power at the switch over this time, too: 1h, 2d, 30d."),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Follow an endpoint's light to its aggregator. Shows the loss of each hop."""
    name = endpoint.removeprefix("endpoint/")
    back_s = None if since is None else duration_s(since)
    with connect(ctx) as client:
        view = client.get(f"/endpoints/{client.part(name)}/trace")
        if back_s is not None:
            view["history"] = [
                power_series(client, hop["at"], back_s)
                for hop in view["hops"]
                if hop["kind"] == "switch"
            ]
    print_answer(view, output, _show)
    if not view["complete"]:
        raise CliError(
            "unmet",
            f"the light of {name} ends early: {view['reason']}",
            object=f"endpoint/{name}",
            hint=f"lightloom attach {name} AGGREGATOR",
        )


def _show(view: Document) -> None:
    out.show_table(
        ("HOP", "KIND", "AT", "IN DBM", "OUT DBM", "LOSS DB", "DETAIL"),
        [
            (
                number,
                hop["kind"],
                hop["at"],
                _number(hop["power_in_dbm"]),
                _number(hop["power_out_dbm"]),
                _number(hop["loss_db"]),
                hop["detail"] or NONE,
            )
            for number, hop in enumerate(view["hops"], 1)
        ],
    )
    if "history" in view:
        out.line("")
        out.show_table(LIGHT_HEADS, light_rows(view["history"]))


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"
