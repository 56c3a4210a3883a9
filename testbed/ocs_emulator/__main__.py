"""Runs ``python -m testbed.ocs_emulator``; see ``command``."""

import sys

from testbed.ocs_emulator.command import main

if __name__ == "__main__":
    sys.exit(main())
