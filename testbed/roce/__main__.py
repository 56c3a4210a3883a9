"""Runs ``python -m testbed.roce``: the experiment on its own rack, and prints its figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import structlog

from testbed.demo import DemoError
from testbed.guests.errors import GuestError
from testbed.rack import RackError
from testbed.roce.experiment import run

RUN_DIR = Path("/run/lightloom/roce")


def main() -> int:
    """Print one JSON document; return 1 with one line on stderr on failure."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        document = run(RUN_DIR, progress=lambda line: print(line, file=sys.stderr))
    except (GuestError, RackError, DemoError) as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 1
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
