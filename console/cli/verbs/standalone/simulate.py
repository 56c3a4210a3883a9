"""``simulate``: replay a workload trace under several policies, without a controller."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.files import reading
from console.cli.ask.options import WideOutput
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.text import age, percent

if TYPE_CHECKING:
    from scheduler.model import Site
    from scheduler.sim.engine import Replay
    from scheduler.sim.gavel import GavelTable
    from scheduler.sim.slowdown import Slowdown
    from scheduler.sim.trace import Trace

_TABLE_NAME = "simulation_throughputs.json"
"""Gavel's name of its table, which is found beside a trace without --gavel-table."""

_SMOOTHED = 21
"""Samples of the fragmentation curve in one running mean."""


class SlowdownOf(StrEnum):
    """Source of a scattered job's slowdown."""

    GAVEL = "gavel"
    MODEL = "model"


def simulate(
    *,
    trace: Annotated[Path, typer.Option(help="Trace file, or a folder with one trace.")],
    site: Annotated[Path, typer.Option(help="Site file, full or short form.")],
    policy: Annotated[
        str, typer.Option(help="Comma-separated; see docs/simulator.md.")
    ] = "regroup",
    load: Annotated[
        float | None, typer.Option(min=0.001, help="Compress arrivals to this offered load.")
    ] = None,
    slowdown: Annotated[
        SlowdownOf, typer.Option(help="Cost of scattering: measured table or model.")
    ] = SlowdownOf.MODEL,
    gavel_table: Annotated[
        Path | None,
        typer.Option("--gavel-table", help=f"Gavel's {_TABLE_NAME}. [default: beside the trace]"),
    ] = None,
    pause_s: Annotated[
        float, typer.Option("--pause-s", min=0, help="Dark time of a touched job.")
    ] = 0.25,
    restart_s: Annotated[
        float, typer.Option("--restart-s", min=0, help="Restart of an evicted job.")
    ] = 60.0,
    checkpoint_s: Annotated[
        float, typer.Option("--checkpoint-s", min=0.001, help="Run time between checkpoints.")
    ] = 600.0,
    oversubscription: Annotated[
        float,
        typer.Option(
            min=0.001, help="Of the model: an aggregator's ports per port of uplink rate."
        ),
    ] = 4.0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Replay only the first N jobs.")] = None,
    max_gpus: Annotated[
        int | None, typer.Option("--max-gpus", min=1, help="Omit larger jobs.")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed that selects models for jobs without one.")
    ] = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw completion times and fragmentation to this file.")
    ] = None,
    output: WideOutput = OutputFormat.TABLE,
) -> None:
    """Replay a workload trace and print each policy's results. Needs no controller."""
    from scheduler.sim.cluster import ReplaySettings  # noqa: PLC0415 - start-up time
    from scheduler.sim.engine import replay  # noqa: PLC0415 - start-up time
    from scheduler.sim.policies import POLICIES, make_policy  # noqa: PLC0415 - start-up time
    from scheduler.sim.trace import TraceError  # noqa: PLC0415 - start-up time
    from sitefile import load_planner_site  # noqa: PLC0415 - start-up time

    names = [name.strip() for name in policy.split(",") if name.strip()]
    unknown = [name for name in names if name not in POLICIES]
    if unknown or not names or len(set(names)) < len(names):
        from sitefile.wording import meant  # noqa: PLC0415 - start-up time

        guess = meant(unknown[0], POLICIES) if unknown else ""
        raise usage(f"--policy {policy} cannot be used{guess}", f"some of: {','.join(POLICIES)}")
    with reading(site):
        cabled = load_planner_site(site)
    settings = ReplaySettings(pause_s=pause_s, restart_s=restart_s, checkpoint_s=checkpoint_s)
    replays = []
    try:
        table = _table(gavel_table, trace)
        workload = _prepare(_read(trace, table), cabled, load, jobs, max_gpus)
        for name in names:
            cost = _slowdown(slowdown, table, cabled, workload, ratio=oversubscription, seed=seed)
            made = make_policy(name, workload)
            replays.append(replay(workload, cabled, made, cost, settings, clock=time.perf_counter))
            out.message(f"{name}: {len(workload.jobs)} jobs in {replays[-1].report.replay_s:.1f} s")
    except TraceError as error:
        raise CliError("invalid", str(error), object=error.source, hint=error.fix) from None
    for note in workload.notes:
        out.message(f"note: {note}")
    if plot is not None:
        _plot(replays, plot)
    documents = [found.report.document() for found in replays]
    if output.structured:
        out.document(documents if len(documents) > 1 else documents[0], output)
    else:
        _show(documents, wide=output is OutputFormat.WIDE)


def _table(given: Path | None, trace: Path) -> GavelTable | None:
    from scheduler.sim.gavel import GavelTable  # noqa: PLC0415 - start-up time

    beside = (trace if trace.is_dir() else trace.parent) / _TABLE_NAME
    path = given or (beside if beside.is_file() else None)
    if path is None:
        return None
    with reading(path):
        text = path.read_text(encoding="utf-8")
    return GavelTable.parse(text, str(path))


