"""Size, rate and origin of requests; time limits of the work behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from starlette.types import Message

from controller.api.common import CHANGE_S, READ_S
from controller.api.deadlines import change, within
from controller.api.gate.guard import RequestLimits
from controller.api.gate.rules import RouteTable
from controller.api.operation import BODY_BYTES, KIB, MIB
from controller.base.errors import ServiceError
from tests.parts.api.apps import app_of
from tests.parts.controller.jobs import submit
from tests.parts.controller.rack import Rack


@pytest.fixture
async def client(rack: Rack) -> AsyncIterator[httpx.AsyncClient]:
    await submit(rack, "red", 1)
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as client:
        yield client


async def _pieces(count: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" " * size


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("method", "path", "most"),
    [
        ("POST", "/session", 4096),
        ("POST", "/jobs", 256 * KIB),
        ("PUT", "/allocation", 4 * MIB),
        ("POST", "/transactions", 4 * 2**20),
        ("POST", "/plans", BODY_BYTES),
        ("POST", "/nothing", BODY_BYTES),
    ],
)
async def test_large_bodies_are_refused(
    client: httpx.AsyncClient, method: str, path: str, most: int, declared: bool
) -> None:
    content: bytes | AsyncIterator[bytes] = (
        b" " * (most + 1) if declared else _pieces(most // 1024 + 1, 1024)
    )
    headers = {"content-type": "application/json"}
    reply = await client.request(method, f"/api/v1{path}", content=content, headers=headers)
    if path == "/nothing" and not declared:
        assert reply.status_code == 404  # its body is not read
        return
    assert reply.status_code == 413
    assert reply.json()["code"] == "invalid"


async def test_a_body_that_stops_arriving_is_refused(rack: Rack) -> None:
    app = RequestLimits(app_of(rack.service), table=RouteTable([]))
    sent: list[Message] = []

    async def never() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/api/v1/jobs",
        "raw_path": b"/api/v1/jobs",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }
    await app(scope, never, send)
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["code"] == "timeout"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://evil.example", 403),
        ("http://127.0.0.1:9999", 403),
        ("http://[", 403),
        ("null", 403),
        ("http://127.0.0.1:8470", 200),
        (None, 200),
    ],
)
async def test_pages_of_other_origins_change_nothing(
    client: httpx.AsyncClient, origin: str | None, status: int
) -> None:
    headers = {"origin": origin} if origin else {}
    reply = await client.post("/api/v1/jobs/red/cancel", headers=headers)
    assert reply.status_code == status


async def test_a_name_made_to_resolve_to_loopback_changes_nothing(
    client: httpx.AsyncClient,
) -> None:
    headers = {"origin": "http://evil.example:8470", "host": "evil.example:8470"}
    reply = await client.post("/api/v1/jobs/red/cancel", headers=headers)
    assert reply.status_code == 403


async def test_a_crash_after_the_first_byte_just_ends_the_answer() -> None:
    async def broken(scope: object, receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    await RequestLimits(broken, table=RouteTable([]))(scope, receive, send)
    assert [message["type"] for message in sent] == ["http.response.start"]


async def test_a_read_is_dropped_when_time_is_up() -> None:
    with pytest.raises(ServiceError) as caught:
        await within(READ_S, "jobs", asyncio.sleep(2 * READ_S))
    assert (caught.value.code, caught.value.object) == ("timeout", "jobs")


async def test_a_change_goes_on_when_time_is_up() -> None:
    done = asyncio.Event()

    async def work() -> None:
        await asyncio.sleep(2 * CHANGE_S)
        done.set()

    with pytest.raises(ServiceError) as caught:
        await change(CHANGE_S, "job/red", work())
    assert caught.value.code == "timeout"
    assert "continues" in caught.value.hint
    async with asyncio.timeout(2 * CHANGE_S):
        await done.wait()


async def test_a_change_that_fails_after_its_time_disturbs_no_other() -> None:
    async def work() -> None:
        await asyncio.sleep(2 * CHANGE_S)
        raise ServiceError("failed", "too late")

    with pytest.raises(ServiceError, match="no answer"):
        await change(CHANGE_S, "job/red", work())
    await asyncio.sleep(2 * CHANGE_S)


async def test_a_change_that_ends_in_time() -> None:
    assert await change(CHANGE_S, "x", asyncio.sleep(0, "value")) == "value"
    with pytest.raises(ServiceError, match="no"):
        await change(CHANGE_S, "x", _refused())


async def _refused() -> None:
    raise ServiceError("conflict", "no")
