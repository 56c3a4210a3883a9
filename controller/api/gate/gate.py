"""Checks every request before its route: sender, rights, rate, epoch; writes the audit record.

One ASGI middleware, so that a request is checked before any of its body is read. Order: origin,
token, rate limit, verb, ``X-Lightloom`` on changes by cookie; then, with the whole body, the
``Idempotency-Key``, whether the change can be recorded, ``If-Match``; after the answer the audit
record. ``scope`` checks the owner of an object, where the object is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from base import clock
from controller.api.gate.access import PAGE_HEADER, Access, Admitted, Caller
from controller.api.gate.idempotency import KeyedAnswers
from controller.api.gate.origins import Origins
from controller.api.gate.pace import RateLimit
from controller.api.gate.rules import SAFE_METHODS, Matched, RouteTable
from controller.api.problems import from_service, problem
from controller.base.errors import ServiceError
from controller.people.audit_record import AuditRecord, clipped
from controller.people.authz import Authorisation, authorise

_TAG = re.compile(r'"?([0-9]{1,18})"?')
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="lightloom"'}


@dataclass(slots=True, frozen=True)
class _Asked:
    """One request, its caller and its operation."""

    scope: Scope
    access: Access
    caller: Caller | None
    matched: Matched | None

    @property
    def changes(self) -> bool:
        """Whether the request may change something."""
        return self.scope["method"] not in SAFE_METHODS

    @property
    def begins(self) -> bool:
        """Whether it is a change of its own, not a part of one that was recorded before."""
        return self.changes and (self.matched is None or not self.matched.continuing)

    @property
    def body_bytes(self) -> int:
        """Size of the body; the guard refuses one that comes without its length."""
        return int(Headers(scope=self.scope).get("content-length", "0"))

    @property
    def address(self) -> str:
        """The sender's address."""
        return _address(self.scope)


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else ""


def _foreign() -> JSONResponse:
    return problem(
        403,
        "forbidden",
        "requests from pages of another origin are refused",
        object="origin",
        hint="allowed are pages of loopback, of the names in the certificate and of --public-url",
    )


def _misdirected() -> JSONResponse:
    return problem(
        421,
        "forbidden",
        "without tokens the controller answers only under its own names",
        object="host",
        hint="use localhost or 127.0.0.1, or add the host with --public-url",
    )


