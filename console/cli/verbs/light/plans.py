"""``plan``, ``apply`` and ``defrag``: compute a regroup, carry one out, also in batches."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from base import clock
from base.figures import figure
from console.cli.ask.asking import print_answer
from console.cli.ask.options import OutputOption, WideOutput, YesOption, connect
from console.cli.ask.waiting import goes_on
from console.cli.errors import CHANGES_PENDING, CliError, usage
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from console.cli.show.plans import (
    ROLLING,
    RUNNING,
    print_plan,
    print_rollout,
    print_transaction,
)
from scheduler.model import Objective

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
_POLL_S = 0.1
_LINE_S = 30.0
"""Longest wait for plans that the controller computes before this one."""
_SEARCH_S = 10.0
"""How long the controller searches unless told otherwise."""
SLOW_S = 0.5
"""A plan that takes longer is reported on."""
REPORT_EVERY_S = 5.0


JobOption = Annotated[
    str | None,
    typer.Option("--job", help="Regroup only this job, or make room for it if it waits."),
]
MaxPausedOption = Annotated[
    int | None, typer.Option("--max-jobs-paused", min=0, help="Most jobs to pause.")
]
MaxMovesOption = Annotated[
    int | None, typer.Option("--max-moves", min=0, help="Most GPUs of running jobs to move.")
]
ObjectiveOption = Annotated[
    Objective | None, typer.Option(help="What to minimise after the excess span. [default: pauses]")
]
TimeLimitOption = Annotated[
    float | None, typer.Option("--time-limit", min=0.01, help="Seconds to search. [default: 10]")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Ignore cool-down and pause budgets, but not pins.")
]
MaxDarkOption = Annotated[
    int | None,
    typer.Option(
        "--max-dark",
        min=1,
        help="In batches with at most so many endpoints dark at once. [default: the site's]",
    ),
]
MaxPausesOption = Annotated[
    int | None,
    typer.Option(
        "--max-pauses",
        min=1,
        help="With batches: most pauses of a job. [default: the site's, or 1]",
    ),
]
ParkOption = Annotated[
    bool | None,
    typer.Option(
        "--park/--no-park",
        help="With batches: idle endpoints may stay dark until the last. [default: the site's]",
    ),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0, help="Seconds to wait; then exit code 124.")
]


def plan(
    ctx: typer.Context,
    *,
    job: JobOption = None,
    max_jobs_paused: MaxPausedOption = None,
    max_moves: MaxMovesOption = None,
    objective: ObjectiveOption = None,
    time_limit_s: TimeLimitOption = None,
    force: ForceOption = False,
    state: Annotated[
        Path | None, typer.Option(help="Plan for this state file, without a controller.")
    ] = None,
    max_dark: MaxDarkOption = None,
    max_pauses: MaxPausesOption = None,
    park: ParkOption = None,
    file: Annotated[
        Path | None, typer.Option("--out", help="Save the plan for `lightloom apply`.")
    ] = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit code 3 when the plan has moves.")
    ] = False,
    output: WideOutput = OutputFormat.TABLE,
) -> None:
    """Compute a regroup and show its changes. Makes none."""
    request = _request(job, max_jobs_paused, max_moves, objective, time_limit_s, force=force)
    request |= _batches(max_dark, max_pauses, park)
    if state is not None:
        from console.cli.verbs.standalone.plan_file import plan_state  # noqa: PLC0415 - loads the solver

        if max_dark is None and (max_pauses is not None or park is not None):
            raise usage("--max-pauses and --park are about batches", "give --max-dark N")
        with _computing("the search ends when --time-limit or the file's limit is over"):
            found = plan_state(state, request)
    else:
        with connect(ctx) as client:
            found = _make(client, request)
    if file is not None:
        save(found, file)
    print_answer(found, output, print_plan)
    if file is not None:
        out.message(
            f"saved to {file}" + ("" if state else f"; carry it out: lightloom apply {file}")
        )
    if detailed_exitcode and found["moves"]:
        raise typer.Exit(CHANGES_PENDING)


def apply(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A plan saved with --out; - reads stdin.")],
    *,
    max_dark: MaxDarkOption = None,
    max_pauses: MaxPausesOption = None,
    park: ParkOption = None,
    yes: YesOption = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end.")] = False,
    timeout_s: TimeoutOption = 600.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Carry out a saved plan, exactly as saved.

    Refused with exit code 6 when the fabric has changed since the plan was made. With --max-dark,
    or for a plan made with it, in batches: each is one transaction, and what is done stays if a
    later one cannot begin.
    """
    saved = _load(file)
    if not saved["moves"]:
        out.message("the plan has no moves; there is nothing to do")
        if output.structured:
            out.document(None, output)
        return
    if not yes and str(file) != "-" and sys.stdin.isatty():
        _ask(saved)
    batches = _batches(max_dark, max_pauses, park)
    with connect(ctx) as client:
        done = _carry_out(client, saved, timeout_s if wait else None, batches)
    print_answer(done, output, _print)
    _judge(done)


