"""``engine``: another scheduler, such as Slurm, that owns the jobs of some endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from console.cli.ask.asking import answer, table
from console.cli.ask.options import OutputOption
from console.cli.errors import CliError
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import NONE, instant, plural

Document = dict[str, Any]

engine = typer.Typer(
    help="Another scheduler, such as Slurm, that owns the jobs of some endpoints.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@engine.command()
def status(ctx: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show how it stands with the engine: contact, published topology, the latest answers."""
    answer(ctx, output, lambda client: client.get("/engine"), _show)


def _show(view: Document) -> None:
    out.show_table(("", ""), _facts(view), head=False)
    _answers("allocations", view["allocations"], ("engine_s", "plan_s", "light_s"))
    _answers("waiting jobs", view["helped"], ("plan_s", "light_s", "publish_s"))


@engine.command()
def check(ctx: typer.Context, output: OutputOption = OutputFormat.TABLE) -> None:
    """Examine the engine's versions, rights, plugins, hooks and nodes; each fault with its mend.

    Exit code 1 when something that lightloom needs is missing.
    """
    view = answer(ctx, output, lambda client: client.get("/engine/check", extra_s=40.0), _CHECKS)
    faults = [line for line in view["checks"] if line["grade"] == "fault"]
    if faults:
        raise CliError(
            "failed",
            f"{view['kind']} is not ready for lightloom: "
            + ", ".join(line["subject"] for line in faults),
            object=f"engine/{view['kind']}",
            hint=faults[0]["mend"],
        )


_CHECKS = table(
    {
        "CHECK": lambda c: c["subject"],
        "STATE": lambda c: c["grade"],
        "FOUND": lambda c: c["found"],
        "MEND": lambda c: c["mend"] or NONE,
    },
    "checks",
)


def _facts(view: Document) -> list[tuple[str, str]]:
    since = instant(view["since"])
    contact = f"up since {since}" if view["up"] else f"away since {since}: {view['detail']}"
    rows = [
        ("engine", f"{view['kind']} {view['version']}".strip()),
        ("contact", contact + (f" by {view['transport']}" if view["transport"] else "")),
        ("endpoints", str(view["endpoints"])),
        ("jobs", f"{view['jobs']} with endpoints, {view['waiting']} waiting"),
        ("isolation", view["isolation"]),
        ("topology", _published(view["published"])),
    ]
    if view["left_out"]:
        rows.append(("not watched", f"{plural(view['left_out'], 'job')} at the queue's end"))
    if view["slowest_s"] is not None:
        rows.append(("slowest answer", _ms(view["slowest_s"])))
    rows += [("missing", text) for text in view["missing"]]
    return rows


def _published(view: Document | None) -> str:
    if view is None:
        return "not published (the site file's engine.topology)"
    if view["error"]:
        return str(view["error"])
    if view["at"] is None:
        return "not published yet"
    took = "" if view["took_s"] is None else f", in {_ms(view['took_s'])}"
    return f"epoch {view['epoch']}, read back at {instant(view['at'])}{took}"


def _answers(title: str, items: Sequence[Document], parts: Sequence[str]) -> None:
    if not items:
        return
    heads = [part.removesuffix("_s").upper() for part in parts]
    out.line("")
    out.line(title)
    out.show_table(
        ("JOB", "AT", "MOVES", *heads, "ANSWER"),
        [
            (
                item["job"],
                instant(item["at"]),
                item["moves"],
                *(_ms(item[part]) for part in parts),
                item["text"],
            )
            for item in items
        ],
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"
