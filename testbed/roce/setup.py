"""Installs QEMU and builds the guests' kernel and initramfs: ``python -m testbed.roce.setup``."""

from __future__ import annotations

import sys

import structlog

from testbed.guests.errors import GuestError
from testbed.guests.parts import install
from testbed.roce.guest import RECIPE


def main() -> int:
    """Print the guests' boot files; return 1 with one line on stderr on failure. Idempotent."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        parts = install(RECIPE)
    except GuestError as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 1
    print(parts.kernel, parts.initramfs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
