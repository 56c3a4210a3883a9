"""Installs QEMU and builds the guests' kernel and initramfs: ``python -m testbed.roce.setup``."""

from __future__ import annotations

import shutil
import sys

import structlog

from testbed.roce import packages
from testbed.roce.errors import RoceError
from testbed.roce.guest import QEMU
from testbed.roce.parts import Parts, ensure


def main() -> int:
    """Print the guests' boot files; return 1 with one line on stderr on failure. Idempotent."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        if shutil.which(QEMU) is None:
            packages.refresh()
            packages.install_qemu()
        parts = _ensure()
    except RoceError as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 1
    print(parts.kernel, parts.initramfs)
    return 0


def _ensure() -> Parts:
    """Build the guests' parts; missing or outdated package lists are updated once."""
    try:
        return ensure()
    except RoceError:
        packages.refresh()
        return ensure()


if __name__ == "__main__":
    sys.exit(main())
