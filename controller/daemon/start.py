"""The first steps of a controller: it locks its state directory and opens its OpenFlow port.

Separate from ``controller.daemon.compose``, whose imports take about a second: an aggregator that
connects in that second is answered as soon as the program is loaded, instead of at its own next
attempt (Open vSwitch tries once a second).
"""

from __future__ import annotations

import errno
import fcntl
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from base import clock
from controller.base.errors import ServiceError
from controller.devices.openflow.session.listen import listening_socket
from sitefile.model import CabledSite

RELEASE_S = 5.0
"""Time that a dead predecessor has to release the state directory and its addresses: process exit
can be slow on a busy machine, and files are closed one after the other."""
_T = TypeVar("_T")


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Lock the state directory; ServiceError when another controller uses it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        held = (state_dir / "lock").open("w")
    except OSError as error:
        raise ServiceError(
            "failed",
            f"cannot use {state_dir}: {error.strerror}",
            object=f"directory/{state_dir}",
            hint="choose another with --state-dir",
        ) from error
    with held:
        if not _locked(held):
            raise ServiceError(
                "conflict",
                f"another controller uses {state_dir}",
                object=f"directory/{state_dir}",
                hint="stop it first, or choose another with --state-dir",
            )
        yield


def _locked(file: IO[str]) -> bool:
    """Lock ``file``; wait a little for a killed predecessor that still holds it."""
    until = clock.monotonic() + RELEASE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() >= until:
                return False
            clock.sleep(0.01)
        else:
            return True


def when_released(bind: Callable[[], _T]) -> _T:
    """Return what ``bind`` returns; wait a little while the address is in use. OSError."""
    until = clock.monotonic() + RELEASE_S
    while True:
        try:
            return bind()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or clock.monotonic() >= until:
                raise
        clock.sleep(0.02)


def openflow_listener(site: CabledSite) -> socket.socket:
    """Listen for aggregators on the site's address. ServiceError when that is impossible."""
    try:
        return when_released(lambda: listening_socket(site.openflow_listen, site.openflow_netns))
    except ValueError as error:
        raise ServiceError(
            "invalid",
            str(error),
            object=f"address/{site.openflow_listen}",
            hint="e.g. 127.0.0.1:6653",
        ) from None
    except OSError as error:
        where = f" in namespace {site.openflow_netns}" if site.openflow_netns else ""
        raise ServiceError(
            "failed",
            f"cannot listen for OpenFlow on {site.openflow_listen}{where}: {error.strerror}",
            object=f"address/{site.openflow_listen}",
            hint="is another controller running? is this root?",
        ) from error
