"""An engine that hangs, refuses, fails late or is missing: every call ends by its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from container_mgr.docker import engine
from container_mgr.docker.engine import (
    DockerHost,
    EngineFacts,
    EngineFailure,
    EngineRefusedError,
    EngineTimeoutError,
    EngineUnavailableError,
)
from container_mgr.users import RankUser

Answer = tuple[int, object] | None
"""Status and JSON body, or None for no answer."""

VERSION = (200, {"ApiVersion": "1.41"})


@contextlib.asynccontextmanager
async def daemon(path: Path, answer: Callable[[str], Answer]) -> AsyncIterator[str]:
    """An HTTP server on a unix socket that answers requests by their path."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = [li for li in head.splitlines() if li.lower().startswith("content-length")]
                if length:
                    await reader.readexactly(int(length[0].split(":")[1]))
                reply = answer(head.split(" ")[1])
                if reply is None:
                    await asyncio.sleep(3600)
                    return
                body = json.dumps(reply[1]).encode()
                writer.write(
                    f"HTTP/1.1 {reply[0]} X\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n\r\n".encode()
                    + body
                )
                await writer.drain()

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield f"unix://{path}"
    finally:
        server.close()


async def failure(path: Path, answer: Callable[[str], Answer], timeout_s: int = 1) -> EngineFailure:
    async with daemon(path, answer) as url:
        host = DockerHost(url, timeout_s)
        try:
            with pytest.raises(EngineFailure) as failed:
                await host.inspect("ll-red-0-1")
            return failed.value
        finally:
            host.close()


@pytest.mark.real_time
async def test_a_hung_daemon_is_a_time_out_with_unknown_outcome(tmp_path: Path) -> None:
    silent = await failure(tmp_path / "s", lambda path: VERSION if "version" in path else None)
    assert isinstance(silent, EngineTimeoutError)


@pytest.mark.real_time
async def test_a_daemon_that_hangs_at_the_first_call(tmp_path: Path) -> None:
    assert isinstance(await failure(tmp_path / "s", lambda path: None), EngineTimeoutError)


@pytest.mark.real_time
async def test_a_refusal_has_the_daemons_message(tmp_path: Path) -> None:
    refused = await failure(
        tmp_path / "s",
        lambda path: VERSION if "version" in path else (500, {"message": "no space left"}),
        timeout_s=60,
    )
    assert isinstance(refused, EngineRefusedError)
    assert str(refused) == "no space left"


async def test_no_daemon(tmp_path: Path) -> None:
    host = DockerHost(f"unix://{tmp_path}/none", timeout_s=60)
    with pytest.raises(EngineUnavailableError):
        await host.facts()
    host.close()


@pytest.mark.real_time
async def test_an_absent_object_is_none_and_not_an_error(tmp_path: Path) -> None:
    def answer(path: str) -> Answer:
        return VERSION if "version" in path else (404, {"message": "No such object"})

    async with daemon(tmp_path / "s", answer) as url:
        host = DockerHost(url, timeout_s=60)
        assert await host.inspect("ll-red-0-1") is None
        assert await host.image("ll-none:1") is None
        await host.remove("ll-red-0-1")
        host.close()


@pytest.mark.real_time
async def test_a_pull_that_fails_after_its_status_is_an_error(tmp_path: Path) -> None:
    """The engine has already sent its 200."""

    def answer(path: str) -> Answer:
        return VERSION if "version" in path else (200, {"error": "unexpected EOF"})

    async with daemon(tmp_path / "s", answer) as url:
        host = DockerHost(url, timeout_s=60)
        with pytest.raises(EngineRefusedError, match="unexpected EOF"):
            await host.pull("registry.example/x:1")
        host.close()


@pytest.mark.real_time
async def test_registries_that_hang_delay_no_other_call(tmp_path: Path) -> None:
    def answer(path: str) -> Answer:
        if "images/create" in path:
            return None
        return VERSION if "version" in path else (404, {"message": "No such object"})

    async with daemon(tmp_path / "s", answer) as url:
        host = DockerHost(url, timeout_s=60)
        assert await host.image("x:1") is None
        pulls = [asyncio.ensure_future(host.pull(f"registry.example/x:{n}")) for n in range(64)]
        await asyncio.sleep(0.2)
        async with asyncio.timeout(30):
            assert await host.image("x:1") is None
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)
        host.close()


@pytest.mark.parametrize("limit", ["PULL_DEADLINE_S", "PULL_SILENCE_S"])
@pytest.mark.real_time
async def test_a_pull_has_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(engine, limit, 0.5)
    async with daemon(tmp_path / "s", lambda path: VERSION if "version" in path else None) as url:
        host = DockerHost(url, timeout_s=60)
        with pytest.raises(EngineTimeoutError):
            await host.pull("registry.example/x:1")
        host.close()


@pytest.mark.parametrize(
    ("root", "remapped", "base"),
    [
        ("/var/lib/docker/100000.200000", True, RankUser(100_000, 200_000)),
        ("/var/lib/docker/100000.200000", False, None),
        ("/var/lib/docker", True, None),
        ("", True, None),
    ],
)
def test_users_of_containers_outside_them(root: str, remapped: bool, base: RankUser | None) -> None:
    facts = EngineFacts("28", "systemd", 1 << 30, remapped_users=remapped, root=root)
    assert facts.remapped_base == base
