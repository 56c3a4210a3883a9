"""``aggregator probe``: measures a packet switch and says what it lacks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from console.cli.ask.asking import answer
from console.cli.ask.options import OutputOption
from console.cli.errors import CliError
from console.cli.show import output as out
from console.cli.show.output import OutputFormat

Document = dict[str, Any]
_WAIT_S = 40.0

aggregator = typer.Typer(no_args_is_help=True, help="Packet switches.")


@aggregator.callback()
def _aggregator() -> None:
    """Keep `probe` a command of its own."""


@aggregator.command("probe")
def probe(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Its name in the site file: as0.")],
    *,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Measure what a packet switch takes: tables, metadata, groups, barrier.

    Trial rules are written, read back and removed; no frame fits them. Exit code 1 when
    something that jobs need is missing.
    """
    own = name.removeprefix("aggregator/")
    found = answer(
        ctx,
        output,
        lambda client: client.post(f"/aggregators/{client.part(own)}/probe", extra_s=_WAIT_S),
        _show,
    )
    missing = [f["fact"] for f in found["findings"] if f["severity"] == "error"]
    if missing:
        raise CliError(
            "failed",
            f"{own} lacks what jobs need: {', '.join(missing)}",
            object=f"aggregator/{own}",
            hint="docs/operators.md lists which switches are known, under Which switches",
        )


def _show(view: Document) -> None:
    words = (view["manufacturer"], view["hardware"], view["software"], view["serial"])
    facts = {
        "switch": " ".join(filter(None, words)) or "unknown",
        "tables": _known(view["tables"]),
        "metadata": f"{_known(view['metadata_bits'])} bits",
        "barrier means done": _known(view["barrier"]),
        "port durations": _known(view["durations"]),
    }
    for table in view["features"]:
        facts[f"table {table['table']}"] = (
            f"{table['max_entries']} rules, up to {table['needed']} needed"
        )
    for trial in view["trials"]:
        detail = f" ({trial['detail']})" if trial["detail"] else ""
        facts[f"trial {trial['name']}"] = f"{trial['outcome']}{detail}"
    for label, text in facts.items():
        out.line(f"{label:<20}{text}")
    for finding in view["findings"]:
        out.line(f"{finding['severity']}: {finding['text']}")
        if finding["mend"]:
            out.line(f"    {finding['mend']}")


def _known(value: Any) -> str:
    if value is None:
        return "unknown"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
