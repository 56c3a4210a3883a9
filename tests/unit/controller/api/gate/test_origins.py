"""Whose pages may change something, under every name that browsers know the controller by."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from controller.api.gate.origins import Origins, origin_of
from controller.base.errors import ServiceError
from controller.daemon.listen import PeopleOptions
from tests.parts.api.apps import app_of
from tests.parts.api.served import serving
from tests.parts.controller.rack import Rack
from tests.unit.controller.api.certificates import certificate
from tests.unit.controller.api.gate.accounts import people

NAME = "ctl.example"
OWN = Origins(
    frozenset({"https://front.example", "https://odd.example:8443"}),
    frozenset({NAME, "*.cells.example", "10.0.0.7"}),
)


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("https://ctl.example:8470", "ctl.example:8470", True),
        ("https://CTL.example", "ctl.EXAMPLE", True),
        ("https://a.cells.example", "a.cells.example", True),
        ("https://10.0.0.7:8470", "10.0.0.7:8470", True),
        ("http://127.0.0.1:8470", "127.0.0.1:8470", True),
        ("http://[::1]:8470", "[::1]:8470", True),
        ("https://front.example", "127.0.0.1:8470", True),
        ("https://front.example:443", "127.0.0.1:8470", True),
        ("https://odd.example:8443", "front.example", True),
        ("http://ctl.example:8470", "ctl.example:8470", False),  # a stranger's, without TLS
        ("https://ctl.example:9999", "ctl.example:8470", False),
        ("https://a.b.cells.example", "a.b.cells.example", False),
        ("https://cells.example", "cells.example", False),
        ("https://evil.example", "evil.example", False),
        ("http://front.example", "front.example", False),
        ("https://odd.example", "odd.example", False),
        ("https://front.example.evil.example", "front.example", False),
        ("http://127.0.0.1.evil.example", "127.0.0.1.evil.example", False),
        ("http://127.0.0.1:9999", "127.0.0.1:8470", False),
        ("https://ctl.example:x", "ctl.example:x", False),
        ("null", "ctl.example", False),
        ("", "", False),
    ],
)
def test_a_page_is_the_controllers_own_by_a_name_it_has(origin: str, host: str, own: bool) -> None:
    assert OWN.own(origin, host) is own


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8470", True),
        ("localhost", True),
        ("[::1]:8470", True),
        (f"{NAME}:8470", True),
        ("front.example", True),
        ("evil.example:8470", False),
        ("127.0.0.1.evil.example", False),
        ("[", False),
        ("", False),
    ],
)
def test_a_host_is_known_by_the_controllers_names(host: str, known: bool) -> None:
    assert OWN.known(host) is known


async def test_without_tokens_a_name_made_to_resolve_to_loopback_reads_nothing(rack: Rack) -> None:
    transport = httpx.ASGITransport(app=app_of(rack.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        refused = await client.get("/api/v1/jobs", headers={"Host": "evil.example:8470"})
        assert (refused.status_code, refused.json()["code"]) == (421, "forbidden")
        assert (await client.get("/api/v1/jobs")).status_code == 200


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Front.example/", "https://front.example"),
        ("https://front.example:443", "https://front.example"),
        ("https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443"),
        ("http://localhost:8470", "http://localhost:8470"),
    ],
)
def test_a_public_url_is_an_origin(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url", ["front.example", "http://front.example", "https://front.example/x", "https://a:b@c", ""]
)
def test_a_public_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ServiceError) as caught:
        origin_of(url)
    assert (caught.value.code, caught.value.object) == ("invalid", "public-url")


async def signed_in(client: httpx.AsyncClient, base: str, name: str, token: str) -> list[int]:
    """Sign in and change something as the console's page does that ``name`` served."""
    headers = {"Host": name, "Origin": f"https://{name}", "X-Lightloom": "1"}
    opened = await client.post(f"{base}/api/v1/session", json={"token": token}, headers=headers)
    codes = [opened.status_code]
    if opened.status_code == 200:
        assert "secure" in opened.headers["set-cookie"].lower()
        headers["Cookie"] = opened.headers["set-cookie"].partition(";")[0]
    changed = await client.post(f"{base}/api/v1/jobs", json={"count": 1}, headers=headers)
    return [*codes, changed.status_code]


async def test_the_console_works_under_the_certificates_name(tmp_path: Path) -> None:
    options = dataclasses.replace(certificate(tmp_path / "mine", NAME), open=False)
    async with (
        people(tmp_path) as (access, token),
        serving(options, access) as (server, _),
        httpx.AsyncClient(transport=httpx.ASGITransport(server.config.loaded_app)) as client,
    ):
        base = "https://127.0.0.1:8470"
        assert await signed_in(client, base, f"{NAME}:8470", token) == [200, 201]
        evil = {"Origin": "https://evil.example", "Authorization": f"Bearer {token}"}
        refused = await client.post(f"{base}/api/v1/jobs", json={"count": 1}, headers=evil)
        assert refused.status_code == 403


@contextlib.asynccontextmanager
async def proxy(upstream: int, *, keeps_host: bool) -> AsyncIterator[int]:
    """Forward each request over plain HTTP, on a new connection, as after the end of a TLS one."""

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[:-2]
                length = next(
                    (int(x[15:]) for x in lines if x.lower().startswith(b"content-len")), 0
                )
                if not keeps_host:
                    lines = [x for x in lines if not x.lower().startswith(b"host:")]
                    lines.append(b"Host: 127.0.0.1:%d" % upstream)
                lines += [b"X-Forwarded-For: 203.0.113.9", b"Connection: close", b"", b""]
                body = await reader.readexactly(length)
                there, to = await asyncio.open_connection("127.0.0.1", upstream)
                to.write(b"\r\n".join(lines) + body)
                writer.write(await there.read())
                to.close()
        writer.close()

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("keeps_host", [True, False])
@pytest.mark.parametrize(("public", "codes"), [(True, [200, 201]), (False, [403, 403])])
async def test_the_console_works_behind_a_proxy_that_the_operator_named(
    tmp_path: Path, keeps_host: bool, public: bool, codes: list[int]
) -> None:
    async with people(tmp_path) as (access, token), contextlib.AsyncExitStack() as stack:
        name = "front.example"
        options = PeopleOptions(public_urls=(origin_of(f"https://{name}"),) if public else ())
        _, port = await stack.enter_async_context(serving(options, access))
        made = proxy(port, keeps_host=keeps_host)
        base = f"http://127.0.0.1:{await stack.enter_async_context(made)}"
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=60))
        assert await signed_in(client, base, name, token) == codes
