"""The streams of a command, from an engine that answers in every possible way."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container_mgr.docker.attached import Attached, EngineRefusalError, attach

SWITCHED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"


def frame(number: int, data: bytes) -> bytes:
    return struct.pack(">BxxxL", number, len(data)) + data


@asynccontextmanager
async def engine(path: Path, *answer: bytes) -> AsyncIterator[str]:
    """Answer the one request with these pieces, then repeat the input to its end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"POST /v1.41/exec/e1/start HTTP/1.1\r\n")
        await reader.readexactly(len(b'{"Detach": false, "Tty": false}'))
        for piece in answer:
            writer.write(piece)
            await writer.drain()
        if data := await reader.read():
            writer.write(frame(1, data))
        writer.close()

    server = await asyncio.start_unix_server(serve, path / "docker.sock")
    async with server:
        yield f"http+unix://{path}/docker.sock"


async def everything(streams: Attached) -> dict[str, bytes]:
    found = {"stdout": b"", "stderr": b""}
    while (piece := await streams.read()) is not None:
        found[piece[0]] += piece[1]
    return found


async def test_output_that_came_with_the_answer_is_not_lost(tmp_path: Path) -> None:
    async with engine(tmp_path, SWITCHED + frame(1, b"first") + frame(2, b"err")) as url:
        streams = await attach(url, "1.41", "e1", terminal=False)
        await streams.write(b"typed")
        streams.close_input()
        streams.close_input()
        assert await everything(streams) == {"stdout": b"firsttyped", "stderr": b"err"}
        streams.close()


async def test_a_refusal_has_the_engines_reason(tmp_path: Path) -> None:
    body = b'{"message": "container is paused"}'
    head = b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with engine(tmp_path, head, body) as url:
        with pytest.raises(EngineRefusalError, match="container is paused"):
            await attach(url, "1.41", "e1", terminal=False)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 101", b"what?\r\n\r\n"])
async def test_an_engine_that_answers_nonsense_is_an_oserror(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "docker.sock")
    async with server, asyncio.timeout(60):
        with pytest.raises(OSError, match=r"engine|reset|pipe"):
            await attach(f"http+unix://{tmp_path}/docker.sock", "1.41", "e1", terminal=False)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=200)), max_size=8),
    st.lists(st.integers(1, 50), max_size=20),
    st.integers(0, 60),
)
def test_frames_are_read_however_they_arrive(
    frames: list[tuple[int, bytes]], cuts: list[int], head: int
) -> None:
    async def read() -> dict[str, bytes]:
        wire = b"".join(frame(number, data) for number, data in frames)
        reader = asyncio.StreamReader()
        streams = Attached(reader, None, wire[:head], False)  # type: ignore[arg-type]
        rest = wire[head:]
        for cut in [*cuts, len(rest)]:
            if rest[:cut]:
                reader.feed_data(rest[:cut])
            rest = rest[cut:]
        reader.feed_eof()
        return await everything(streams)

    wanted = {
        "stdout": b"".join(data for number, data in frames if number == 1),
        "stderr": b"".join(data for number, data in frames if number != 1),
    }
    assert asyncio.run(read()) == wanted
