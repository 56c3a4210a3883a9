"""The controller's parent: it holds what must outlive a crash, and starts the next controller.

The parent keeps no state of the fabric. It holds the listening sockets, the aggregators'
connections (``controller.of_front``) and, once its child serves, the whole program, loaded: a
child that dies is followed by a fork that has nothing left to load. A child that ends by itself
(told to, or with an error that it has told) ends the parent with the same status. When the parent
dies, the kernel kills the child (prctl(2), PR_SET_PDEATHSIG), and whoever runs the parent starts
both again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

import structlog

from controller.of_front import Front
from controller.of_handed import HandedOver

log = structlog.get_logger(__name__)

MEANT = frozenset({0, 1, 2})
"""Exit statuses of a controller that ends on purpose; every other end is a crash."""
LOAD_AFTER_S = 5.0
"""The first child loads the program itself, undisturbed; the parent does so this much later."""
LOADED_YET_S = 0.05
"""How often a parent that has to start the next child asks whether it is still loading."""
STEADY_S = 10.0
"""A controller that lived for less was killed by something that may still be there."""
LONGEST_PAUSE_S = 30.0
_PR_SET_PDEATHSIG = 1


def pause_s(short_lives: int) -> float:
    """Return how long to wait before the next start, after so many short lives in a row."""
    return 0.0 if short_lives <= 1 else min(2.0 ** (short_lives - 2), LONGEST_PAUSE_S)


def keep(
    openflow: socket.socket, serve: Callable[[HandedOver], int], load: Callable[[], None]
) -> int:
    """Run ``serve`` in a child until it ends on purpose; return its exit status.

    ``load`` imports what ``serve`` needs. ``openflow`` listens for aggregators.
    """
    return _Keeper(openflow, serve, load).run()


class _Keeper:
    def __init__(
        self, openflow: socket.socket, serve: Callable[[HandedOver], int], load: Callable[[], None]
    ) -> None:
        _allow_all_files()
        self._address: tuple[str, int] = openflow.getsockname()[:2]
        self._front = Front(openflow)
        self._serve = serve
        self._load = load
        self._loading: threading.Thread | None = None
        self._child = 0
        self._leaving = threading.Event()

    def run(self) -> int:
        """Start children until one ends on purpose."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        short_lives = 0
        while True:
            born = time.monotonic()
            status = self._one_life()
            if status in MEANT or self._leaving.is_set():
                self._front.close()
                return status if status >= 0 else 128 - status
            lived_s = time.monotonic() - born
            short_lives = short_lives + 1 if lived_s < STEADY_S else 1
            rest_s = pause_s(short_lives)
            log.error("controller_died", status=status, lived_s=round(lived_s, 1), again_in=rest_s)
            self._rest(rest_s)
            if self._leaving.is_set():
                self._front.close()
                return 0

    def _leave(self, number: int, _frame: object) -> None:
        self._leaving.set()
        if self._child:
            os.kill(self._child, number)

    def _rest(self, seconds: float) -> None:
        """Keep the switches for a while, and until nothing is half loaded: that must not fork."""
        until = time.monotonic() + seconds
        while not self._leaving.is_set():
            left = until - time.monotonic()
            if left <= 0:
                if self._loading is None or not self._loading.is_alive():
                    return
                left = LOADED_YET_S
            self._front.turn(min(left, 0.5))

    def _one_life(self) -> int:
        """Start a child, relay for it, and return its exit status; negative for a signal."""
        sys.stdout.flush()
        sys.stderr.flush()
        signals = (signal.SIGTERM, signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until the child's pid is known
        if self._leaving.is_set():  # told while there was no child to pass it on to
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            return 0
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            self._be_the_child(parent, ours, theirs, signals)
        self._child = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        theirs.close()
        self._front.attach(ours)
        died = os.pidfd_open(pid)
        ended: list[int] = []

        def reap() -> None:
            self._child = 0  # from here on its pid may become somebody else's
            _, status = os.waitpid(pid, 0)
            ended.append(os.waitstatus_to_exitcode(status))
            self._front.detach()  # at once: nobody hangs up on a switch any more

        self._front.watch(died, reap)
        load_at = time.monotonic() + LOAD_AFTER_S
        while not ended:
            self._front.turn(None if self._loading else max(0.0, load_at - time.monotonic()))
            if self._loading is None and time.monotonic() >= load_at:
                self._loading = threading.Thread(target=self._load_all, name="load")
                self._loading.start()
        self._front.unwatch(died)
        os.close(died)
        return ended[0]

    def _load_all(self) -> None:
        """Load the program; what was loaded is shared with every later child."""
        self._load()
        gc.freeze()

    def _be_the_child(
        self,
        parent: int,
        ours: socket.socket,
        theirs: socket.socket,
        signals: tuple[signal.Signals, ...],
    ) -> NoReturn:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        ours.close()
        self._front.disown()
        sys.exit(self._serve(HandedOver(theirs, self._address)))


def _allow_all_files() -> None:
    """Raise the limit of open files as far as allowed: two a switch are needed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
