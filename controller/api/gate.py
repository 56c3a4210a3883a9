"""What stands before every operation: who asks, may they, how often, since when, and the record.

One ASGI middleware, so that a request is judged before anything of its body is read. Order:
token, verb, pace, ``X-Lightloom`` on changes by cookie, ``If-Match``, ``Idempotency-Key``; after
the answer the audit record. Whose object it is, is judged where the object is known (``scoped``).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.api.access import PAGE_HEADER, Access, Admitted, Caller
from controller.api.idempotency import KeyedAnswers
from controller.api.pace import Pace
from controller.api.problems import from_service, problem
from controller.api.rules import Matched, RouteTable
from controller.audit import Record, clipped
from controller.authz import Verdict, authorise
from controller.errors import ServiceError

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_TAG = re.compile(r'"?([0-9]{1,18})"?')
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="lightloom"'}


@dataclass(slots=True, frozen=True)
class _Asked:
    """One request, its sender and the operation it asks for."""

    scope: Scope
    access: Access
    caller: Caller | None
    matched: Matched | None

    @property
    def changes(self) -> bool:
        """Whether it is no mere look."""
        return self.scope["method"] not in SAFE_METHODS

    @property
    def address(self) -> str:
        """The sender's address."""
        return _address(self.scope)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


class Gate:
    """Judges every request to ``prefix`` and to the operations of ``table``."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        owner: Any,
        table: RouteTable,
        prefix: str,
        pace: Pace,
        answers: KeyedAnswers,
    ) -> None:
        """``owner`` is the application, whose state holds the service and the access."""
        self._app = app
        self._owner = owner
        self._table = table
        self._prefix = prefix
        self._pace = pace
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        matched = self._table.find(scope["method"], scope["path"])
        began = time.monotonic()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                name = matched.name if matched else "none"
                seconds = time.monotonic() - began
                self._owner.state.tally.request(name, message["status"], seconds)
            await send(message)

        await self._serve(matched, scope, receive, counting)

    async def _serve(
        self, matched: Matched | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if matched is None and self._is_file(scope["path"]):
            late = self._pace.public(_address(scope))
            await (late or self._app)(scope, receive, send)
            return
        access: Access = self._owner.state.access
        asked = _Asked(scope, access, access.caller(Headers(scope=scope)), matched)
        refused = self._judge(asked)
        if refused is not None:
            if asked.caller is not None and matched is not None and asked.changes:
                refused = await self._record(asked, refused.status_code) or refused
            await refused(scope, receive, send)
            return
        name = matched.name if matched else ""
        scope.setdefault("state", {})["admitted"] = Admitted(asked.caller, name)
        if matched is None or matched.verb is None or not asked.changes:
            await self._app(scope, receive, send)
        else:
            await self._change(asked, receive, send)

    def _is_file(self, path: str) -> bool:
        """Whether a path is one of the console's files, or nothing at all."""
        return not path.startswith(self._prefix + "/")

    def _judge(self, asked: _Asked) -> JSONResponse | None:
        """Return the refusal of a request, None when it may go on."""
        caller, matched = asked.caller, asked.matched
        if matched is not None and matched.verb is None:
            return self._judge_public(asked)
        if caller is None:
            return self._stranger(asked)
        late = self._pace.check(caller.principal, asked.scope["method"])
        if late is not None:
            return late
        if matched is None:
            return self._nothing(asked.scope)
        verb = matched.verb or ""
        if authorise(caller.principal, verb) is not Verdict.ALLOWED:
            return problem(
                403,
                "forbidden",
                f"a {caller.principal.role} may not do this ({verb})",
                object=f"verb/{verb}",
                hint="ask an admin of the site; see GET /api/v1/whoami for what you may do",
            )
        return self._judge_change(asked, caller) if asked.changes else None

    def _judge_public(self, asked: _Asked) -> JSONResponse | None:
        """Judge what needs no token. A sign-in tries one, so it is counted as a wrong token is."""
        late = self._pace.public(asked.address)
        if late is None and asked.scope["method"] == "POST":
            late = self._pace.failed(asked.address)
        return late

    def _nothing(self, scope: Scope) -> JSONResponse | None:
        """Answer for a method that a path does not have; unknown paths are the application's."""
        path = scope["path"]
        methods = self._table.methods(path)
        if not methods:
            return None
        return problem(
            405,
            "invalid",
            f"{scope['method']} is not possible at {path}",
            object=path,
            hint="routes are listed in /api/v1/openapi.json",
            headers={"Allow": ", ".join(sorted(methods))},
        )

    def _judge_change(self, asked: _Asked, caller: Caller) -> JSONResponse | None:
        headers = Headers(scope=asked.scope)
        if caller.way == "cookie" and PAGE_HEADER not in headers:
            return problem(
                403,
                "forbidden",
                "a change with a session cookie needs the header X-Lightloom: 1",
                hint="only the console's own pages send it",
            )
        wanted = headers.get("if-match")
        if wanted is None:
            return None
        epoch = self._owner.state.service.epoch
        tag = _TAG.fullmatch(wanted.strip())
        if tag is None:
            return problem(422, "invalid", 'If-Match is an epoch in quotes: "42"')
        if int(tag.group(1)) == epoch:
            return None
        return problem(
            412,
            "conflict",
            f"the fabric is at epoch {epoch}, not at {tag.group(1)}",
            object=f"epoch/{epoch}",
            hint="look again, then decide again",
        )

    def _stranger(self, asked: _Asked) -> JSONResponse:
        late = self._pace.failed(asked.address)
        if late is not None:
            return late
        return problem(
            401,
            "forbidden",
            "this needs a valid token",
            hint="lightloom --token TOKEN, LIGHTLOOM_TOKEN, or log in; "
            "an admin makes tokens with `lightloom token create`",
            headers=_CHALLENGE,
        )

    async def _change(self, asked: _Asked, receive: Receive, send: Send) -> None:
        """Let a change through, and record how it ended before the client hears of it."""
        assert asked.caller is not None  # noqa: S101 - a verb is never done by nobody
        before = self._owner.state.service.epoch
        held: list[Message] = []
        status = 500

        async def holding(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            held.append(message)

        scope = asked.scope
        key = Headers(scope=scope).get("idempotency-key")
        try:
            if key is None:
                await self._app(scope, receive, holding)
            else:
                asgi = (scope, receive, holding)
                refused = await self._answers.serve(self._app, asgi, asked.caller.principal, key)
                if refused is not None:
                    await refused(scope, receive, holding)
        finally:
            unrecorded = await self._record(asked, status, before)
        if unrecorded is not None:
            await unrecorded(scope, receive, send)
            return
        for message in held:
            await send(message)

    async def _record(
        self, asked: _Asked, status: int, before: int | None = None
    ) -> JSONResponse | None:
        """Append to the audit trail; return what to answer when that was not possible."""
        audit, caller, matched = asked.access.audit, asked.caller, asked.matched
        if audit is None or caller is None or matched is None:
            return None
        epoch = self._owner.state.service.epoch
        record = Record(
            seq=0,
            time=asked.access.clock(),
            actor=caller.principal.name,
            role=caller.principal.role.value,
            token=caller.principal.token,
            remote=asked.address,
            verb=matched.verb or "",
            action=matched.name,
            object=clipped("/".join(matched.params.values())),
            outcome=status,
            epoch_before=epoch if before is None else before,
            epoch_after=epoch,
        )
        try:
            await audit.append(record)
        except ServiceError as error:
            return from_service(error)
        return None
