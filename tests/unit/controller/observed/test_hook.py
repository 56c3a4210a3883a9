"""The hook script that Slurm runs: shell and curl, exit code 0 whatever happens."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import console.deploy

pytestmark = pytest.mark.real_time  # each starts the script

HOOK = Path(console.deploy.__file__).parent / "slurm" / "lightloom-allocation"


class Api:
    """One HTTP answer for every request; keeps what was asked."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.requests: list[str] = []

    async def serve(self) -> tuple[asyncio.Server, int]:
        server = await asyncio.start_server(self._one, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(self.answer)
        await writer.drain()
        writer.close()


async def run(folder: Path, port: int, number: str = "4711") -> tuple[int, str]:
    """Run the hook as slurmctld does, with a nearly empty environment."""
    (folder / "engine.header").write_text("Authorization: Bearer secret-of-the-hook\n")
    (folder / "engine.env").write_text(f"LIGHTLOOM_API=http://127.0.0.1:{port}\n")
    process = await asyncio.create_subprocess_exec(
        str(HOOK),
        env={
            "PATH": os.defpath,
            "SLURM_JOB_ID": number,
            "LIGHTLOOM_ENGINE_ENV": str(folder / "engine.env"),
            "LIGHTLOOM_HEADER": str(folder / "engine.header"),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode or 0, printed.decode()


async def test_it_announces_the_job_with_its_token_and_prints_nothing(tmp_path: Path) -> None:
    api = Api(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
    server, port = await api.serve()
    async with server:
        assert await run(tmp_path, port) == (0, "")
    (asked,) = api.requests
    assert asked.startswith("POST /api/v1/engine/allocations/4711 HTTP/1.1\r\n")
    assert "Authorization: Bearer secret-of-the-hook\r\n" in asked


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", b"nonsense", b""]
)
async def test_a_controller_that_fails_lets_the_job_start(tmp_path: Path, answer: bytes) -> None:
    server, port = await Api(answer).serve()
    async with server:
        code, _ = await run(tmp_path, port)
    assert code == 0


async def test_a_controller_that_is_away_lets_the_job_start(tmp_path: Path) -> None:
    server, port = await Api(b"").serve()
    server.close()
    await server.wait_closed()
    assert (await run(tmp_path, port))[0] == 0


@pytest.mark.parametrize("number", ["", "12; rm -rf /", "../plans", "4711_3"])
async def test_what_is_no_number_is_not_sent(tmp_path: Path, number: str) -> None:
    api = Api(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    server, port = await api.serve()
    async with server:
        assert (await run(tmp_path, port, number))[0] == 0
    assert api.requests == []
