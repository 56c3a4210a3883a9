"""What a controller tells its parent and the service manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

from controller.daemon import pulse


async def told_of(moving: list[bool], count: int) -> list[bytes]:
    """The first signs; ``moving`` is what is the case from one comparison to the next."""
    told: asyncio.Queue[bytes] = asyncio.Queue()

    def now() -> bool:
        return moving.pop(0) if len(moving) > 1 else moving[0]

    task = asyncio.create_task(pulse.report_moving(told.put_nowait, now))
    found = [await told.get() for _ in range(count)]
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return found


async def test_it_tells_when_transactions_open_and_when_none_is_open_any_more() -> None:
    told = await told_of([True, True, False, False, True, True], 3)
    assert told == [pulse.OPEN, pulse.CLOSED, pulse.OPEN]


async def test_it_tells_at_the_start_that_none_is_open() -> None:
    """The predecessor may have died with one open."""
    assert await told_of([False], 1) == [pulse.CLOSED]


def test_the_service_manager_does_not_hear_of_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        for sign in (pulse.OPEN, pulse.CLOSED, pulse.READY):
            pulse.notify(sign)
        assert manager.recv(64) == b"READY=1"


def test_a_full_pipe_blocks_nothing() -> None:
    heard, tell = os.pipe()
    try:
        say = pulse.into(tell)
        for _ in range(1 << 17):
            say(pulse.BEAT)
        assert 0 < len(os.read(heard, 1 << 18)) < 1 << 17
    finally:
        os.close(heard)
        os.close(tell)
