"""Verbs for jobs: submit, wait, logs, cancel, pause, resume."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from base.figures import figure
from console.cli.ask.job import given, job_options
from console.cli.ask.jobfile import DryRunOption, FileOption, all_merged
from console.cli.ask.options import AnyOutput, NameOutput, connect, formats
from console.cli.ask.waiting import goes_on
from console.cli.errors import CliError, usage
from console.cli.show import output as out
from console.cli.show.kinds import split
from console.cli.show.output import OutputFormat
from console.cli.show.text import instant, moment_s, names, spread
from console.cli.verbs.objects import fetch

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
ENDED = frozenset({"completed", "failed", "cancelled"})
_POLL_S = 0.3


@job_options
def submit(
    ctx: typer.Context,
    *,
    file: FileOption = None,
    dry_run: DryRunOption = False,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- CMD...", help="Runs once per GPU; the image's own command if absent."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job's end.")] = False,
    timeout_s: Annotated[
        float | None, typer.Option("--wait-timeout", help="Seconds that --wait waits.")
    ] = None,
    output: NameOutput = OutputFormat.TABLE,
    **said: Any,
) -> None:
    """Queue a job: one container per GPU. Without a command it trains the demo's model.

    A file with several jobs is queued as a whole, or not at all.
    """
    requests = all_merged(file, given(said, command))
    if len(requests) > 1 and wait:
        raise usage(f"--wait waits for one job, {file} has {len(requests)}", "see `lightloom wait`")
    if dry_run:
        whole = requests[0] if len(requests) == 1 else {"jobs": requests}
        out.document(whole, OutputFormat.JSON if output is OutputFormat.JSON else OutputFormat.YAML)
        return
    if len(requests) > 1:
        _submit_all(ctx, requests, output)
        return
    with connect(ctx) as client:
        job = client.post("/jobs", requests[0], extra_s=60.0)
        if wait:
            called = job["name"]
            hint = f"follow it: lightloom logs -f {called}; end it: lightloom cancel {called}"
            with goes_on(f"job {called}", object=f"job/{called}", hint=hint):
                job = _wait_for_end(client, job, timeout_s)
    _print_job(job, output)
    if job["state"] == "pending":
        out.message(f"see why it waits: lightloom describe job {job['name']}")
    if wait and job["state"] != "completed":
        raise CliError(
            "failed",
            f"job {job['name']} {job['state']}: {job.get('reason') or 'no reason given'}",
            object=f"job/{job['name']}",
            hint=f"lightloom describe job {job['name']}",
        )


def cancel(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="The job's name.")],
    output: NameOutput = OutputFormat.TABLE,
) -> None:
    """Stop a job, or remove it from the queue."""
    _act(ctx, job, "cancel", output)


def pause(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="The job's name.")],
    output: NameOutput = OutputFormat.TABLE,
) -> None:
    """Freeze all containers of a job; it keeps its GPUs."""
    _act(ctx, job, "pause", output)


def resume(
    ctx: typer.Context,
    job: Annotated[str, typer.Argument(help="The job's name.")],
    output: NameOutput = OutputFormat.TABLE,
) -> None:
    """Continue a paused job."""
    _act(ctx, job, "resume", output)


def logs(
    ctx: typer.Context,
    *,
    job: Annotated[str, typer.Argument(help="The job's name.")],
    rank: Annotated[int | None, typer.Option(min=0, help="One rank; all if absent.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue until the job ends.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option(min=0, help="Only the last lines of each rank.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only lines since then: 10m ago, or 2026-01-31T12:00."),
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only lines that contain this text.")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Print when each line was written.")
    ] = False,
    output: Annotated[
        OutputFormat, formats(OutputFormat.TABLE, OutputFormat.JSON)
    ] = OutputFormat.TABLE,
) -> None:
    """Print the output of a job's containers, also after its end.

    Output that cannot be read (a server does not answer, or keeps it no more) is named on stderr.
    -o json prints one document a line.
    """
    name = _bare(job)
    start = None if since is None else moment_s(since, time.time())
    with connect(ctx) as client:
        path = f"/jobs/{client.part(name)}/logs"
        entry = None
        given: Document = {"rank": rank, "tail": tail, "since": start, "search": search}
        for entry in client.lines(path, follow=follow, **given):
            text = _prefix(entry, rank, timestamps) + entry["text"]
            if output is OutputFormat.JSON:
                out.json_line(entry)
            elif entry["stream"] == "missing":
                out.message(entry["text"])
            elif sys.stdout.isatty():
                out.line(text)
            else:  # a pipe gets the output unchanged
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
        if entry is None and tail != 0:
            chosen = since is not None or search is not None
            out.message(f"job {name} has no {'such output' if chosen else 'output so far'}")


def wait(
    ctx: typer.Context,
    *,
    target: Annotated[str, typer.Argument(metavar="KIND/NAME", help="For example job/red.")],
    condition: Annotated[
        str, typer.Option("--for", metavar="FIELD=VALUE", help="For example state=completed.")
    ],
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait; then exit code 124.")
    ] = 600.0,
    output: AnyOutput = OutputFormat.TABLE,
) -> None:
    """Wait until a field of an object has a value.

    Exit code 3 when that has become impossible, 124 after the time-out.
    """
    kind, name = split(target, None)
    field, sign, value = condition.partition("=")
    if name is None or not sign or not field:
        raise usage("the condition is incomplete", "lightloom wait job/red --for state=completed")
    deadline = time.monotonic() + timeout_s
    with connect(ctx) as client:
        while True:
            item = fetch(client, kind, name)
            if field not in item:
                known = ", ".join(key for key, v in item.items() if not isinstance(v, list | dict))
                raise usage(f"a {kind.singular} has no field {field!r}", f"fields: {known}")
            state = _plain(item[field])
            if state == value:
                break
            if kind.singular == "job" and item["state"] in ENDED:
                raise CliError(
                    "unmet",
                    f"job {name} {item['state']}; {field} remains {state or 'empty'}",
                    object=target,
                    hint=f"lightloom describe job {name}",
                )
            if time.monotonic() >= deadline:
                raise CliError(
                    "timeout",
                    f"{field} of {target} is {state or 'empty'} after {figure(timeout_s, 6)} s",
                    object=target,
                )
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))
    if output.structured:
        out.document(item, output)
    else:
        out.line(f"{kind.singular}/{name}")


def _act(ctx: typer.Context, job: str, verb: str, output: OutputFormat) -> None:
    with connect(ctx) as client:
        view = client.post(f"/jobs/{client.part(_bare(job))}/{verb}", extra_s=60.0)
    _print_job(view, output)


def _submit_all(ctx: typer.Context, requests: list[Document], output: OutputFormat) -> None:
    """Queue all jobs or none."""
    with connect(ctx) as client:
        queued = client.post("/submissions", {"jobs": requests}, extra_s=60.0)
    if output.structured:
        out.document(queued, output)
        return
    for name in queued["names"]:
        out.line(f"job/{name}" if output is OutputFormat.NAME else f"job/{name} pending")


def _print_job(job: Document, output: OutputFormat) -> None:
    if output.structured:
        out.document(job, output)
    elif output is OutputFormat.NAME:
        out.line(f"job/{job['name']}")
    else:
        placed = job["endpoints"] and job["state"] not in ENDED
        where = f" on {names(job['endpoints'])} ({spread(job['spread'])})" if placed else ""
        why = f": {job['reason']}" if job.get("reason") else ""
        out.line(f"job/{job['name']} {job['state']}{where}{why}")


def _wait_for_end(client: ControllerClient, job: Document, timeout_s: float | None) -> Document:
    began, state = time.monotonic(), ""
    while job["state"] not in ENDED:
        if job["state"] != state:
            state = job["state"]
            out.message(f"job/{job['name']} {state} {job.get('reason') or ''}".rstrip())
        if timeout_s is not None and time.monotonic() > began + timeout_s:
            raise CliError(
                "timeout",
                f"job {job['name']} is {state} after {figure(timeout_s, 6)} s",
                object=f"job/{job['name']}",
                hint=f"it continues; lightloom wait job/{job['name']} --for state=completed",
            )
        time.sleep(_POLL_S)
        job = client.get(f"/jobs/{client.part(job['name'])}")
    return job


def _bare(job: str) -> str:
    return job.removeprefix("job/")


def _prefix(entry: Document, rank: int | None, timestamps: bool) -> str:
    when = f"{instant(entry['time'])} " if timestamps else ""
    return when + (f"[{entry['rank']}] " if rank is None else "")


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
