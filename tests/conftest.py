"""What holds for every test: virtual time, and the same examples on every machine.

Tests of units and contracts run in virtual time, which jumps when nothing can run
(``testbed.simulated``). A test that needs the real world (sockets, child processes, threads of a
library) has the mark ``real_time``.

A limit on an example's time would fail a slow machine, and a seed of the day would fail a change
that is not to blame. ``LIGHTLOOM_EXPLORE=1`` looks for new stories instead (``make explore``).

Programs that tests start inherit that Ctrl-C is ignored where a shell runs the tests in the
background, and the end of the terminal under ``nohup``, so both are set again here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

from testbed.simulated.loop import VirtualPolicy, simulation

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("explore" if os.environ.get("LIGHTLOOM_EXPLORE") else "same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_VIRTUAL = {"unit", "contract", "stories"}
"""Folders whose tests run in virtual time."""

asyncio.set_event_loop_policy(VirtualPolicy())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run the test with its fixtures in virtual time, unless it needs the real one.

    A program that the test ran may have configured structlog: the next test finds it as new.
    """
    real = item.get_closest_marker("real_time") or not _VIRTUAL & {
        p.name for p in item.path.parents
    }
    try:
        with contextlib.nullcontext() if real else simulation():
            return (yield)
    finally:
        structlog.reset_defaults()