def defrag(
    ctx: typer.Context,
    *,
    job: JobOption = None,
    max_jobs_paused: MaxPausedOption = None,
    max_moves: MaxMovesOption = None,
    objective: ObjectiveOption = None,
    time_limit_s: TimeLimitOption = None,
    force: ForceOption = False,
    max_dark: MaxDarkOption = None,
    max_pauses: MaxPausesOption = None,
    park: ParkOption = None,
    yes: YesOption = False,
    timeout_s: TimeoutOption = 600.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Plan a regroup, carry it out and wait for its end.

    -o json prints {"plan", "transaction"}, or {"plan", "rollout"} for a plan in batches; null when
    the plan has no moves.
    """
    if not yes and not sys.stdin.isatty():
        raise usage("defrag moves light of running jobs", "add --yes, or confirm at a terminal")
    request = _request(job, max_jobs_paused, max_moves, objective, time_limit_s, force=force)
    request |= _batches(max_dark, max_pauses, park)
    done: Document | None = None
    with connect(ctx) as client:
        made = _make(client, request)
        if not output.structured:
            print_plan(made)
        if made["moves"]:
            if not yes:
                _ask(made)
            done = _carry_out(client, made, timeout_s, {})
    if output.structured:
        carrier = "rollout" if made.get("batches") else "transaction"
        out.document({"plan": made, carrier: done}, output)
    elif done is not None:
        _print(done)
    if done is not None:
        _judge(done)


def _request(
    job: str | None,
    max_jobs_paused: int | None,
    max_moves: int | None,
    objective: Objective | None,
    time_limit_s: float | None,
    *,
    force: bool,
) -> Document:
    given: Document = {
        "job": job.removeprefix("job/") if job else None,
        "max_jobs_paused": max_jobs_paused,
        "max_moves": max_moves,
        "objective": objective and objective.value,
        "time_limit_s": time_limit_s,
        "force": force or None,
    }
    return {key: value for key, value in given.items() if value is not None}


def _batches(max_dark: int | None, max_pauses: int | None, park: bool | None) -> Document:
    given = {"max_dark": max_dark, "max_pauses": max_pauses, "park": park}
    return {key: value for key, value in given.items() if value is not None}


def _make(client: ControllerClient, request: Document) -> Document:
    limit_s = request.get("time_limit_s", _SEARCH_S)
    with _computing(f"the search takes {figure(limit_s, 6)} s at most (--time-limit)"):
        return client.post("/plans", request, extra_s=limit_s + _LINE_S)


@contextmanager
def _computing(limit: str, what: str = "a plan") -> Iterator[None]:
    """Report on what the controller computes: after ``SLOW_S``, then from time to time."""
    began, over = clock.monotonic(), Event()

    def report() -> None:
        if over.wait(SLOW_S):
            return
        out.message(f"computing {what}: {limit}")
        while not over.wait(REPORT_EVERY_S):
            out.message(f"computing {what}: {clock.monotonic() - began:.0f} s so far")

    reporter = Thread(target=report, name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        over.set()
        reporter.join()


def _carry_out(
    client: ControllerClient, made: Document, timeout_s: float | None, batches: Document
) -> Document:
    """Begin to carry a plan out; with a time-out, report on it until it has ended."""
    if batches or made.get("batches"):
        return _roll_out(client, {"plan": made, **batches}, timeout_s)
    view = client.post("/transactions", {"plan": made}, extra_s=60.0)
    if timeout_s is None:
        return view
    with _goes_on("transaction", view):
        return _followed(client, view, timeout_s)


def _goes_on(carrier: str, view: Document) -> AbstractContextManager[None]:
    ident = view["id"]
    return goes_on(
        f"{carrier} {ident}",
        object=f"{carrier}/{ident}",
        hint=f"follow it: lightloom describe {carrier} {ident}; stop it: lightloom abort {ident}",
    )


def _followed(client: ControllerClient, view: Document, timeout_s: float) -> Document:
    """Report on a transaction until it has ended. CliError after the time-out."""
    deadline, phase = clock.monotonic() + timeout_s, ""
    while view["state"] in RUNNING:
        if view["phase"] != phase:
            phase = view["phase"]
            held = f", waiting for {view['waiting_for']}" if view.get("waiting_for") else ""
            out.message(f"{view['id']} {view['state']}: {phase}{held}")
        if clock.monotonic() > deadline:
            raise CliError(
                "timeout",
                f"transaction {view['id']} is in phase {phase} after {figure(timeout_s, 6)} s",
                object=f"transaction/{view['id']}",
                hint=f"it continues; lightloom describe transaction {view['id']}",
            )
        clock.sleep(_POLL_S)
        view = client.get(f"/transactions/{view['id']}")
    return view


def _roll_out(client: ControllerClient, request: Document, timeout_s: float | None) -> Document:
    """Begin a rollout; with a time-out, report its batches until it has ended."""
    with _computing("the search for their order is bounded as a plan's is", "the batches"):
        view = client.post("/rollouts", request, extra_s=60.0)
    if timeout_s is None:
        return view
    with _goes_on("rollout", view):
        return _followed_rollout(client, view, timeout_s)


def _followed_rollout(client: ControllerClient, view: Document, timeout_s: float) -> Document:
    """Report on a rollout until it has ended. CliError after the time-out."""
    deadline, told = clock.monotonic() + timeout_s, -1
    while view["state"] in ROLLING:
        begun = len(view["transactions"])
        if begun != told:
            told = begun
            at = f": {view['transactions'][-1]}" if begun else ""
            out.message(f"{view['id']} batch {view['done'] + 1} of {view['batches']}{at}")
        if clock.monotonic() > deadline:
            raise CliError(
                "timeout",
                f"rollout {view['id']} has done {view['done']} of {view['batches']} batches"
                f" after {figure(timeout_s, 6)} s",
                object=f"rollout/{view['id']}",
                hint=f"it continues; lightloom describe rollout {view['id']}, or stop it:"
                f" lightloom abort {view['id']}",
            )
        clock.sleep(_POLL_S)
        view = client.get(f"/rollouts/{view['id']}")
    return view


def _judge(view: Document) -> None:
    """Raise CliError when a transaction or a rollout ended without a commit."""
    if view["state"] in RUNNING | ROLLING or view["state"] == "committed":
        return
    if view["state"] == "stopped":
        raise CliError(
            "failed",
            f"rollout {view['id']} stopped: {view['result']}",
            object=f"rollout/{view['id']}",
            hint="what is done stays; make a new plan for the rest",
        )
    ports = view.get("quarantined_ports") or []
    raise CliError(
        "failed",
        f"transaction {view['id']} ended {view['state']}: {view.get('error') or view['result']}",
        object=f"transaction/{view['id']}",
        hint=f"quarantined: {', '.join(ports)}" if ports else "the fabric is as it was before",
    )


def _print(view: Document) -> None:
    if "transactions" in view:
        print_rollout(view)
    else:
        print_transaction(view)


def _ask(made: Document) -> None:
    moves, jobs = len(made["moves"]), made.get("jobs_paused") or []
    stalled = f", stalling {', '.join(jobs)} meanwhile" if jobs else ""
    if not typer.confirm(f"Move {moves} endpoint(s){stalled}?", default=False, err=True):
        raise CliError("failed", "not confirmed; nothing was changed")


def save(made: Document, file: Path) -> None:
    """Write a plan to a file that ``apply`` reads. CliError if that fails."""
    try:
        file.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise usage(f"{file} cannot be written: {error.strerror}") from None


def _load(file: Path) -> Document:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        saved = json.loads(text)
    except OSError as error:
        raise usage(f"{file} cannot be read: {error.strerror}") from None
    except ValueError:
        raise usage(f"{file} is not a saved plan", "make one: lightloom plan --out FILE") from None
    if not isinstance(saved, dict) or not isinstance(saved.get("moves"), list):
        raise usage(f"{file} is not a saved plan", "make one: lightloom plan --out FILE")
    if "epoch" not in saved:
        raise usage(
            f"{file} was planned from a state file, not from a live fabric",
            "plan without --state to get a plan that can be applied",
        )
    return saved
