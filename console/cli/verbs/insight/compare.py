"""``compare``: a job in several placements, measured or predicted, and a recommendation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.asking import Columns, print_answer, table
from console.cli.ask.jobfile import merged
from console.cli.ask.options import OutputOption, connect
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import duration_s
from console.cli.verbs.insight.measure import START_S, check_end, followed
from console.cli.verbs.light.plans import save

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
_PLAN_S = 60.0
"""The controller may be computing other plans."""


def compare(
    ctx: typer.Context,
    file: Annotated[Path, typer.Option("-f", "--file", help="The job's file.")],
    endpoints: Annotated[
        list[str] | None, typer.Argument(help="Only these; all that are idle if absent.")
    ] = None,
    *,
    count: Annotated[int | None, typer.Option("-n", "--gpus", min=1, help="Its GPUs.")] = None,
    placement: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="local, hybrid, remote, present, reordered, homes=gpu0:as0+gpu1:as1",
        ),
    ] = "local,hybrid,remote",
    run: Annotated[bool, typer.Option("--run", help="Measure them all, in turns.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="Measure nothing: needs --from.")
    ] = False,
    source: Annotated[
        str | None, typer.Option("--from", metavar="M7", help="An earlier comparison of this job.")
    ] = None,
    within: Annotated[
        str, typer.Option(help="A placement this close to the best may be chosen.", metavar="SHARE")
    ] = "5%",
    steps: Annotated[int, typer.Option(min=10, help="Steps that count of each run.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of --run.")] = 2,
    run_time: Annotated[str, typer.Option("--run-time", help="Longest run, as 90s or 5m.")] = "5m",
    project: Annotated[str | None, typer.Option(help="Whose jobs they are.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of every random order.")] = 1,
    plan: Annotated[
        Path | None,
        typer.Option("--out", help="Save the plan that gets it, for `lightloom apply`."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Cancel it after this time: 15m, 2h.", metavar="TIME")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs; start none.")] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare placements of a job, and recommend one.

    Runs the fewest placements that identify the job, predicts the others, runs the recommended one
    and shows how far the prediction was off. Uses idle endpoints only, and puts their light back.
    """
    if run and predict:
        raise usage("--run measures and --predict does not", "give one of them")
    limit_s = duration_s(timeout) if timeout else None
    job = merged(file, {} if count is None else {"count": count})
    chosen = project or str(job.get("project") or "default")
    with connect(ctx) as client:
        settings: Document = {
            "job": {name: job[name] for name in _PASSED if name in job},
            "placements": placement,
            "mode": "run" if run else "predict" if predict else "default",
            "within": share_of(within),
            "steps": steps,
            "rounds": rounds,
            "run_s": duration_s(run_time),
        }
        if job.get("record") == "full":
            settings["record"] = "full"
        if source is not None:
            settings["known"] = _result(client, source)["summary"].get("known", [])
        body = {
            "type": "compare",
            "endpoints": endpoints or job.get("endpoints") or [],
            "settings": settings,
            "seed": seed,
            "project": chosen,
            "dry_run": dry_run,
        }
        view = client.post("/measurements", body, extra_s=START_S)
        if dry_run:
            print_answer(view, output, table(_RUNS, "runs"))
            return
        view = followed(client, view, limit_s)
        _show(view, output)
        chosen = (view["result"] or {"summary": {}})["summary"].get("plan")
        if chosen:
            _how_to_get_it(client, chosen, plan)
    check_end(view)


_PASSED = (
    *("count", "command", "image", "env", "cpu", "memory_bytes", "io_bps", "volumes", "project"),
)
"""Fields of a job's request that its comparison needs."""


def share_of(text: str) -> float:
    """Read ``5%`` or ``0.05``. CliError with exit code 2."""
    number, percent = text.strip().removesuffix("%").strip(), text.strip().endswith("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise usage(f"{text!r} is not a share from 0 to 1", "for example 5% or 0.05")
    return value


def _result(client: ControllerClient, ident: str) -> Document:
    name = ident.removeprefix("measurement/")
    view = client.get(f"/measurements/{client.part(name)}")
    if view["type"] != "compare" or view["result"] is None:
        raise CliError(
            "conflict",
            f"measurement {name} is not a comparison with a result",
            object=f"measurement/{name}",
            hint="see `lightloom get measurements`",
        )
    result: Document = view["result"]
    return result


_RUNS: Columns = {
    "PLACEMENT": lambda run: run["label"],
    "ENDPOINTS": lambda run: ",".join(run["endpoints"]),
}


def _show(view: Document, output: OutputFormat) -> None:
    """Print the result, if there is one."""
    result = view["result"]
    if output.structured:
        out.document(view, output)
    elif result is not None:
        from measure.compare.text import text_of  # noqa: PLC0415 - start-up time

        out.lines(text_of(result).splitlines())
    for reason in (result or {}).get("invalid_because", ()):
        out.message(f"not valid: {reason}")


def _how_to_get_it(client: ControllerClient, chosen: Document, file: Path | None) -> None:
    """Print how to get the recommended placement; save the plan of its moves."""
    if file is not None:
        made = client.post("/plans", {"homes": chosen["homes"]}, extra_s=_PLAN_S)
        save(made, file)
        out.message(f"saved to {file}; carry it out: lightloom apply {file}")
    elif chosen["moves"]:
        out.message("it moves endpoints: give --out FILE, then lightloom apply FILE")
    ring = ",".join(chosen["endpoints"])
    out.message(f"then submit with: --endpoints {ring} --rank-order placed")
