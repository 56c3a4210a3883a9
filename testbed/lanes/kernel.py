"""Calls of Linux that Python 3.11 does not have: namespaces, mounts and a child's life.

Functions raise OSError with the kernel's error and the object.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

NEWNS = 0x00020000
NEWCGROUP = 0x02000000
NEWUTS = 0x04000000
NEWIPC = 0x08000000
NEWPID = 0x20000000
NEWNET = 0x40000000
"""CLONE_NEW... of linux/sched.h."""
OWN = NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWNET
"""What a lane's first process unshares; its pid namespace is made with it."""

READ_ONLY = 1
REMOUNT = 0x20
BIND = 0x1000
REC = 0x4000
PRIVATE = 0x40000
SHARED = 0x100000
"""MS_... of linux/mount.h."""

_DETACH = 2
_PR_SET_PDEATHSIG = 1
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_IFREQ = "16sh14x"

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give this process namespaces of its own; a new pid namespace is for its next child."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def enter(fd: int, flags: int) -> None:
    """Enter the namespaces ``flags`` of a process, by its pidfd, or one by its own file."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), "setns")


def mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount as mount(2) does; the kernel ignores what the flags make needless."""
    done = _libc.mount(
        source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(done, str(target))


def detach(target: Path) -> None:
    """Unmount ``target`` and everything below it, also where it is in use."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(_DETACH)), str(target))


def die_with_parent() -> None:
    """Make the kernel kill this process when its parent ends.

    The parent may have ended before; the caller checks that afterwards.
    """
    none = ctypes.c_ulong(0)
    kill = ctypes.c_ulong(signal.SIGKILL)
    _check(_libc.prctl(_PR_SET_PDEATHSIG, kill, none, none, none), "prctl")


def raise_loopback() -> None:
    """Set ``lo`` of this process's network namespace up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack(_IFREQ, b"lo", 0)
        _, flags = struct.unpack(_IFREQ, fcntl.ioctl(any_socket, _SIOCGIFFLAGS, asked))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack(_IFREQ, b"lo", flags | _IFF_UP))


def _check(result: int, about: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), about)