class RequestGate:
    """Checks every request to ``prefix`` and to the operations of ``table``."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        owner: Any,
        table: RouteTable,
        prefix: str,
        rate_limit: RateLimit,
        answers: KeyedAnswers,
        origins: Origins,
    ) -> None:
        """``owner`` is the application, whose state holds the desks and the access."""
        self._app = app
        self._owner = owner
        self._table = table
        self._prefix = prefix
        self._rate_limit = rate_limit
        self._answers = answers
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        matched = self._table.find(scope["method"], scope["path"])
        began = clock.monotonic()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                name = matched.name if matched else "none"
                seconds = clock.monotonic() - began
                self._owner.state.counters.request(name, message["status"], seconds)
            await send(message)

        await self._serve(matched, scope, receive, counting)

    async def _serve(
        self, matched: Matched | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if matched is None and self._is_file(scope["path"]):
            late = self._rate_limit.public(_address(scope))
            await (late or self._app)(scope, receive, send)
            return
        access: Access = self._owner.state.access
        asked = _Asked(scope, access, access.caller(Headers(scope=scope)), matched)
        refused = self._check(asked)
        if refused is not None:
            self._note(asked, refused.status_code)
            await refused(scope, receive, send)
            return
        name = matched.name if matched else ""
        scope.setdefault("state", {})["admitted"] = Admitted(asked.caller, name)
        if matched is not None and matched.verb is not None and asked.begins:
            await self._change(asked, receive, send)
        else:
            await self._read(asked, receive, send)

    async def _read(self, asked: _Asked, receive: Receive, send: Send) -> None:
        """Pass on a read or a sign-in; record refusals, and every sign-in."""
        signs_in = asked.matched is not None and asked.matched.verb is None and asked.changes

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                if signs_in or status in (401, 403):
                    self._note(asked, status)
            await send(message)

        await self._app(asked.scope, receive, noting)

    def _is_file(self, path: str) -> bool:
        """Whether a path is outside the API: a file of the console, or unknown."""
        return not path.startswith(self._prefix + "/")

    def _check(self, asked: _Asked) -> JSONResponse | None:
        """Return the refusal of a request, None if it may pass."""
        if asked.changes and not self._own_page(asked.scope):
            return self._rate_limit.public(asked.address) or _foreign()
        if asked.matched is not None and asked.matched.verb is None:
            return self._check_public(asked)
        if asked.access.accounts is None and not self._known_host(asked.scope):
            return _misdirected()
        if asked.caller is None:
            return self._unidentified(asked)
        if asked.begins:
            late = self._rate_limit.change(asked.caller.principal, asked.body_bytes)
        else:
            late = self._rate_limit.read(asked.caller.principal)
        return late or self._check_caller(asked, asked.caller, asked.matched)

    def _check_caller(
        self, asked: _Asked, caller: Caller, matched: Matched | None
    ) -> JSONResponse | None:
        if matched is None:
            return self._wrong_method(asked.scope)
        verb = matched.verb or ""
        if authorise(caller.principal, verb) is not Authorisation.ALLOWED:
            return problem(
                403,
                "forbidden",
                f"the role {caller.principal.role} may not do this ({verb})",
                object=f"verb/{verb}",
                hint="ask an admin of the site; GET /api/v1/whoami lists what you may do",
            )
        return self._check_change(asked, caller) if asked.changes else None

    def _own_page(self, scope: Scope) -> bool:
        """Whether a change comes from a program or from one of the controller's own pages."""
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        return origin is None or self._origins.own(origin, headers.get("host", ""))

    def _known_host(self, scope: Scope) -> bool:
        """Whether a request names the controller in ``Host``.

        Checked without tokens: a page whose name was made to resolve to this machine (DNS
        rebinding) sends no ``Origin`` with its reads.
        """
        host = Headers(scope=scope).get("host")
        return host is None or self._origins.known(host)

    def _check_public(self, asked: _Asked) -> JSONResponse | None:
        """Check an operation without a token. A sign-in counts like a wrong token."""
        late = self._rate_limit.public(asked.address)
        if late is None and asked.scope["method"] == "POST":
            late = self._rate_limit.failed(asked.address)
        return late

    def _wrong_method(self, scope: Scope) -> JSONResponse | None:
        """Return the refusal of a method that a path does not have, None for unknown paths."""
        path = scope["path"]
        methods = self._table.methods(path)
        if not methods:
            return None
        return problem(
            405,
            "invalid",
            f"{scope['method']} is not supported at {path}",
            object=path,
            hint="routes are listed in /api/v1/openapi.json",
            headers={"Allow": ", ".join(sorted(methods))},
        )

    def _check_change(self, asked: _Asked, caller: Caller) -> JSONResponse | None:
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
        if _TAG.fullmatch(wanted.strip()) is None:
            return problem(422, "invalid", 'If-Match is an epoch in quotes: "42"')
        return None

    async def _prevented(self, asked: _Asked) -> JSONResponse | None:
        """Return why a change is refused after its body arrived: epoch or audit trail.

        Nothing is awaited between the check of the epoch and the route.
        """
        if asked.access.audit is not None:
            try:
                await asked.access.audit.ready()
            except ServiceError as error:
                return from_service(error)
        wanted = Headers(scope=asked.scope).get("if-match")
        epoch = self._owner.state.desks.epoch
        tag = _TAG.fullmatch(wanted.strip()) if wanted is not None else None
        if tag is None or int(tag.group(1)) == epoch:
            return None
        return problem(
            412,
            "conflict",
            f"the fabric is at epoch {epoch}, not at {tag.group(1)}",
            object=f"epoch/{epoch}",
            hint="read the state again, then decide",
        )

    def _unidentified(self, asked: _Asked) -> JSONResponse:
        late = self._rate_limit.failed(asked.address)
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
        """Pass on a change, and record its outcome before the client gets the answer."""
        assert asked.caller is not None  # noqa: S101 - a verb needs a caller
        before = self._owner.state.desks.epoch
        held: list[Message] = []
        status = 500
        prevented: JSONResponse | None = None
        unrecorded: JSONResponse | None = None

        async def carried_out(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal prevented
            prevented = await self._prevented(asked)
            await (prevented or self._app)(scope, receive, send)

        async def holding(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            held.append(message)

        scope = asked.scope
        key = Headers(scope=scope).get("idempotency-key")
        try:
            asgi = (scope, receive, holding)
            refused = await self._answers.serve(carried_out, asgi, asked.caller.principal, key)
            if refused is not None:
                await refused(scope, receive, holding)
        finally:
            if prevented is not None:
                self._note(asked, status)
            else:
                unrecorded = await self._record(asked, status, before)
        if unrecorded is not None:
            await unrecorded(scope, receive, send)
            return
        for message in held:
            await send(message)

    async def _record(self, asked: _Asked, status: int, before: int) -> JSONResponse | None:
        """Append to the audit trail; return the answer if that fails."""
        if asked.access.audit is None:
            return None
        try:
            await asked.access.audit.append(self._as_record(asked, status, before))
        except ServiceError as error:
            return from_service(error)
        return None

    def _note(self, asked: _Asked, status: int) -> None:
        """Record a refusal or a sign-in."""
        audit = asked.access.audit
        if audit is not None:
            audit.note(self._as_record(asked, status, self._owner.state.desks.epoch))

    def _as_record(self, asked: _Asked, status: int, before: int) -> AuditRecord:
        matched = asked.matched
        caller = asked.scope.get("state", {}).get("signed_in") or asked.caller
        principal = caller.principal if caller is not None else None
        return AuditRecord(
            seq=0,
            time=asked.access.clock(),
            actor=principal.name if principal else "",
            role=principal.role.value if principal else "",
            token=principal.token if principal else "",
            remote=clipped(asked.address),
            verb=(matched.verb or "") if matched else "",
            action=matched.name if matched else "",
            object=clipped("/".join(matched.params.values())) if matched else "",
            outcome=status,
            epoch_before=before,
            epoch_after=self._owner.state.desks.epoch,
            detail=clipped(asked.scope.get("state", {}).get("detail", "")),
        )
