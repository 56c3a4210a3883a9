"""``drain`` and ``undrain``: take objects out of use on purpose, and put them back."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from base.figures import figure
from console.cli.ask.asking import answer, print_answer
from console.cli.ask.complete import of_context
from console.cli.ask.options import OutputOption, connect
from console.cli.ask.waiting import goes_on
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import names

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
_FOLDERS: Mapping[str, str] = {
    "node": "nodes",
    "aggregator": "aggregators",
    "switch": "switches",
}
_POLL_S = 0.5


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in _FOLDERS if kind.startswith(incomplete)]


KindArgument = Annotated[
    str,
    typer.Argument(
        metavar="node|aggregator|switch",
        help="What it is: node srv2, or node/srv2.",
        autocompletion=_kinds,
    ),
]
NameArgument = Annotated[
    str | None, typer.Argument(help="Its name: srv2.", autocompletion=of_context)
]


def drain(
    ctx: typer.Context,
    kind: KindArgument,
    name: NameArgument = None,
    *,
    now: Annotated[
        bool, typer.Option("--now", help="Without waiting for a protected checkpoint.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no job uses it.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds that --wait waits; then 124.")
    ] = 600.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Take a server, an aggregator or an optical switch out of use, for maintenance.

    Nothing new is placed on it. Its jobs go on elsewhere once a checkpoint is protected; jobs
    without checkpoints start elsewhere if they may be restarted, else they stay until their end.
    With --now these end as failed.
    """
    kind, name = _object(kind, name)
    with connect(ctx) as client:
        view = client.post(_path(client, kind, name), {"now": now}, extra_s=60.0)
        if wait:
            hint = f"follow it: lightloom get drains; take it back: lightloom undrain {kind} {name}"
            with goes_on(f"the drain of {kind}/{name}", object=f"{kind}/{name}", hint=hint):
                view = _drained(client, view, timeout_s)
    print_answer(view, output, _show)


def undrain(
    ctx: typer.Context,
    kind: KindArgument,
    name: NameArgument = None,
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Put a drained server, aggregator or optical switch back into use."""
    kind, name = _object(kind, name)
    answer(
        ctx,
        output,
        lambda client: client.delete(_path(client, kind, name), extra_s=60.0),
        lambda view: out.line(f"{view['object']} is back in use"),
    )


def _object(kind: str, name: str | None) -> tuple[str, str]:
    """Read ``node srv2`` or ``node/srv2``. CliError with exit code 2."""
    if name is None:
        kind, _, name = kind.partition("/")
    if kind not in _FOLDERS or not name:
        raise usage(
            f"{'/'.join(filter(None, (kind, name)))!r} cannot be drained",
            "for example: lightloom drain node srv2; or an aggregator, or a switch",
        )
    return kind, name.removeprefix(f"{kind}/")


def _path(client: ControllerClient, kind: str, name: str) -> str:
    return f"/{_FOLDERS[kind]}/{client.part(name)}/drain"


def _drained(client: ControllerClient, view: Document, timeout_s: float) -> Document:
    """Follow a drain until no job uses the object. CliError."""
    about, deadline, told = view["object"], time.monotonic() + timeout_s, ""
    while view["state"] != "drained":
        text = _waits(view)
        if (kind := re.sub(r"\d+ s", "", text)) != told:  # not once more for each second less
            told = kind
            out.message(f"{about}: {text}")
        if time.monotonic() >= deadline:
            raise CliError(
                "timeout",
                f"{about} is not drained after {figure(timeout_s, 6)} s: {text}",
                object=about,
                hint="it goes on; see `lightloom get drains`, or drain it with --now",
            )
        time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
        items = client.whole("/drains")["items"]
        found = next((item for item in items if item["object"] == about), None)
        if found is None:
            raise CliError("unmet", f"{about} was put back into use meanwhile", object=about)
        view = found
    return view


def _waits(view: Document) -> str:
    return "; ".join(f"job {job} waits for {why}" for job, why in view["jobs"].items())


def _show(view: Document) -> None:
    out.line(f"{view['object']} {view['state']}")
    if view["jobs"]:
        out.show_table(("JOB", "WAITS-FOR"), list(view["jobs"].items()))
        out.message(f"follow it: lightloom get drains -w ({names(list(view['jobs']))})")
