"""``attach``, ``detach``, ``abort``, ``repair`` and ``quarantine``: manual operations."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from console.cli.ask.asking import Columns, answer, print_answer, table
from console.cli.ask.options import OutputOption, connect
from console.cli.errors import CliError
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.plans import RUNNING, print_rollout, print_transaction

Document = dict[str, Any]

EndpointArgument = Annotated[str, typer.Argument(help="An endpoint: gpu3.")]
WaitOption = Annotated[
    float, typer.Option("--timeout", min=0, max=600, help="Seconds to wait for its end.")
]

quarantine = typer.Typer(no_args_is_help=True, help="Ports and endpoints that are out of use.")


def attach(
    ctx: typer.Context,
    endpoint: EndpointArgument,
    aggregator: Annotated[str, typer.Argument(help="Its new aggregator: as1.")],
    *,
    timeout_s: WaitOption = 60.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Move one endpoint's light to an aggregator. Runs all checks of a regroup."""
    _move(ctx, endpoint, aggregator, timeout_s, output)


def detach(
    ctx: typer.Context,
    endpoint: EndpointArgument,
    *,
    timeout_s: WaitOption = 60.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Darken an endpoint without a job. It is dark until it is attached or gets a job."""
    _move(ctx, endpoint, None, timeout_s, output)


def abort(
    ctx: typer.Context,
    ident: Annotated[
        str,
        typer.Argument(metavar="ID", help="A running transaction or rollout: t7, o2."),
    ],
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Roll a running transaction back to the old paths, or let no further batch of a rollout begin.

    Refused with exit code 6 after the new paths are qualified, and for a rollout that has ended.
    """
    kind, _, name = ident.rpartition("/")
    rollout = kind == "rollout" or (not kind and name.startswith("o"))
    with connect(ctx) as client:
        path = "/rollouts" if rollout else "/transactions"
        view = client.post(f"{path}/{client.part(name)}/abort")

    def show(shown: Document) -> None:
        out.line(f"transaction/{name}: {shown.get('how_to_stop') or shown['result']}")

    print_answer(view, output, print_rollout if rollout else show)


def repair(
    ctx: typer.Context,
    switch: Annotated[str, typer.Argument(help="An optical switch: ocs0.")],
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Accept an optical switch's circuits as they are. Restores those that jobs lack.

    Needed only after most of its circuits vanished at once: those are not repaired automatically.
    """
    name = switch.removeprefix("switch/")
    answer(
        ctx,
        output,
        lambda client: client.post(f"/switches/{name}/repair", extra_s=30.0),
        lambda view: out.line(f"switch/{name} accepted with {view['circuits']} circuits"),
    )


@quarantine.command("list")
def list_quarantine(ctx: typer.Context, *, output: OutputOption = OutputFormat.TABLE) -> None:
    """List what is out of use, and why."""
    columns: Columns = {"OBJECT": lambda i: i["object"], "REASON": lambda i: i["reason"]}
    answer(ctx, output, lambda client: client.get("/quarantine"), table(columns))


@quarantine.command("release")
def release_quarantine(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="OBJECT", help="as0/3 or gpu2.")],
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Put a port or an endpoint back into use, after its repair."""
    answer(
        ctx,
        output,
        lambda client: client.post(f"/quarantine/{name}/release", extra_s=30.0),
        lambda _: out.line(f"{name} is back in use"),
    )


def _move(
    ctx: typer.Context,
    endpoint: str,
    aggregator: str | None,
    timeout_s: float,
    output: OutputFormat,
) -> None:
    name = endpoint.removeprefix("endpoint/")
    view = answer(
        ctx,
        output,
        lambda client: client.post(
            f"/endpoints/{name}/attachment",
            {"aggregator": aggregator},
            extra_s=60.0 + timeout_s,
            wait_s=timeout_s,
        ),
        print_transaction,
    )
    for warning in view.get("warnings", []):
        out.message(f"warning: {warning}")
    if view["state"] not in RUNNING and view["state"] != "committed":
        raise CliError(
            "failed",
            f"transaction {view['id']} ended {view['state']}: {view['error'] or view['result']}",
            object=f"endpoint/{name}",
            hint=f"lightloom describe transaction {view['id']}",
        )
