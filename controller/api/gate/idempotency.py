"""``Idempotency-Key``: a repeated change is carried out once and answered twice.

A key is durable before its change begins, and the answer before the client gets it: a client that
repeats a request after a crash of the controller changes nothing twice. If the answer was lost in
the crash, the client gets an error that asks it to check the object. Answers are limited in
number, size and age; the caller with most of them loses the oldest first. A key belongs to one
caller. Of an answer that must not be stored (``Cache-Control: no-store``: a token's secret) only
the status is kept.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from base import clock
from controller.api.problems import from_http, from_service, problem
from controller.base.errors import ServiceError
from controller.people.authz import Principal
from controller.state.writes import CALLER_CHARS, Body, DropAnswer, KeptAnswer, PutAnswer

log = structlog.get_logger(__name__)

KEPT = 10_000
KEPT_S = 24 * 3600.0
KEPT_BYTES = 64 * 2**20
MAX_KEY = 200
KEY_PATTERN = "[!-~]+"
"""Visible ASCII."""
MAX_ANSWER_BYTES = 2**20
TIMEOUT = 504
STALE = 412
"""The fabric was not at the required epoch: nothing was done."""


class AnswerStore(Protocol):
    """Keeps answers. ServiceError."""

    async def answer(self, ident: str) -> KeptAnswer | None:
        """Return what is kept under an id."""

    async def commit(self, *writes: Body) -> None:
        """Make all ``writes`` durable together."""

    async def record(self, *writes: Body) -> None:
        """Make ``writes`` durable now, or later if the store fails."""


class AnswersInMemory:
    """Keeps answers in memory, for an API without a store."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptAnswer] = {}

    async def answer(self, ident: str) -> KeptAnswer | None:
        """Return what is kept under an id."""
        return self._kept.get(ident)

    async def commit(self, *writes: Body) -> None:
        """Keep or drop answers."""
        for write in writes:
            match write:
                case PutAnswer(answer=answer):
                    self._kept[answer.id] = answer
                case DropAnswer(id=ident):
                    self._kept.pop(ident, None)

    async def record(self, *writes: Body) -> None:
        """Keep or drop answers."""
        await self.commit(*writes)


