"""``export``, ``diff``, ``import``, ``move`` and ``events export``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from console.cli.ask.asking import print_answer
from console.cli.ask.files import reading
from console.cli.ask.options import OutputOption, YesOption, connect, formats
from console.cli.errors import CHANGES_PENDING, CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.plans import RUNNING, print_transaction

Document = dict[str, Any]
_WAIT_S = 60.0

events = typer.Typer(no_args_is_help=True, help="The event log.")

FileOption = Annotated[Path, typer.Option("-f", "--file", help="A file that `export` wrote.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the changes; make none.")]


def export(
    ctx: typer.Context,
    *,
    file: Annotated[
        Path | None, typer.Option("--out", help="Write to this file instead of stdout.")
    ] = None,
    output: Annotated[
        OutputFormat, formats(OutputFormat.YAML, OutputFormat.JSON)
    ] = OutputFormat.YAML,
) -> None:
    """Print every endpoint's home and job. `import` reads this format."""
    with connect(ctx) as client:
        found = client.get("/allocation")
    if file is None:
        out.document(found, output)
        return
    try:
        file.write_text(out.text_of(found, output), encoding="utf-8")
    except OSError as error:
        raise CliError("failed", f"{file} cannot be written: {error.strerror}") from None
    out.message(f"epoch {found['epoch']}: {len(found['homes'])} endpoints in {file}")


def diff(
    ctx: typer.Context, *, file: FileOption, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show what importing a file would change. Exit code 3 when there are changes."""
    view = _put(ctx, _read(file), dry_run=True)
    print_answer(view, output, _show)
    if view["moves"]:
        raise typer.Exit(CHANGES_PENDING)


def import_file(
    ctx: typer.Context,
    *,
    file: FileOption,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Move every endpoint's light to its home in a file. Uses one transaction."""
    _carry_out(ctx, _read(file), dry_run=dry_run, yes=yes, output=output)


def move(
    ctx: typer.Context,
    moves: Annotated[
        list[str],
        typer.Argument(
            metavar="ENDPOINT=AGGREGATOR...",
            help="gpu3=as1; several are one transaction, so that two can change places.",
        ),
    ],
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Move the light of some endpoints. Runs all checks of a regroup."""
    homes: dict[str, str] = {}
    for text in moves:
        endpoint, sign, aggregator = text.removeprefix("endpoint/").partition("=")
        if not sign or not endpoint or not aggregator:
            raise usage(f"{text!r} is not a move", "for example: lightloom move gpu3=as1 gpu0=as0")
        if endpoint in homes:
            raise usage(f"{endpoint} is named twice", "name each endpoint once")
        homes[endpoint] = aggregator
    with connect(ctx) as client:
        site = client.get("/health")["site"]
    wanted = {"site": site, "homes": homes}
    _carry_out(ctx, wanted, dry_run=dry_run, yes=yes, output=output)


@events.command("export")
def export_events(
    ctx: typer.Context,
    *,
    form: Annotated[str, typer.Option("--format", help="jsonl or csv.")] = "jsonl",
    since: Annotated[int, typer.Option(min=0, help="Events after this id.")] = 0,
    severity: Annotated[
        str | None, typer.Option(help="Only this severity: info, warning or error.")
    ] = None,
    words: Annotated[
        str | None, typer.Option(help="Only with all these words, in any field except the time.")
    ] = None,
) -> None:
    """Print the stored events, one a line, with stable ids and severities."""
    if form not in ("jsonl", "csv"):
        raise usage(f"{form!r} is not a format of events", "--format jsonl or csv")
    with connect(ctx) as client:
        query = {"format": form, "since": since, "severity": severity, "words": words}
        text = client.text("/events/export", **query)
    sys.stdout.write(out.harmless(text.replace("\r\n", "\n")) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _carry_out(
    ctx: typer.Context, wanted: Document, *, dry_run: bool, yes: bool, output: OutputFormat
) -> None:
    found = _put(ctx, wanted, dry_run=True)
    if dry_run or not found["moves"]:
        print_answer(found, output, _show)
        return
    if not yes:
        _show(found)
        out.ask("Move this light now?")
    done = _put(ctx, wanted, dry_run=False, epoch=found["epoch"])
    transaction = done["transaction"]
    if output.structured:
        out.document(done, output)
    elif transaction is not None:
        print_transaction(transaction)
    if transaction is not None and transaction["state"] not in {*RUNNING, "committed"}:
        raise CliError(
            "failed",
            f"transaction {transaction['id']} ended {transaction['state']}: "
            f"{transaction['error'] or transaction['result']}",
            object=f"transaction/{transaction['id']}",
            hint=f"lightloom describe transaction {transaction['id']}",
        )


def _put(
    ctx: typer.Context, wanted: Document, *, dry_run: bool, epoch: int | None = None
) -> Document:
    with connect(ctx) as client:
        return client.put(
            "/allocation",
            wanted,
            epoch=epoch,
            extra_s=0.0 if dry_run else _WAIT_S,
            dry_run=dry_run,
            wait_s=0.0 if dry_run else _WAIT_S,
        )


def _read(file: Path) -> Document:
    with reading(file):
        from sitefile.yaml_io import load_mapping  # noqa: PLC0415 - start-up time

        return load_mapping(file, unclear=False)


def _show(view: Document) -> None:
    for step in view["moves"]:
        out.line(
            f"~ endpoint/{step['endpoint']}: {step['from'] or 'dark'} -> {step['to'] or 'dark'}"
        )
    for note in view["notes"]:
        out.message(f"note: {note}; an import does not change that")
    for warning in view.get("warnings", []):
        out.message(f"warning: {warning}")
    touched = f", jobs touched: {', '.join(view['jobs'])}" if view["jobs"] else ""
    out.message(f"epoch {view['epoch']}: {len(view['moves'])} endpoints differ{touched}")
