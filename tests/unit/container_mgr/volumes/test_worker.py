from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from container_mgr.volumes.worker import VolumeThread
from testbed.simulated.loop import settled
from testbed.simulated.work import WorkEvent

LONG_S = 60.0
SHORT_S = 1.0


@pytest.fixture
def worker() -> Iterator[VolumeThread]:
    one = VolumeThread("volume-test")
    yield one
    one.close()


async def test_results_and_errors_come_back(worker: VolumeThread) -> None:
    assert await worker.run(lambda: 7, LONG_S) == 7
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0, LONG_S)


@pytest.mark.real_time
async def test_a_thread_of_its_own_serves_the_calls(worker: VolumeThread) -> None:
    assert await worker.run(lambda: 7, LONG_S) == 7
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0, LONG_S)


async def test_calls_behind_one_that_hangs_fail_and_never_happen(worker: VolumeThread) -> None:
    gone, happened = WorkEvent(), []
    with pytest.raises(TimeoutError):
        await worker.run(gone.wait, SHORT_S)
    with pytest.raises(TimeoutError):
        await worker.run(lambda: happened.append("at once"), LONG_S)
    gone.set()
    while True:  # the thread comes back soon after
        try:
            assert await worker.run(lambda: 7, LONG_S) == 7
            break
        except TimeoutError:
            await settled()
    assert happened == []


async def test_a_call_that_waited_too_long_never_happens(worker: VolumeThread) -> None:
    begun, gone, happened = asyncio.Event(), WorkEvent(), []

    def hang() -> None:
        begun.set()
        gone.wait()

    first = asyncio.ensure_future(worker.run(hang, LONG_S))
    await begun.wait()
    with pytest.raises(TimeoutError):
        await worker.run(lambda: happened.append("late"), SHORT_S)
    gone.set()
    await first
    assert await worker.run(lambda: 7, LONG_S) == 7
    assert happened == []
