"""``python -m testbed.roce.setup``: QEMU, and the guests' kernel and initramfs. Idempotent."""

from __future__ import annotations

import shutil
import sys

import structlog

from testbed.roce import packages
from testbed.roce.errors import RoceError
from testbed.roce.guest import QEMU
from testbed.roce.parts import Parts, ensure


def main() -> int:
    """Print what a guest boots; 1 with one line on stderr when it can not be had."""
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
    """Make the guests' parts; lists that are missing or name what is gone are read anew once."""
    try:
        return ensure()
    except RoceError:
        packages.refresh()
        return ensure()


if __name__ == "__main__":
    sys.exit(main())
