"""OpenFlow sessions in virtual time: os-ken's threads are of the simulation, sockets in memory."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from base import clock
from base.addresses import split_address
from controller.devices.openflow import aggregators
from controller.devices.openflow.session import listen, osken
from testbed.simulated.loop import VirtualLoop
from testbed.simulated.threads import (
    Poll,
    Semaphore,
    SimulatedQueue,
    Socket,
    Thread,
    ThreadListener,
)
from testbed.simulated.work import WorkEvent


@contextmanager
def sessions() -> Iterator[None]:
    """Let sessions that begin meanwhile run in virtual time, where the running loop does."""
    if not isinstance(asyncio.get_running_loop(), VirtualLoop):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(osken.hub, "spawn", _spawn)
        patch.setattr(osken.hub, "Queue", SimulatedQueue)
        patch.setattr(osken.hub, "BoundedSemaphore", Semaphore)
        patch.setattr(osken, "SimpleQueue", SimulatedQueue)
        patch.setattr(osken, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
        patch.setattr(osken, "os", SimpleNamespace(write=Socket.write))
        # The processor takes as long for a message as the clock takes to be read.
        patch.setattr(osken, "time", SimpleNamespace(thread_time=clock.monotonic))
        patch.setattr(listen, "threading", SimpleNamespace(Thread=Thread, Event=WorkEvent))
        patch.setattr(aggregators, "listening_socket", _listening)
        yield


def _spawn(target: Any, *args: Any, **kwargs: Any) -> Thread:
    thread = Thread(target=target, args=args, kwargs=kwargs)
    thread.start()
    return thread


def _listening(address: str, netns: str | None = None) -> ThreadListener:
    assert netns is None
    return ThreadListener(*split_address(address))
