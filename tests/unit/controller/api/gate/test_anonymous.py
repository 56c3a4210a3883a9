"""What an address without a token may do: little, seldom, and under no name but its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from controller.api import openapi
from controller.api.gate.access import COOKIE, credentials
from controller.api.gate.pace import FAILURES, PUBLIC, RateLimit
from controller.base.errors import ServiceError
from controller.daemon.listen import PeopleOptions, proxy_network
from testbed.simulated.work import WorkEvent
from tests.parts.api.apps import app_of
from tests.parts.api.people import people_site
from tests.parts.api.served import serving
from tests.parts.controller.rack import Rack
from tests.unit.controller.api.gate.accounts import people

BURST = int(FAILURES.burst)


def cookie(value: str) -> tuple[str, str]:
    return credentials(Headers({"cookie": value}))


@pytest.mark.parametrize(
    ("header", "secret"),
    [
        (f"{COOKIE}=ll_x", "ll_x"),
        (f'a=b; {COOKIE}="ll_x"; c=d', "ll_x"),
        (f"a;; =;{COOKIE}=ll_x", "ll_x"),
        (f"x{COOKIE}=ll_x", ""),
        (f"{COOKIE}=", ""),
        (f"{COOKIE}={'x' * 201}", ""),
        ("", ""),
    ],
)
def test_the_one_cookie_is_found(header: str, secret: str) -> None:
    assert cookie(header) == (secret, "cookie" if secret else "none")


@pytest.mark.timeout(60)
def test_a_cookie_of_backslashes_costs_no_more_than_another() -> None:
    """The standard library's parser needs an hour for it."""
    assert cookie(f'{COOKIE}="' + '\\"' * 1_000_000 + '"') == ("", "none")


@pytest.mark.timeout(60)
def test_a_long_token_is_no_token() -> None:
    long = Headers({"authorization": "Bearer " + "x" * 10_000})
    assert credentials(long) == ("", "header")


async def test_sign_ins_are_paced_and_a_refused_ones_body_is_not_read(tmp_path: Path) -> None:
    reads = 0

    async def receive() -> Message:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": b'{"token":"ll_wrong"}', "more_body": False}

    codes = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            codes.append(message["status"])

    rate_limit = RateLimit(clock=lambda: 0.0)
    async with people_site(tmp_path, rate_limit) as site:
        for number in range(3 * BURST):
            scope = {
                "type": "http",
                "method": "POST",
                "path": "/api/v1/session",
                "query_string": b"",
                "headers": [(b"content-type", b"application/json")],
                "client": (f"2001:db8::{number:x}", 1),
            }
            await site.app(scope, receive, send)
        async with site.client("viewer-alpha") as honest:
            assert (await honest.get("/jobs")).status_code == 200
    assert codes == [403] * BURST + [429] * 2 * BURST
    assert reads == BURST


async def test_sign_ins_and_wrong_tokens_are_counted_together(tmp_path: Path) -> None:
    async with (
        people_site(tmp_path, RateLimit(clock=lambda: 0.0)) as site,
        site.client() as stranger,
    ):
        for _ in range(BURST // 2):
            assert (await stranger.get("/jobs")).status_code == 401
            reply = await stranger.post("/session", json={"token": "ll_wrong"})
            assert reply.status_code == 403
        assert (await stranger.get("/jobs")).status_code == 429
        reply = await stranger.post("/session", json={"token": site.secrets["admin"]})
        assert reply.status_code == 429


@pytest.mark.parametrize(
    "path", ["/", "/console/js/main.js", "/nothing", "/api/v1/alive", "/api/v1/openapi.json"]
)
async def test_what_needs_no_token_is_paced_by_address(path: str) -> None:
    app = app_of(rate_limit=RateLimit(clock=lambda: 0.0))
    for address, wanted in (("10.0.0.1", 429), ("10.0.0.2", 200)):
        transport = httpx.ASGITransport(app=app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            count = int(PUBLIC.burst) if wanted == 429 else 0
            codes = {(await client.get("/api/v1/alive")).status_code for _ in range(count)}
            assert codes <= {200}
            assert ((await client.get(path)).status_code == 429) is (wanted == 429)


async def test_the_schema_is_made_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it takes long; the loop lets it end."""
    may_end = WorkEvent()
    made = openapi.get_openapi

    def slow(**given: object) -> dict[str, object]:
        may_end.wait()
        return made(**given)  # type: ignore[arg-type]

    monkeypatch.setattr(openapi, "get_openapi", slow)
    transport = httpx.ASGITransport(app=app_of())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        asked = [asyncio.create_task(client.get("/openapi.json")) for _ in range(3)]
        assert (await client.get("/alive")).status_code == 200
        may_end.set()
        replies = await asyncio.gather(*asked)
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1


async def test_an_answer_names_a_bounded_number_of_wrong_fields(rack: Rack) -> None:
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1/api/v1") as client:
        reply = await client.post("/jobs", json={"count": 1, "command": [[]] * 2000})
        assert reply.status_code == 422
        assert len(reply.json()["errors"]) == 20
        unknown = await client.get("/" + "x" * 2000)
        assert len(unknown.content) < 2000
        long = await client.get("/" + "x/" * 2000)
        assert long.status_code == 414


# --- proxies --------------------------------------------------------------------------------

FORGED = "203.0.113.66"


async def codes_of(options: PeopleOptions, folder: Path, forwarded: list[str]) -> list[int]:
    """Ask with wrong tokens, each with its own ``X-Forwarded-For``."""
    async with (
        people(folder) as (access, _),
        serving(options, access) as (_, port),
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        codes = []
        for value in forwarded:
            headers = {"X-Forwarded-For": value, "Authorization": "Bearer ll_wrong"}
            reply = await client.get(f"http://127.0.0.1:{port}/api/v1/jobs", headers=headers)
            codes.append(reply.status_code)
        return codes


async def test_a_client_that_names_another_address_is_not_believed(tmp_path: Path) -> None:
    forwarded = [f"203.0.113.{number}" for number in range(200)]
    codes = await codes_of(PeopleOptions(), tmp_path, forwarded)
    assert codes.count(401) < 150
    assert set(codes) == {401, 429}


async def test_a_named_proxy_is_believed(tmp_path: Path) -> None:
    options = PeopleOptions(proxies=("127.0.0.1/32",))
    forwarded = [f"203.0.113.{number}" for number in range(2 * BURST)]
    assert set(await codes_of(options, tmp_path, forwarded)) == {401}


async def test_behind_a_named_proxy_the_last_address_counts(tmp_path: Path) -> None:
    """What a client writes into the header itself stands before what the proxy adds."""
    options = PeopleOptions(proxies=("127.0.0.1/32", "10.9.0.0/16"))
    forwarded = [f"203.0.113.{number}, {FORGED}, 10.9.1.1" for number in range(200)]
    codes = await codes_of(options, tmp_path, forwarded)
    assert codes.count(401) < 150
    assert set(codes) == {401, 429}


@pytest.mark.parametrize(
    ("text", "network"), [("10.1.2.3", "10.1.2.3/32"), ("fd00::/8", "fd00::/8")]
)
def test_a_proxy_is_an_address_or_a_network(text: str, network: str) -> None:
    assert proxy_network(text) == network


@pytest.mark.parametrize("text", ["*", "proxy.example", "10.1.2.3/8", ""])
def test_a_proxy_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        proxy_network(text)
    assert (caught.value.code, caught.value.object) == ("invalid", "trusted-proxy")
