"""Commands in running ranks: which may run, where, and what their errors mean for users."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from agentlink.values import Typed, WindowSize
from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, ExecEnd, ExecOutput, ExecStart, ExecutionEngine
from controller.ranks.calls import refusal
from controller.schema.execs import ExecRequest
from controller.state.records import JobRecord
from controller.state.state import State
from scheduler.model import Policy


def start_of(state: State, job: JobRecord, request: ExecRequest) -> ExecStart:
    """Return the command as its server gets it. ServiceError when it cannot run now."""
    state.require_command()
    name, rank = job.name, request.rank
    size = len(job.endpoints) or job.request.count
    if rank >= size:
        raise ServiceError(
            "not_found",
            f"job {name} has ranks 0 to {size - 1}",
            object=f"job/{name}/rank/{rank}",
            hint="choose one with --rank",
        )
    if job.state == "paused":
        raise _refused(name, "it is paused", f"resume it first: lightloom resume {name}")
    moving = state.transactions.of_job(name)
    if moving is not None and job.request.policy is not Policy.LIVE:
        raise _refused(
            name, f"it is frozen by transaction {moving.tx.id}", "try again when that has ended"
        )
    if job.state != "running":
        raise _refused(name, f"it is {job.state}, not running", f"lightloom describe job {name}")
    cable = state.cables.get(job.endpoints[rank])
    if cable is None:
        raise _refused(name, f"the site has no endpoint {job.endpoints[rank]} any more", "")
    window = request.window
    return ExecStart(
        job=name,
        rank=rank,
        epoch=job.epoch,
        server=cable.server,
        command=tuple(request.command),
        idle_s=request.idle_s,
        total_s=request.total_s,
        terminal=request.terminal,
        window=None if window is None else WindowSize(window.rows, window.columns),
    )


def check_run(prepared: JobRecord, job: JobRecord) -> None:
    """Refuse a command that was prepared for another run, or for another job of this name.

    ServiceError ``conflict``.
    """
    if (prepared.submitted_at, prepared.epoch) != (job.submitted_at, job.epoch):
        raise _refused(
            job.name,
            "the run that it was prepared for has ended",
            f"lightloom describe job {job.name} shows its present run; prepare the command again",
        )


async def run(
    engine: ExecutionEngine, start: ExecStart, given: AsyncIterator[Typed | WindowSize]
) -> AsyncGenerator[ExecOutput | ExecEnd]:
    """Run a command; the last item is its end. ServiceError."""
    try:
        async with aclosing(engine.exec(start, given)) as pieces:
            async for piece in pieces:
                yield piece
    except EngineError as error:
        raise refusal(start.job, error) from error


def _refused(name: str, why: str, hint: str) -> ServiceError:
    return ServiceError(
        "conflict",
        f"no command can run in job {name}: {why}",
        object=f"job/{name}",
        hint=hint,
    )
