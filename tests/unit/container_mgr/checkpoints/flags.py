"""Flags of files as chattr(1) sets them; setting them needs root."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

GET, SET = 0x80086601, 0x40086602
IMMUTABLE, APPEND = 0x10, 0x20


def flags_of(path: Path) -> int:
    at = os.open(path, os.O_RDONLY)
    try:
        return int(struct.unpack("=Ixxxx", fcntl.ioctl(at, GET, bytes(8)))[0])
    finally:
        os.close(at)


def set_flags(path: Path, flags: int) -> None:
    """Set exactly one of the two flags, or none."""
    at = os.open(path, os.O_RDONLY)
    try:
        now = flags_of(path) & ~(IMMUTABLE | APPEND)
        fcntl.ioctl(at, SET, struct.pack("=Ixxxx", now | flags))
    finally:
        os.close(at)
