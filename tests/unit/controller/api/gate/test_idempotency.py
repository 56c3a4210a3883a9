"""Changes with a key: made once, over restarts of the controller too."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from starlette.types import Message

from controller.api.gate import idempotency
from controller.api.gate.access import Access
from controller.api.gate.idempotency import (
    KEPT,
    KEPT_S,
    MAX_ANSWER_BYTES,
    AnswersInMemory,
    answered,
)
from controller.api.operation import KIB
from controller.base.errors import ServiceError
from controller.state.events import EventLog
from controller.state.journal import Journal
from controller.state.writes import KeptAnswer, PutAnswer, Write
from controller.store.store import Store
from controller.usage.ledger import UsageLedger
from tests.parts.api.apps import app_of
from tests.parts.api.desks import answer, never, restore
from tests.parts.api.people import people_site
from tests.parts.controller.rack import Rack

BODY = {"count": 1, "name": "once"}
KEYED = {"Idempotency-Key": "k-1"}


@asynccontextmanager
async def life(store_file: Path, rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    """One life of the controller; its store outlives it."""
    store = Store(store_file)
    await store.load()
    answers = Journal(store, EventLog(lambda: 0.0, lambda: 0), lambda _: None, UsageLedger())
    transport = httpx.ASGITransport(
        app=app_of(rack.service, answers=answers), raise_app_exceptions=False
    )
    try:
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1/api/v1"
        ) as client:
            yield client
    finally:
        await store.close()


async def test_a_repetition_after_a_restart_is_answered_as_before(
    tmp_path: Path, rack: Rack
) -> None:
    async with life(tmp_path / "s.sqlite", rack) as client:
        first = await client.post("/jobs", json=BODY, headers=KEYED)
        assert first.status_code == 201
    async with life(tmp_path / "s.sqlite", rack) as client:
        again = await client.post("/jobs", json=BODY, headers=KEYED)
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["content-type"] == first.headers["content-type"]
        assert list(rack.see.jobs) == ["once"]
        other = await client.post("/jobs", json={**BODY, "name": "other"}, headers=KEYED)
        assert (other.status_code, other.json()["code"]) == (409, "conflict")
        new = await client.post(
            "/jobs", json={**BODY, "name": "other"}, headers={"Idempotency-Key": "k-2"}
        )
        assert new.status_code == 201
    assert list(rack.see.jobs) == ["once", "other"]


async def test_a_refusal_is_repeated_too(tmp_path: Path, rack: Rack) -> None:
    refusal = ServiceError("conflict", "the name is taken", object="job/once")
    answer(rack.desks.jobs, submit=refusal)
    async with life(tmp_path / "s.sqlite", rack) as client:
        assert (await client.post("/jobs", json=BODY, headers=KEYED)).status_code == 409
    restore(rack.desks.jobs, "submit")
    async with life(tmp_path / "s.sqlite", rack) as client:
        again = await client.post("/jobs", json=BODY, headers=KEYED)
        assert (again.status_code, again.json()["detail"]) == (409, "the name is taken")
    assert not rack.see.jobs


async def test_one_that_died_on_the_way_is_not_done_again(tmp_path: Path, rack: Rack) -> None:
    asked = asyncio.Event()

    async def submit(*_: object, **__: object) -> None:
        asked.set()
        await never()

    answer(rack.desks.jobs, submit=submit)
    async with life(tmp_path / "s.sqlite", rack) as client:
        lost = asyncio.create_task(client.post("/jobs", json=BODY, headers=KEYED))
        async with asyncio.timeout(60):
            await asked.wait()
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await lost
    async with life(tmp_path / "s.sqlite", rack) as client:
        again = await client.post("/jobs", json=BODY, headers=KEYED)
        assert (again.status_code, again.json()["code"]) == (409, "conflict")
        assert "unknown" in again.json()["detail"]
        assert again.json()["hint"].startswith("check /api/v1/jobs")
        assert again.json()["object"] == "api/v1/jobs"
    assert not rack.see.jobs


async def test_one_that_took_too_long_goes_on_and_is_not_begun_again(
    tmp_path: Path, rack: Rack
) -> None:
    answer(rack.desks.jobs, submit=ServiceError("timeout", "no answer in 60 s; it goes on"))
    async with life(tmp_path / "s.sqlite", rack) as client:
        assert (await client.post("/jobs", json=BODY, headers=KEYED)).status_code == 504
    restore(rack.desks.jobs, "submit")
    async with life(tmp_path / "s.sqlite", rack) as client:
        again = await client.post("/jobs", json=BODY, headers=KEYED)
        assert (again.status_code, again.json()["code"]) == (504, "timeout")
    assert not rack.see.jobs


async def test_nothing_is_begun_when_its_key_can_not_be_kept(tmp_path: Path, rack: Rack) -> None:
    store = Store(tmp_path / "s.sqlite")
    await store.load()

    class Full:
        async def answer(self, ident: str) -> KeptAnswer | None:
            return await store.answer(ident)

        async def commit(self, *writes: Write) -> None:
            raise ServiceError("failed", "the disk is full", object="store/s", hint="make room")

        async def record(self, *writes: Write) -> None:
            await self.commit(*writes)

    transport = httpx.ASGITransport(app=app_of(rack.service, answers=Full()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        refused = await client.post("/jobs", json=BODY, headers=KEYED)
    await store.close()
    assert (refused.status_code, refused.json()["detail"]) == (500, "the disk is full")
    assert not rack.see.jobs


async def test_a_request_that_broke_off_does_not_use_its_key(tmp_path: Path, rack: Rack) -> None:
    """Half of its body arrived: that is not the request, which may still be sent again."""
    pieces: list[Message] = [
        {"type": "http.request", "body": b'{"count": 1, ', "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return pieces.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    async with life(tmp_path / "s.sqlite", rack) as client:
        headers = [(b"content-type", b"application/json"), (b"idempotency-key", b"k-1")]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/jobs",
            "query_string": b"",
            "headers": headers,
        }
        transport = client._transport
        assert isinstance(transport, httpx.ASGITransport)
        await transport.app(scope, receive, send)
        assert sent[0]["status"] == 400
        assert (await client.post("/jobs", json=BODY, headers=KEYED)).status_code == 201


@pytest.mark.parametrize("key", [b"", b"a b", b"caf\xe9", b"\xa0", b"k" * 201])
async def test_a_key_is_what_the_schema_says(tmp_path: Path, key: bytes, rack: Rack) -> None:
    async with life(tmp_path / "s.sqlite", rack) as client:
        headers = [(b"idempotency-key", key)]
        reply = await client.post("/jobs", json=BODY, headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid")


async def test_a_body_that_is_too_large_is_no_defect(tmp_path: Path, rack: Rack) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(256 * KIB // 2**16 + 1):
            yield b" " * 2**16

    async with life(tmp_path / "s.sqlite", rack) as client:
        reply = await client.post("/jobs", content=pieces(), headers=KEYED)
        assert (reply.status_code, reply.json()["code"]) == (413, "invalid")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ([(b"cache-control", b"no-store")], b'{"token":"ll_secret"}'),
        ([], b"x" * (MAX_ANSWER_BYTES + 1)),
    ],
)
def test_secrets_and_endless_answers_are_not_kept(
    headers: list[tuple[bytes, bytes]], body: bytes
) -> None:
    start = {"type": "http.response.start", "status": 201, "headers": headers}
    kept = answered(KeptAnswer("i", "p", 0.0), [start, {"type": "x", "body": body}])
    assert (kept.status, kept.headers, kept.body) == (201, (), None)


async def test_a_secret_answer_is_not_given_twice(tmp_path: Path, rack: Rack) -> None:
    store = Store(tmp_path / "s.sqlite")
    await store.load()
    seen: list[KeptAnswer] = []

    class Watched:
        async def answer(self, ident: str) -> KeptAnswer | None:
            return await store.answer(ident)

        async def commit(self, *writes: Write) -> None:
            seen.extend(w.answer for w in writes if isinstance(w, PutAnswer))
            await store.commit(*writes)

        async def record(self, *writes: Write) -> None:
            await self.commit(*writes)

    transport = httpx.ASGITransport(app=app_of(rack.service, answers=Watched()))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        first = await client.post("/jobs", json=BODY, headers=KEYED)
        assert first.status_code == 201
        await store.commit(
            PutAnswer(
                KeptAnswer(seen[-1].id, seen[-1].print, seen[-1].at, 201),
                oldest=0.0,
                most=KEPT,
                most_bytes=1,
            )
        )
        again = await client.post("/jobs", json=BODY, headers=KEYED)
    await store.close()
    assert again.status_code == 409
    assert "answered 201" in again.json()["detail"]


async def test_answers_are_bounded_in_age_number_and_size(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    await store.load()

    async def put(ident: str, at: float, size: int, most: int = 3, most_bytes: int = 100) -> None:
        answer = KeptAnswer(ident, "p", at, 200, (("a", "b"),), b"x" * size)
        await store.commit(PutAnswer(answer, at - KEPT_S, most, most_bytes))

    async def left() -> set[str]:
        return {i for i in "abcdefg" if await store.answer(i) is not None}

    for n, ident in enumerate("abcd"):
        await put(ident, float(n), 10)
    assert await left() == {"b", "c", "d"}
    await put("e", 5.0, 85)
    assert await left() == {"d", "e"}
    await put("f", 5.5 + KEPT_S, 10)
    assert await left() == {"f"}
    await put("g", 6.0 + KEPT_S, 1000)  # the latest stays, also if it is large
    assert await left() == {"g"}
    kept = await store.answer("g")
    await store.close()
    assert kept == KeptAnswer("g", "p", 6.0 + KEPT_S, 200, (("a", "b"),), b"x" * 1000)


async def test_one_person_displaces_no_other_ones_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rack: Rack
) -> None:
    """A user floods with new keys; an operator's change is still not made twice."""
    monkeypatch.setattr(idempotency, "KEPT", 10)
    store = Store(tmp_path / "s.sqlite")
    await store.load()
    answers = Journal(store, EventLog(lambda: 0.0, lambda: 0), lambda _: None, UsageLedger())
    async with people_site(tmp_path) as site:
        app = app_of(
            site.rack.service, Access(site.accounts, site.audit, clock=site.clock), answers=answers
        )
        kept = replace(site, app=app)
        async with kept.client("operator") as keeper, kept.client("user-alpha") as flood:
            first = await keeper.post("/jobs", json=BODY, headers=KEYED)
            assert first.status_code == 201
            for number in range(40):
                headers = {"Idempotency-Key": f"k{number}"}
                body = {"count": 1, "name": f"alpha-f{number}", "project": "alpha"}
                assert (await flood.post("/jobs", json=body, headers=headers)).status_code == 201
            again = await keeper.post("/jobs", json=BODY, headers=KEYED)
            assert (again.status_code, again.content) == (201, first.content)
        assert "once" in site.jobs
    await store.close()


