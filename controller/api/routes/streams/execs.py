"""Routes for commands in running ranks: prepare one, open its output, send its input."""

from __future__ import annotations

import asyncio
import base64
import shlex
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Path, Request, status
from fastapi.responses import StreamingResponse

from agentlink.values import Typed, WindowSize
from base import clock
from controller.api.common import (
    CHANGE_S,
    READ_S,
    CallerOf,
    DesksOf,
    Entrance,
    EpochOf,
    Name,
    SightOf,
)
from controller.api.deadlines import within
from controller.api.executing import OPEN_S, ExecSession, Pieces, Sessions
from controller.api.following import Following
from controller.api.gate.access import Access
from controller.api.operation import KIB, operation
from controller.api.problems import from_service, responses
from controller.base.errors import ServiceError
from controller.devices.engine import ExecEnd
from controller.people.audit_record import AuditRecord, clipped
from controller.schema.execs import (
    ExecEndView,
    ExecInputRequest,
    ExecInputView,
    ExecOutputView,
    ExecRequest,
    ExecView,
)

router = APIRouter(prefix="/jobs/{name}/exec", tags=["jobs"], responses=responses("unavailable"))
LINES = "application/x-ndjson"
PING_S = 15.0
"""Longest silence of an output, so that a caller who vanished is noticed."""
PING = b"\n"
_SHOWN_ID = 8
"""Digits of a command's id in the audit trail: enough to find its end."""


async def _sessions(request: Request) -> Sessions:
    return cast(Sessions, request.app.state.sessions)


SessionsOf = Annotated[Sessions, Depends(_sessions)]
Ident = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="a command's id")]


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    responses=responses("forbidden", "not_found", "conflict"),
)
@operation("jobs:exec", body=128 * KIB)
async def prepare_exec(
    request: Request,
    desks: DesksOf,
    sight: SightOf,
    sessions: SessionsOf,
    caller: CallerOf,
    *,
    name: Name,
    body: ExecRequest,
) -> ExecView:
    """Prepare a command in one rank; it begins when its output is opened."""
    request.state.detail = _asked(body)

    async def begin(given: AsyncIterator[Typed | WindowSize]) -> Pieces:
        return await sight.of_job(name, partial(desks.jobs.exec, request=body, given=given))

    session = await within(
        CHANGE_S,
        f"job/{name}/exec",
        sessions.prepare(caller, name, body, begin),
    )
    request.state.detail = f"{session.id[:_SHOWN_ID]}: {_asked(body)}"
    return ExecView(id=session.id, job=name, rank=body.rank, open_s=OPEN_S)


def _asked(body: ExecRequest) -> str:
    words = shlex.join(body.command)
    return clipped(f"rank {body.rank}, {len(words)} characters: {words}")


@router.get(
    "/{ident}",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One JSON document per line: ExecOutputView, and at the end ExecEndView "
            "or a problem. Empty lines keep the connection open.",
            "content": {LINES: {"schema": {"type": "string"}}},
        },
        **responses("not_found", "conflict"),
    },
)
@operation("jobs:exec")
async def stream_exec(
    request: Request,
    epoch: EpochOf,
    sessions: SessionsOf,
    caller: CallerOf,
    *,
    enter: Entrance,
    name: Name,
    ident: Ident,
) -> Following:
    """Begin a prepared command and stream its output. It is ended when this request ends."""
    place = enter()
    try:
        session = sessions.open(caller, name, ident)
    except ServiceError:
        place.leave(place)
        raise
    access = cast(Access, request.app.state.access)
    remote = request.client.host if request.client else ""
    began = clock.monotonic()

    def ended() -> None:
        sessions.close(session)
        if access.audit is not None:
            how = f"{session.id[:_SHOWN_ID]}: {session.how} after {clock.monotonic() - began:.1f} s"
            access.audit.record_outcome(
                _record(session, access.clock(), epoch(), remote, clipped(how))
            )

    return Following(_json_lines(session), media_type=LINES, place=place, close=ended)


def _record(session: ExecSession, now: float, epoch: int, remote: str, detail: str) -> AuditRecord:
    principal = session.caller.principal
    return AuditRecord(
        seq=0,
        time=now,
        actor=principal.name,
        role=principal.role.value,
        token=principal.token,
        remote=remote,
        verb="jobs:exec",
        action="end_exec",
        object=session.job,
        outcome=status.HTTP_200_OK,
        epoch_before=epoch,
        epoch_after=epoch,
        detail=detail,
    )


async def _json_lines(session: ExecSession) -> AsyncGenerator[bytes]:
    """Encode a command's output, and note how it ended."""
    pieces, waiting = session.pieces, None
    try:
        while True:
            waiting = waiting or asyncio.ensure_future(anext(pieces))
            if not (await asyncio.wait({waiting}, timeout=PING_S))[0]:
                yield PING
                continue
            piece, waiting = waiting.result(), None
            if isinstance(piece, ExecEnd):
                session.how = piece.reason or f"exit code {piece.exit_code}"
                end = ExecEndView(exit_code=piece.exit_code, reason=piece.reason)
                yield end.model_dump_json().encode() + b"\n"
                return
            data = base64.b64encode(piece.data).decode()
            view = ExecOutputView(stream=piece.stream, data=data)
            yield view.model_dump_json().encode() + b"\n"
    except ServiceError as error:
        session.how = error.message
        yield bytes(from_service(error).body) + b"\n"
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await pieces.aclose()


@router.post("/{ident}/input", responses=responses("forbidden", "not_found", "conflict"))
@operation("jobs:exec", body=72 * KIB, continuing=True)
async def send_exec_input(
    sessions: SessionsOf, caller: CallerOf, name: Name, ident: Ident, body: ExecInputRequest
) -> ExecInputView:
    """Send input to a command. After a time-out the same request may be repeated."""
    session = sessions.find(caller, name, ident)
    return ExecInputView(next=await within(READ_S, f"job/{name}/exec", session.send(body)))