def _read(path: Path, table: GavelTable | None) -> Trace:
    from scheduler.sim import readers  # noqa: PLC0415 - start-up time
    from scheduler.sim.trace import TraceError  # noqa: PLC0415 - start-up time

    if not path.is_dir():
        return _read_file(path, table)
    clusters = sorted(path.glob("*.trace"))
    if clusters:
        return readers.merge(str(path), [_read_file(file, table) for file in clusters])
    files = sorted(path.glob("*.csv"))
    traces, reasons = [], []
    for file in files:
        try:
            traces.append(_read_file(file, table))
        except TraceError as error:
            reasons.append(error)
    if len(traces) == 1:
        return traces[0]
    if not traces and len(reasons) == 1:
        raise reasons[0]
    found = [t.name for t in traces] or [str(reason) for reason in reasons]
    inside = [str(entry) for entry in sorted(path.iterdir()) if entry.is_dir()]
    hint = f"name one: {', '.join(found or inside)}" if found or inside else "give a file"
    raise CliError(
        "invalid", f"{path} holds {len(traces)} traces, not one", object=str(path), hint=hint
    )


def _read_file(path: Path, table: GavelTable | None) -> Trace:
    from scheduler.sim import readers  # noqa: PLC0415 - start-up time
    from scheduler.sim.trace import TraceError  # noqa: PLC0415 - start-up time

    with reading(path), path.open(encoding="utf-8", newline="") as lines:
        try:
            return readers.read(lines, str(path), table)
        except UnicodeDecodeError:
            raise TraceError(str(path), 0, "not a text file", "UTF-8 text") from None


def _prepare(
    trace: Trace, site: Site, load: float | None, jobs: int | None, max_gpus: int | None
) -> Trace:
    """Select jobs, then compress arrivals to the load."""
    if max_gpus is not None:
        trace = trace.up_to(max_gpus)
    if jobs is not None:
        trace = trace.first(jobs)
    if load is None:
        return trace
    endpoints = sum(e.kind == "gpu" for e in site.endpoints)
    try:
        return trace.at_load(load, endpoints)
    except ValueError as error:
        raise usage(str(error), "omit --load") from None


def _slowdown(
    kind: SlowdownOf,
    table: GavelTable | None,
    site: Site,
    trace: Trace,
    *,
    ratio: float,
    seed: int,
) -> Slowdown:
    """Return a new slowdown: it accumulates the placements of one replay."""
    from scheduler.sim.slowdown import (  # noqa: PLC0415 - start-up time
        GavelSlowdown,
        ModelSlowdown,
    )

    if kind is SlowdownOf.MODEL:
        return ModelSlowdown.of(site, {job.gpus for job in trace.jobs}, ratio)
    if table is None:
        raise usage("--slowdown gavel needs the measured table", f"--gavel-table {_TABLE_NAME}")
    return GavelSlowdown(table, seed)


def _show(documents: Sequence[dict[str, Any]], *, wide: bool) -> None:
    rows = []
    for d in documents:
        row = [
            d["policy"],
            age(d["jct_mean_s"]),
            age(d["jct_p99_s"]),
            age(d["jct_gpu_time_weighted_s"]),
            age(d["queue_mean_s"]),
            percent(d["utilisation"]),
            percent(d["effective_utilisation"]),
            percent(d["locality_time"]),
            f"{d['excess_span_mean']:.2f}",
            f"{d['pauses_per_job_hour']:.4f}",
        ]
        if wide:
            row += [
                age(d["makespan_s"]),
                age(d["jct_p50_s"]),
                d["regroups"],
                d["running_moves"],
                d["jobs"],
                f"{d['jobs_per_s']:.0f}",
            ]
        rows.append(row)
    columns = ["POLICY", "JCT", "P99", "BY-GPU-TIME", "QUEUED", "USED", "EFFECTIVE", "LOCAL"]
    columns += ["EXCESS", "PAUSES/H"]
    if wide:
        columns += ["MAKESPAN", "P50", "REGROUPS", "MOVES", "JOBS", "JOBS/S"]
    out.show_table(columns, rows)


def _smooth(values: Sequence[float]) -> list[float]:
    """Return running means: on a full site the share jumps between 0 and 1 at every event."""
    half = _SMOOTHED // 2
    windows = (values[max(i - half, 0) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _plot(replays: Sequence[Replay], path: Path) -> None:
    """Draw the distribution of completion times, and fragmentation over time."""
    import matplotlib as mpl  # noqa: PLC0415 - only plots need it

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415 - only plots need it

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    for found in replays:
        name = found.report.policy
        times = sorted(max(job.jct_s, 1.0) / 3600 for job in found.ended)
        share = [(i + 1) / len(times) for i in range(len(times))]
        left.plot(times, share, label=name)
        days = [sample.at_s / 86400 for sample in found.curve]
        middle.plot(days, [sample.excess_span for sample in found.curve], label=name)
        right.plot(days, _smooth([sample.stranded for sample in found.curve]), label=name)
    left.set(xscale="log", xlabel="job completion time (h)", ylabel="share of jobs")
    middle.set(xlabel="days", ylabel="excess span of running jobs")
    right.set(
        xlabel="days",
        ylabel=f"stranded idle endpoints (jobs of 8; mean of {_SMOOTHED} samples)",
        ylim=(0, 1),
    )
    left.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise usage(
            f"{path} cannot be written: {error}", "a file name in .png, .svg or .pdf"
        ) from None
    finally:
        plt.close(figure)
    out.message(f"drawn to {path}")