async def test_a_store_of_before_gets_the_table(tmp_path: Path) -> None:
    store = Store(tmp_path / "s.sqlite")
    await store.load()
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s.sqlite")) as db:
        db.execute("DROP TABLE answers")
    again = Store(tmp_path / "s.sqlite")
    await again.load()
    assert await again.answer("a") is None
    await again.close()


# --- If-Match -------------------------------------------------------------------------------


async def moved(rack: Rack) -> None:
    """Move the light of an endpoint, which makes an epoch."""
    home = "as1" if rack.see.homes()["gpu0"] == "as0" else "as0"
    await rack.desks.plans.attach("gpu0", home, wait_s=60)


class SlowAnswers(AnswersInMemory):
    """Something else moves the fabric while a key is made durable."""

    def __init__(self, rack: Rack) -> None:
        super().__init__()
        self.rack = rack

    async def commit(self, *writes: Write) -> None:
        await super().commit(*writes)
        await moved(self.rack)


@pytest.mark.parametrize("keyed", [{}, KEYED])
async def test_the_epoch_is_that_of_the_moment_when_the_change_is_made(
    keyed: dict[str, str], rack: Rack
) -> None:
    """The fabric moves after the head, before the end of the body."""

    async def body() -> AsyncIterator[bytes]:
        yield b'{"count": 1, '
        await moved(rack)
        yield b'"name": "once"}'

    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:

        async def submit() -> httpx.Response:
            kind = {"content-type": "application/json", "If-Match": f'"{rack.see.epoch}"'}
            return await client.post("/jobs", content=body(), headers={**kind, **keyed})

        late = await submit()
        assert (late.status_code, late.json()["code"]) == (412, "conflict")
        assert late.json()["object"] == f"epoch/{rack.see.epoch}"
        assert not rack.see.jobs
        wanted = {"If-Match": f'"{rack.see.epoch}"', **keyed}
        decided_again = await client.post("/jobs", json=BODY, headers=wanted)
        assert decided_again.status_code == 201


async def test_the_epoch_is_looked_at_when_the_key_is_durable(rack: Rack) -> None:
    transport = httpx.ASGITransport(app=app_of(rack.service, answers=SlowAnswers(rack)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        wanted = {"If-Match": f'"{rack.see.epoch}"', **KEYED}
        late = await client.post("/jobs", json=BODY, headers=wanted)
        assert late.status_code == 412
        assert not rack.see.jobs
