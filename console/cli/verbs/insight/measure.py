"""``measure``: starts, follows, imports, compares, cancels and removes measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from base import clock
from base.figures import figure
from console.cli.ask.asking import print_answer
from console.cli.ask.complete import names
from console.cli.ask.files import reading
from console.cli.ask.options import OutputOption, connect
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.measure import cell, progress_text, show_measurement
from console.cli.show.output import OutputFormat
from console.cli.show.terminal import ProgressLine
from console.cli.show.text import duration_s

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]

POLL_S = 1.0
START_S = 60.0
"""The controller asks servers for images before it accepts a measurement."""

measure = typer.Typer(
    no_args_is_help=True,
    help="What this cluster does: links, collectives, scaling, storage, input.",
)

_Ident = Annotated[str, typer.Argument(help="m7", autocompletion=names("measurements"))]
_SIZES = Annotated[
    str | None, typer.Option("--sizes", help="Sizes: 1k..4m, or 4k,64k,1m.", metavar="SIZES")
]
_REPETITIONS = Annotated[
    int | None, typer.Option(min=1, help="Repetitions of each point, after a warm-up.")
]
_ENDPOINTS: Mapping[str, Any] = {
    "endpoints": Annotated[
        list[str] | None,
        typer.Argument(
            help="Exactly these, in rank order; all that are idle if absent.",
            autocompletion=names("endpoints"),
        ),
    ]
}
_COMMON: Mapping[str, Any] = {
    "homes": Annotated[
        str | None,
        typer.Option(
            help="Move them first, and put them back: gpu3=as0,gpu4=as1.", metavar="E=A,..."
        ),
    ],
    "sets": Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the type; docs/measure.md.", metavar="KEY=VALUE"),
    ],
    "seed": Annotated[int, typer.Option(min=0, help="Of every random order.")],
    "project": Annotated[str, typer.Option(help="Whose jobs they are.")],
    "dry_run": Annotated[bool, typer.Option("--dry-run", help="Show the jobs; start nothing.")],
    "detach": Annotated[bool, typer.Option("--detach", help="Start it and end at once.")],
    "timeout": Annotated[
        str | None, typer.Option(help="Cancel it after this time: 90s, 15m.", metavar="TIME")
    ],
}
_IMPORT: Mapping[str, Any] = {
    "source": Annotated[
        Path | None,
        typer.Option(
            "--from", help="Import what another tool wrote; measure nothing.", metavar="FILE"
        ),
    ],
    "tool": Annotated[
        str | None,
        typer.Option(help="That tool: nccl-tests, osu, perftest or fio.", metavar="NAME"),
    ],
}
_DEFAULTS: Mapping[str, object] = {
    "seed": 1,
    "project": "default",
    "dry_run": False,
    "detach": False,
    "output": OutputFormat.TABLE,
}
"""None for every other option."""


def _command(kind: str, text: str, own: Mapping[str, Any], more: Mapping[str, Any]) -> None:
    """Add the command of one type; ``own`` are options that are settings of the same name."""

    def run(ctx: typer.Context, **given: Any) -> None:
        _measure(ctx, kind, {name: given[name] for name in own}, **given)

    declared = {**_ENDPOINTS, **own, **_COMMON, **more, "output": OutputOption}
    run.__annotations__ = {"ctx": typer.Context, **declared}
    run.__doc__ = text
    parameters = [Parameter("ctx", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=option)
        for name, option in declared.items()
    ]
    vars(run)["__signature__"] = Signature(parameters)  # what typer reads
    measure.command(kind)(run)


_command(
    "links",
    "Measure latency and bandwidth of every pair, groups of pairs, and what stands out.",
    {
        "sizes": _SIZES,
        "repetitions": _REPETITIONS,
        "together": Annotated[
            bool | None,
            typer.Option("--together", help="All pairs of a round at once: the contended figure."),
        ],
        "all": Annotated[
            bool | None, typer.Option("--all", help="Every pair, also above 32 endpoints.")
        ],
    },
    _IMPORT,
)
_command(
    "collectives",
    "Measure collectives, with the columns of nccl-tests.",
    {
        "operations": Annotated[
            str | None, typer.Option(help="all_reduce,all_gather,...", metavar="NAMES")
        ],
        "sizes": _SIZES,
        "repetitions": _REPETITIONS,
        "placements": Annotated[
            str | None, typer.Option(help="Repeat in each: local,hybrid,remote.", metavar="NAMES")
        ],
        "together": Annotated[
            str | None,
            typer.Option(
                help="Groups side by side, as NCCL_TESTS_SPLIT: mod2, div2.", metavar="SPLIT"
            ),
        ],
    },
    _IMPORT,
)
_command(
    "scaling",
    "Measure how training steps scale with ranks and with the model's intensity.",
    {},
    {},
)
_command(
    "storage",
    "Measure a volume: throughput, latency and processor time by workers and transfer size.",
    {
        "volume": Annotated[str | None, typer.Option(help="The volume to measure.")],
        "workers": Annotated[str | None, typer.Option(help="1,4,16,64", metavar="COUNTS")],
        "io_bytes": _SIZES,
        "repetitions": _REPETITIONS,
    },
    _IMPORT,
)
_command(
    "input",
    "Measure who limits a training: its input, its computation, or neither.",
    {"volume": Annotated[str | None, typer.Option(help="The volume with the data.")]},
    {},
)


@measure.command("cancel")
def cancel(
    ctx: typer.Context,
    ident: _Ident,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Stop a measurement: its jobs end, and its light is put back."""
    _change(ctx, ident, output, "cancel")


