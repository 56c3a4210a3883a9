"""What holds for every test: property tests tell the same stories on every machine.

A limit on an example's time would fail a slow machine, and a seed of the day would fail a change
that is not to blame. ``LIGHTLOOM_EXPLORE=1`` looks for new stories instead (``make explore``).

Programs that tests start inherit that Ctrl-C is ignored where a shell runs the tests in the
background, so it is set again here.
"""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("explore" if os.environ.get("LIGHTLOOM_EXPLORE") else "same")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
