"""The controller's parent: it holds what must outlive a crash, and starts the next controller.

The parent keeps no state of the fabric. It holds the listening sockets, the aggregators'
connections (``controller.daemon.relay``) and the whole program, loaded: every child is a fork that
has nothing left to load, and shares its memory. Children that die
again and again before they are ready are followed later and later, but within a second while a
transaction is open, because jobs stand still then.

A child that was ordered to end ends the parent, and so does the first one when it refuses to start;
its exit status is then one that Python never uses, so no exception is mistaken for it. A child
whose loop is silent (``controller.daemon.pulse``) is killed. When the parent dies, the kernel kills
the child (prctl(2), PR_SET_PDEATHSIG), and the service manager starts both again.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import structlog

from base import clock
from controller.daemon.handover import HandoverListener
from controller.daemon.pulse import BEAT, CLOSED, OPEN, READY, Pulse, into, notify
from controller.daemon.relay import PLAIN, Relay
from controller.devices.openflow.session.tls import Speech

log = structlog.get_logger(__name__)

DELIBERATE = 90
"""Added to the status of a controller that ends on purpose: on order (0), or because it cannot run
(1, 2). Python itself exits with 0, 1, 2 or 120; a signal counts as a negative number."""
REFUSALS = (DELIBERATE + 1, DELIBERATE + 2)
SIGN_S = 1.0
"""How often the child's signs of life are checked."""
START_CHECKS = 300
"""Checks without a sign from a child that has not given any yet."""
SILENT_CHECKS = 30
"""Checks without a sign after the first one; then the child hangs. Checks are counted and not
seconds, because a machine that is suspended makes none."""
ABORT_CHECKS = 5
"""Checks between SIGABRT, which shows where it hangs, and SIGKILL."""
STUCK_CHECKS = 10
"""Checks after SIGKILL; then the service manager gets no more watchdog signals."""
LOADING_POLL_S = 0.05
"""How often a parent that must start a child checks whether it is still loading."""
LONGEST_PAUSE_S = 30.0
LONGEST_PAUSE_OPEN_S = 1.0
"""While a transaction is open: a regroup holds jobs, and they die of a long pause."""
ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that end the controller on purpose."""
_PR_SET_PDEATHSIG = 1
_SIGNS_BYTES = 1 << 16


def pause_s(early_deaths: int, *, moving: bool) -> float:
    """Return how long to wait before the next start.

    ``early_deaths``: children in a row that died before they were ready. ``moving``: a transaction
    is open.
    """
    if early_deaths <= 1:
        return 0.0
    longest = LONGEST_PAUSE_OPEN_S if moving else LONGEST_PAUSE_S
    return min(2.0 ** min(early_deaths - 2, 16), longest)


def keep(
    openflow: socket.socket,
    serve: Callable[[HandoverListener, Pulse], int],
    load: Callable[[], None],
    speech: Speech = PLAIN,
) -> int:
    """Run ``serve`` in a child until it ends on purpose; return its exit status.

    ``load`` imports what ``serve`` needs. ``openflow`` listens for aggregators; ``speech`` says how
    they speak.
    """
    return _Keeper(openflow, serve, load, speech).run()


class _Watch:
    """Judges the signs of life of one child. Pure."""

    def __init__(self) -> None:
        self.seen = False
        self._silent = 0

    def check(self, signs: bytes) -> signal.Signals | None:
        """Take the signs since the last check; return the signal to send to the child, if any."""
        if signs:
            self.seen, self._silent = True, 0
            return None
        self._silent += 1
        limit = SILENT_CHECKS if self.seen else START_CHECKS
        if self._silent == limit:
            return signal.SIGABRT
        return signal.SIGKILL if self._silent >= limit + ABORT_CHECKS else None

    @property
    def stuck(self) -> bool:
        """Whether even SIGKILL has not ended it."""
        limit = SILENT_CHECKS if self.seen else START_CHECKS
        return self._silent >= limit + ABORT_CHECKS + STUCK_CHECKS


@dataclass(slots=True, frozen=True)
class _Death:
    status: int
    """Exit status; negative for a signal."""
    ready: bool
    """The child had been ready before."""


class _Keeper:
    def __init__(
        self,
        openflow: socket.socket,
        serve: Callable[[HandoverListener, Pulse], int],
        load: Callable[[], None],
        speech: Speech,
    ) -> None:
        _allow_all_files()
        self._address: tuple[str, int] = openflow.getsockname()[:2]
        self._relay = Relay(openflow, speech=speech)
        self._serve = serve
        self._load = load
        self._loading = threading.Thread(target=self._load_all, name="load")
        self._child = 0
        self._child_ready = False
        self._any_ready = False
        """Whether any child was ever ready."""
        self._moving = False
        """A transaction is open, by the last report of a child."""
        self._ending = threading.Event()

    def run(self) -> int:
        """Start children until one ends on purpose."""
        for number in ENDING:
            signal.signal(number, self._end)
        # Signals come to this thread alone, which blocks them until the pid of a child is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        self._loading.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        self._rest(0.0)
        early_deaths = 0
        while True:
            born = clock.monotonic()
            death = self._one_life()
            refused = death.status in REFUSALS and not self._any_ready
            if death.status == DELIBERATE or refused or self._ending.is_set():
                self._relay.close()
                return _exit_status(death.status)
            early_deaths = 0 if death.ready else early_deaths + 1
            rest_s = pause_s(early_deaths, moving=self._moving)
            log.error(
                "controller_died",
                status=death.status,
                lived_s=round(clock.monotonic() - born, 1),
                was_ready=death.ready,
                transaction_open=self._moving,
                again_in=rest_s,
            )
            self._rest(rest_s)
            if self._ending.is_set():
                self._relay.close()
                return 0

    def _end(self, number: int, _frame: object) -> None:
        self._ending.set()
        if self._child:
            os.kill(self._child, number)

    def _rest(self, seconds: float) -> None:
        """Relay for a while, and until loading has ended: no fork may see half of the program."""
        until = clock.monotonic() + seconds
        while not self._ending.is_set():
            left = until - clock.monotonic()
            if left <= 0:
                if not self._loading.is_alive():
                    return
                left = LOADING_POLL_S
            self._relay.turn(min(left, 0.5))
            notify(BEAT)

    def _one_life(self) -> _Death:
        """Start a child, relay for it, and return how it ended."""
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # until the pid of the child is known
        if self._ending.is_set():  # ordered while no child ran
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            return _Death(0, ready=False)
        self._child_ready = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        signs, sign = os.pipe()
        os.set_blocking(signs, False)
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            os.close(signs)
            self._run_child(parent, ours, HandoverListener(theirs, self._address), sign)
        os.close(sign)
        self._child = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        theirs.close()
        self._relay.attach(ours)
        died = os.pidfd_open(pid)
        ended: list[int] = []

        def reap() -> None:
            self._child = 0  # from here on another process may get its pid
            _, status = os.waitpid(pid, 0)
            ended.append(os.waitstatus_to_exitcode(status))
            self._relay.detach()  # at once, so that no aggregator is disconnected

        self._relay.watch(died, reap)
        check_at = clock.monotonic()
        watch = _Watch()
        while not ended:
            self._relay.turn(max(0.0, check_at - clock.monotonic()))
            if clock.monotonic() >= check_at:
                check_at = clock.monotonic() + SIGN_S
                self._check(watch, signs)
        self._read_signs(signs)
        self._relay.unwatch(died)
        for fd in (died, signs):
            os.close(fd)
        return _Death(ended[0], self._child_ready)

    def _read_signs(self, signs: int) -> bytes:
        """Read the child's signs; notify the service manager when it is ready."""
        try:
            found = os.read(signs, _SIGNS_BYTES)
        except BlockingIOError:
            found = b""
        if READY in found:
            self._child_ready = self._any_ready = True
            notify(READY)
        opened, closed = found.rfind(OPEN), found.rfind(CLOSED)
        if opened != closed:  # a child that reported neither leaves its predecessor's report
            self._moving = opened > closed
        return found

    def _check(self, watch: _Watch, signs: int) -> None:
        """Check for signs of life; end a child that hangs, unless it was ordered to end."""
        found = self._read_signs(signs)
        due = watch.check(found)
        if not watch.stuck:
            notify(BEAT)
        if due is not None and self._child and not self._ending.is_set():
            log.error("controller_hangs", signal=due.name)
            os.kill(self._child, due)

    def _load_all(self) -> None:
        """Load the program; children share its memory."""
        self._load()
        gc.freeze()

    def _run_child(
        self,
        parent: int,
        ours: socket.socket,
        listener: HandoverListener,
        sign: int,
    ) -> NoReturn:
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        ours.close()
        self._relay.disown()
        faulthandler.enable()  # SIGABRT then shows where every thread was
        sys.exit(DELIBERATE + self._serve(listener, into(sign)))


def _exit_status(status: int) -> int:
    """Return the parent's exit status for a child's."""
    if status < 0:
        return 128 - status
    return status - DELIBERATE if status in (DELIBERATE, *REFUSALS) else status


def _allow_all_files() -> None:
    """Raise the limit of open files as far as allowed: an aggregator needs two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
