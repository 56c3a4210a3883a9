"""``image``: container images on the servers, ahead of the jobs that need them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from base.figures import figure
from console.cli.ask.asking import Columns, print_answer, table
from console.cli.ask.options import OutputOption, connect
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.terminal import TENTHS
from console.cli.show.text import NONE, size

Document = dict[str, Any]
_POLL_S = 1.0

image = typer.Typer(no_args_is_help=True, help="Container images on the servers.")


@image.callback()
def _image() -> None:
    """Container images on the servers."""


@image.command("prepare")
def prepare(
    ctx: typer.Context,
    *,
    name: Annotated[str, typer.Argument(metavar="IMAGE", help="By tag or by digest.")],
    servers: Annotated[
        str | None, typer.Option(help="Only to these servers: srv0,srv3.", metavar="NAMES")
    ] = None,
    everywhere: Annotated[
        bool, typer.Option("--all", help="To all servers (the default).")
    ] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait; then exit code 124.")
    ] = 3600.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Pull an image to servers, so that jobs start without waiting for it.

    Prints progress on stderr. Pulls continue when you interrupt it; the same command joins them.
    """
    if servers is not None and everywhere:
        raise usage("--servers and --all exclude each other", "give one of them")
    chosen = [word for word in (servers or "").split(",") if word]
    if servers is not None and not chosen:
        raise usage("--servers names no server", "for example --servers srv0,srv3")
    deadline = time.monotonic() + timeout_s
    told: dict[str, str] = {}
    with connect(ctx) as client:
        found = client.post("/images/preparations", {"image": name, "servers": chosen})
        while True:
            _print_progress(found, told)
            if found["state"] != "running":
                break
            if time.monotonic() >= deadline:
                raise CliError(
                    "timeout",
                    f"image {name} is not on all servers after {figure(timeout_s, 6)} s",
                    object=f"image/{name}",
                    hint="the pulls continue; the same command joins them",
                )
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
            found = client.get(f"/images/preparations/{client.part(found['id'])}")
    print_answer(found, output, table(_COLUMNS, "servers"))
    failed = [server for server in found["servers"] if server["state"] == "failed"]
    if failed:
        raise CliError(
            "failed",
            f"image {name} is not on {', '.join(s['server'] for s in failed)}:"
            f" {failed[0]['message']}",
            object=f"image/{name}",
            hint="the log of the server's agent has the details",
        )


_COLUMNS: Columns = {
    "SERVER": lambda s: s["server"],
    "STATE": lambda s: s["state"],
    "SIZE": lambda s: NONE if s["size_bytes"] is None else size(s["size_bytes"]),
    "IMAGE": lambda s: s["image_digest"] or s["message"] or NONE,
}


def _print_progress(found: Document, told: dict[str, str]) -> None:
    """Print the servers whose state, or tenth of the pull, changed since the last call."""
    for server in found["servers"]:
        text = stage = server["state"]
        if text == "pulling" and server["bytes_total"]:
            stage += f" {int(TENTHS * server['bytes_done'] / server['bytes_total'])}"
            text += f" {size(server['bytes_done'])} of {size(server['bytes_total'])}"
        if told.get(server["server"]) != stage:
            told[server["server"]] = stage
            out.message(f"{server['server']}: {text}")
