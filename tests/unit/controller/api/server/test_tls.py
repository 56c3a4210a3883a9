"""TLS connections to the API: the right authority, the wrong one, none, too old, and never done."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from controller.api.server import connections
from controller.api.server.server import ApiServer
from tests.parts.api.served import serving
from tests.unit.controller.api.certificates import certificate, trusting

pytestmark = pytest.mark.real_time

Served = tuple[ApiServer, int]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(certificate(tmp_path / "mine")) as found:
        yield found


async def alive(port: int, folder: Path) -> bool:
    """Ask as a client does who trusts the controller's authority."""
    async with httpx.AsyncClient(verify=trusting(folder), trust_env=False, timeout=30) as client:
        reply = await client.get(f"https://127.0.0.1:{port}/api/v1/health")
    return reply.status_code == 200


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait until the other side has closed, whichever way."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def begun(port: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Begin some handshakes: one says its first bytes, the others nothing."""
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    silent[0][1].write(b"\x16\x03\x01")
    return silent


async def test_who_trusts_the_authority_is_answered(served: Served, tmp_path: Path) -> None:
    _, port = served
    assert await alive(port, tmp_path / "mine")
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(tmp_path / "mine"))
    assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
    writer.close()


async def test_who_trusts_another_authority_does_not_talk(served: Served, tmp_path: Path) -> None:
    _, port = served
    certificate(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection("127.0.0.1", port, ssl=trusting(tmp_path / "other"))
    assert await alive(port, tmp_path / "mine")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2])
async def test_old_tls_is_refused(served: Served, tmp_path: Path, version: ssl.TLSVersion) -> None:
    _, port = served
    context = trusting(tmp_path / "mine")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = version
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", port, ssl=context)
    assert await alive(port, tmp_path / "mine")


async def test_plain_http_to_a_tls_port_gets_nothing(served: Served, tmp_path: Path) -> None:
    _, port = served
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://127.0.0.1:{port}/api/v1/health")
    assert await alive(port, tmp_path / "mine")


async def test_handshakes_that_never_end_delay_no_other_client(
    served: Served, tmp_path: Path
) -> None:
    _, port = served
    silent = await begun(port)
    assert await alive(port, tmp_path / "mine")
    for _, writer in silent:
        writer.close()


async def test_a_handshake_that_never_ends_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.5)
    async with serving(certificate(tmp_path / "mine")) as (server, port):
        silent = await begun(port)
        async with asyncio.timeout(60):
            for reader, _ in silent:
                await ended(reader)
            while len(server.connections):  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.02)
        for _, writer in silent:
            writer.close()


async def test_handshakes_that_never_end_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count from the moment they were accepted, not from their end."""
    monkeypatch.setattr("controller.api.server.server.connections_possible", lambda: 16)
    async with serving(certificate(tmp_path / "mine")) as (server, port):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
        assert await alive(port, tmp_path / "mine")
        assert len(server.connections) <= 16
        async with asyncio.timeout(30):
            ends = [asyncio.create_task(ended(reader)) for reader, _ in silent]
            gone, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert gone
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        for _, writer in silent:
            writer.close()