@dataclass(slots=True)
class _Under:
    """One request in progress, and its answer when there is one."""

    key: str
    ident: str
    """Digest of caller and key."""
    print: str
    """Digest of the request."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[Message] = field(default_factory=list)


class KeyedAnswers:
    """The answers of the last day."""

    def __init__(self, answers: AnswerStore, clock: Callable[[], float] = clock.time) -> None:
        self._store = answers
        self._clock = clock
        self._under_way: dict[str, _Under] = {}

    async def serve(
        self,
        app: ASGIApp,
        asgi: tuple[Scope, Receive, Send],
        principal: Principal,
        key: str | None,
    ) -> JSONResponse | None:
        """Make the change, or repeat its answer. Returns a refusal instead, if there is one.

        ``app`` gets the whole body at once; without a ``key`` no answer is kept or repeated.
        """
        if key is not None and not (0 < len(key) <= MAX_KEY and re.fullmatch(KEY_PATTERN, key)):
            return problem(
                422, "invalid", f"an Idempotency-Key has 1 to {MAX_KEY} visible ASCII characters"
            )
        scope, receive, send = asgi
        try:
            body = await _read(receive)
        except HTTPException as error:
            return from_http(scope["method"], scope["path"], error)
        if key is None:
            await app(scope, _given(body, receive), send)
            return None
        asked = _digest(scope["method"].encode(), scope["path"].encode(), scope["query_string"])
        asked = _digest(asked.encode(), body)
        mine = _digest((principal.token or principal.name).encode(), key.encode())
        ident = _digest(principal.name.encode())[:CALLER_CHARS] + mine[CALLER_CHARS:]
        under = self._under_way.get(ident)
        if under is not None:
            return await self._together(under, asked, send)
        under = self._under_way[ident] = _Under(key, ident, asked)
        try:
            return await self._alone(app, (scope, send), body, under)
        except ServiceError as error:
            return from_service(error)
        finally:
            del self._under_way[ident]
            under.done.set()

    @staticmethod
    async def _together(under: _Under, asked: str, send: Send) -> JSONResponse | None:
        """Wait for the same request, which is in progress, and repeat its answer."""
        if under.print != asked:
            return _used(under.key)
        await under.done.wait()
        if not under.messages:
            return problem(
                409,
                "conflict",
                "the first request with this key was not answered",
                object=f"key/{under.key}",
                hint="send it again",
            )
        for message in under.messages:
            await send(message)
        return None

    async def _alone(
        self, app: ASGIApp, asgi: tuple[Scope, Send], body: bytes, under: _Under
    ) -> JSONResponse | None:
        """Make the change unless it was made before. ServiceError if the store fails."""
        scope, send = asgi
        now = self._clock()
        kept = await self._store.answer(under.ident)
        if kept is not None and kept.at >= now - KEPT_S:
            return await _again(kept, under, scope, send)
        begun = KeptAnswer(under.ident, under.print, now)
        await self._store.commit(self._put(begun))
        try:
            await _first(app, scope, body, send, under)
        except Exception:
            await self._finish(begun, [])  # a defect, answered 500; the key may be used again
            raise
        await self._finish(begun, under.messages)
        return None

    async def _finish(self, begun: KeptAnswer, messages: list[Message]) -> None:
        """Keep the answer. If it decides nothing, the key may be used again."""
        ended = answered(begun, messages)
        try:
            # A time-out decides nothing either, but its change continues.
            status = ended.status
            undecided = status in (None, STALE) or (status >= 500 and status != TIMEOUT)
            await self._store.record(DropAnswer(begun.id) if undecided else self._put(ended))
        except ServiceError as error:  # the change was made; a repetition is refused
            log.error("answer_not_kept", error=error.message)

    def _put(self, answer: KeptAnswer) -> PutAnswer:
        return PutAnswer(answer, self._clock() - KEPT_S, KEPT, KEPT_BYTES)


def answered(begun: KeptAnswer, messages: list[Message]) -> KeptAnswer:
    """Return what to keep of an answer: not its body if that is too long or secret."""
    if not messages:
        return begun
    raw = messages[0].get("headers", ())
    headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in raw)
    body = b"".join(message.get("body", b"") for message in messages[1:])
    secret = any(n.lower() == "cache-control" and "no-store" in v for n, v in headers)
    unkept = secret or len(body) > MAX_ANSWER_BYTES
    return replace(
        begun,
        status=int(messages[0]["status"]),
        headers=() if unkept else headers,
        body=None if unkept else body,
    )


async def _again(kept: KeptAnswer, under: _Under, scope: Scope, send: Send) -> JSONResponse | None:
    """Answer a request whose key was used before, also before a restart."""
    where = scope["path"]
    if kept.print != under.print:
        return _used(under.key)
    if kept.status is None:
        return problem(
            409,
            "conflict",
            "the controller ended during the first request with this key:"
            " whether it was carried out is unknown",
            object=where.strip("/"),
            hint=f"check {where}, then send what is still missing with a new key",
        )
    if kept.body is None:
        return problem(
            409,
            "conflict",
            f"the first request with this key was answered {kept.status};"
            " its answer was secret or too long to keep",
            object=where.strip("/"),
            hint=f"check {where}",
        )
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept.headers]
    under.messages += [
        {"type": "http.response.start", "status": kept.status, "headers": raw},
        {"type": "http.response.body", "body": kept.body},
    ]
    for message in under.messages:
        await send(message)
    return None


def _used(key: str) -> JSONResponse:
    return problem(
        409,
        "conflict",
        "this Idempotency-Key was used for another request",
        object=f"key/{key}",
        hint="use a new key for a new request",
    )


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


async def _first(app: ASGIApp, scope: Scope, body: bytes, send: Send, under: _Under) -> None:
    """Make the change and keep its answer; the client's disconnect does not end it."""

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def keeping(message: Message) -> None:
        under.messages.append(message)
        await send(message)

    await app(scope, _given(body, never), keeping)


def _given(body: bytes, then: Receive) -> Receive:
    """Return a ``receive`` with a body that has arrived, then that of ``then``."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            return await then()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


async def _read(receive: Receive) -> bytes:
    """Read the whole body; its size is limited before. HTTPException if it does not arrive.

    An incomplete body is a different request: the key must not stand for it.
    """
    pieces: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HTTPException(400, "the request's body is incomplete")
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)
