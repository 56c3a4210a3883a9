from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from container_mgr.volumes.worker import Worker

LONG_S = 60.0


@pytest.fixture
def worker() -> Iterator[Worker]:
    one = Worker("volume-test")
    yield one
    one.close()


async def test_results_and_errors_come_back(worker: Worker) -> None:
    assert await worker.run(lambda: 7, LONG_S) == 7
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0, LONG_S)


async def test_calls_behind_one_that_hangs_fail_and_never_happen(worker: Worker) -> None:
    gone, happened = threading.Event(), []
    with pytest.raises(TimeoutError):
        await worker.run(lambda: gone.wait(LONG_S), 0.01)
    with pytest.raises(TimeoutError):
        await worker.run(lambda: happened.append("at once"), LONG_S)
    gone.set()
    while True:  # the thread comes back soon after
        try:
            assert await worker.run(lambda: 7, LONG_S) == 7
            break
        except TimeoutError:
            await asyncio.sleep(0.01)
    assert happened == []


async def test_a_call_that_waited_too_long_never_happens(worker: Worker) -> None:
    begun, gone, happened = threading.Event(), threading.Event(), []

    def hang() -> None:
        begun.set()
        gone.wait(LONG_S)

    first = asyncio.ensure_future(worker.run(hang, LONG_S))
    await asyncio.to_thread(begun.wait, LONG_S)
    with pytest.raises(TimeoutError):
        await worker.run(lambda: happened.append("late"), 0.01)
    gone.set()
    await first
    assert await worker.run(lambda: 7, LONG_S) == 7
    assert happened == []