@measure.command("remove")
def remove(
    ctx: typer.Context,
    ident: _Ident,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Forget a measurement that has ended, with its result."""
    _change(ctx, ident, output, "remove")


@measure.command("diff")
def diff(
    ctx: typer.Context,
    first: Annotated[str, typer.Argument(help="m3", autocompletion=names("measurements"))],
    second: _Ident,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare two results of one type: the second over the first, with 95 % intervals."""
    from measure.diff import diff as compared  # noqa: PLC0415 - start-up time

    with connect(ctx) as client:
        one, other = (_result(client, ident) for ident in (first, second))
    try:
        found = compared(one, other)
    except ValueError as error:
        raise usage(str(error), "compare two measurements of one type") from None
    if output.structured:
        rows = [
            {
                **ratio.key,
                "figure": ratio.figure,
                "first": ratio.first,
                "second": ratio.second,
                "ratio": ratio.ratio,
                "ci": [ratio.low, ratio.high],
                "differs": ratio.differs,
            }
            for ratio in found.ratios
        ]
        document = {
            "first": one["id"],
            "second": other["id"],
            "rows": rows,
            "settings": {name: list(pair) for name, pair in found.settings.items()},
            "only_first": found.only_first,
            "only_second": found.only_second,
        }
        out.document(document, output)
        return
    for name, (before, after) in found.settings.items():
        out.message(f"{name} differs: {cell(name, before)} and {cell(name, after)}")
    for count, ident in ((found.only_first, one["id"]), (found.only_second, other["id"])):
        if count:
            out.message(f"{count} rows are in {ident} only")
    columns = list(dict.fromkeys(name for ratio in found.ratios for name in ratio.key))
    out.show_table(
        [*(name.upper() for name in columns), "FIGURE", one["id"], other["id"], "RATIO", "DIFFERS"],
        [
            [
                *(cell(name, ratio.key.get(name)) for name in columns),
                ratio.figure,
                cell(ratio.figure, ratio.first),
                cell(ratio.figure, ratio.second),
                f"{ratio.ratio:.3f}"
                + ("" if ratio.low is None else f" [{ratio.low:.3f} {ratio.high:.3f}]"),
                {True: "yes", False: "no", None: "?"}[ratio.differs],
            ]
            for ratio in found.ratios
        ],
    )


def _result(client: ControllerClient, ident: str) -> Document:
    view = client.get(f"/measurements/{client.part(_bare(ident))}")
    result: Document | None = view["result"]
    if result is None:
        raise CliError(
            "conflict",
            f"measurement {view['id']} has no result: it is {view['state']}",
            object=f"measurement/{view['id']}",
            hint="see `lightloom get measurements`",
        )
    return result


def _bare(ident: str) -> str:
    return ident.removeprefix("measurement/")


def _change(ctx: typer.Context, ident: str, output: OutputFormat, word: str) -> None:
    with connect(ctx) as client:
        path = f"/measurements/{client.part(_bare(ident))}"
        if word == "remove":
            view = client.delete(path, extra_s=START_S)
        else:
            view = client.post(f"{path}/cancel", extra_s=START_S)
    done = "is removed" if word == "remove" else f"is {view['state']}"
    print_answer(view, output, lambda shown: out.line(f"measurement {shown['id']} {done}"))


# --- start and follow -------------------------------------------------------------------------


def _measure(
    ctx: typer.Context,
    kind: str,
    own: Mapping[str, object | None],
    *,
    endpoints: list[str] | None,
    homes: str | None,
    sets: list[str] | None,
    seed: int,
    project: str,
    dry_run: bool,
    detach: bool,
    timeout: str | None,
    output: OutputFormat,
    source: Path | None = None,
    tool: str | None = None,
    **_own: object,
) -> None:
    """Start a measurement, or import one; follow it to its end and print its result."""
    if (source is None) != (tool is None):
        raise usage("an import needs a file and its tool", "give --from FILE and --tool NAME")
    settings = {name: value for name, value in own.items() if value is not None}
    settings |= _settings(sets or [])
    limit_s = None if timeout is None else duration_s(timeout)
    with connect(ctx) as client:
        if source is not None:
            with reading(source):
                text = source.read_text(encoding="utf-8", errors="replace")
            body: Document = {"type": kind, "tool": tool, "text": text}
            _show(client.post("/imports", body, extra_s=START_S), output)
            return
        body = {
            "type": kind,
            "endpoints": [name.removeprefix("endpoint/") for name in endpoints or []],
            "homes": _homes(homes),
            "settings": settings,
            "seed": seed,
            "project": project,
            "dry_run": dry_run,
        }
        view = client.post("/measurements", body, extra_s=START_S)
        if dry_run:
            _show(view, output)
            return
        out.message(f"measurement {view['id']} on {len(view['endpoints'])} endpoints")
        if not detach:
            view = followed(client, view, limit_s)
        _show(view, output)
    check_end(view)


def _settings(sets: list[str]) -> Document:
    """Parse KEY=VALUE; a value is JSON (a number, true, a list), or else a text."""
    found: Document = {}
    for item in sets:
        key, equals, text = item.partition("=")
        if not key or not equals:
            raise usage(f"{item!r} is not KEY=VALUE", "for example --set repetitions=7")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def _homes(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in filter(None, (text or "").split(",")):
        endpoint, equals, home = item.partition("=")
        if not endpoint or not equals or not home:
            raise usage(f"{item!r} is not ENDPOINT=AGGREGATOR", "for example --homes gpu3=as0")
        found[endpoint.strip()] = home.strip()
    return found


def followed(client: ControllerClient, view: Document, limit_s: float | None) -> Document:
    """Follow a measurement to its end; an interrupt, or the limit, cancels it."""
    path = f"/measurements/{client.part(view['id'])}"
    began = clock.monotonic()
    try:
        with ProgressLine() as line:
            while view["state"] in ("pending", "running"):
                progress = view.get("progress")
                text = progress_text(progress) if progress else str(view["reason"])
                line.show(text and f"{view['id']}: {text}", _share(progress))
                if limit_s is not None and clock.monotonic() > began + limit_s:
                    client.post(f"{path}/cancel", extra_s=START_S)
                    raise CliError(
                        "timeout",
                        f"measurement {view['id']} did not end in {figure(limit_s, 6)} s"
                        " and is cancelled",
                        object=f"measurement/{view['id']}",
                        hint="allow more time with --timeout",
                    )
                clock.sleep(POLL_S)
                view = client.get(path)
    except KeyboardInterrupt:
        out.message(f"cancelling measurement {view['id']}")
        client.post(f"{path}/cancel", extra_s=START_S)
        raise CliError(
            "interrupted",
            f"measurement {view['id']} is cancelled, its light is back",
            object=f"measurement/{view['id']}",
        ) from None
    return view


def _share(progress: Mapping[str, Any] | None) -> float | None:
    return progress["done"] / progress["total"] if progress and progress["total"] else None


def check_end(view: Document) -> None:
    """Raise CliError unless it has a valid result, or goes on without this command."""
    about = f"measurement/{view['id']}"
    if view["state"] == "failed":
        hint = f"see `lightloom describe measurement {view['id']}`"
        text = f"measurement {view['id']} failed: {view['reason']}"
        raise CliError("failed", text, object=about, hint=hint)
    if view["state"] == "cancelled":
        text = f"measurement {view['id']} ended: {view['reason']}"
        raise CliError("unmet", text, object=about)
    if view["valid"] is False:
        text = f"the result of {view['id']} is not valid: {view['invalid_because'][0]}"
        raise CliError("unmet", text, object=about, hint="measure again when that is over")


def _show(view: Document, output: OutputFormat) -> None:
    print_answer(view, output, lambda shown: show_measurement(shown, tables))


def tables(result: Document) -> str | None:
    """Draw a result as its kind does; None where it has no tables of its own.

    None, too, where its rows lack what the tables show: another version may have written them.
    """
    from measure.kinds import Tabled  # noqa: PLC0415 - start-up time
    from measure.registry import KINDS  # noqa: PLC0415 - start-up time

    kind = KINDS.get(result["type"])
    try:
        return kind.table(result) if isinstance(kind, Tabled) else None
    except (KeyError, TypeError):
        return None
