"""Blocking calls on one thread: their order, results, time limit, and what a late call means."""

from __future__ import annotations

import asyncio
import threading

import pytest

from controller.base.one_thread import LateError, OneThread
from testbed.simulated.work import WorkEvent

LIMIT_S = 10.0


@pytest.fixture
def gate() -> WorkEvent:
    """Holds calls until it is set."""
    return WorkEvent()


@pytest.mark.real_time
async def test_calls_run_in_order_on_one_thread() -> None:
    thread = OneThread("t")
    seen: list[int] = []

    def work(number: int) -> int:
        seen.append(number)
        return threading.get_ident()

    threads = await asyncio.gather(*(thread.call(work, n) for n in range(20)))
    assert seen == list(range(20))
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()
    thread.close()


async def test_an_error_of_the_call_reaches_the_caller() -> None:
    """Also a TimeoutError of the call itself: it is no late call."""
    thread = OneThread("t", limit_s=60)

    def fail(error: Exception) -> None:
        raise error

    for error in (ValueError("wrong"), TimeoutError("the disk")):
        with pytest.raises(type(error)):
            await thread.call(fail, error)
    thread.close()


async def test_a_late_call_goes_on_and_holds_the_next_one_back(gate: WorkEvent) -> None:
    thread = OneThread("t", limit_s=LIMIT_S)
    done: list[str] = []

    def slow() -> None:
        gate.wait()
        done.append("slow")

    with pytest.raises(LateError) as first:
        await thread.call(slow)
    with pytest.raises(LateError) as second:
        await thread.call(done.append, "never")
    assert (first.value.begun, second.value.begun) == (True, False)
    gate.set()
    await thread.call(done.append, "next")
    assert done == ["slow", "next"]
    thread.close()


async def test_two_callers_wait_for_the_same_late_call(gate: WorkEvent) -> None:
    thread = OneThread("t", limit_s=LIMIT_S)
    with pytest.raises(LateError):
        await thread.call(gate.wait)
    waiting = [asyncio.create_task(thread.call(str, n)) for n in range(2)]
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in ended] == [LateError, LateError]
    thread.close()


async def test_a_cancelled_caller_does_not_cancel_the_call(gate: WorkEvent) -> None:
    thread = OneThread("t")
    done: list[str] = []
    blocked = asyncio.create_task(thread.call(gate.wait))
    waiting = asyncio.create_task(thread.call(done.append, "made"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    gate.set()
    await blocked
    assert await thread.call(lambda: list(done)) == ["made"]
    thread.close()


async def test_a_closed_thread_takes_no_call() -> None:
    thread = OneThread("t")
    thread.close()
    with pytest.raises(RuntimeError):
        await thread.call(int)
