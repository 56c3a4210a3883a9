"""``python -m testbed.setup.image [torch]``: build a container image if it is missing.

Without a word the trainer's, which every rack needs; ``torch`` is PyTorch's, which examples need.

Uses the engine of a rack that is up, else starts one as the rack would and ends it again.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Callable

import structlog

from testbed.engine import Engine, EngineError, EngineInfo
from testbed.image.build import ensure_image
from testbed.image.errors import ImageError
from testbed.image.torch import ensure_torch_image
from testbed.rack import RUN_DIR, RackError, preflight, record
from testbed.rack.process import marked

_BUILDERS = {"trainer": ensure_image, "torch": ensure_torch_image}
LOCK_WAIT_S = 900.0
"""A rack that goes up for the first time builds the image itself, which takes minutes."""


def main() -> int:
    """Print the image's name; 1 with one line on stderr when it can not be had."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = argparse.ArgumentParser(prog="python -m testbed.setup.image")
    parser.add_argument("image", nargs="?", choices=_BUILDERS, default="trainer")
    given = parser.parse_args()
    try:
        print(ensure(_BUILDERS[given.image]))
    except (EngineError, ImageError, RackError) as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 1
    return 0


def ensure(build: Callable[[EngineInfo], str]) -> str:
    """Return the image's name, built when it was missing.

    While a rack goes up or down it waits, LOCK_WAIT_S at most. EngineError, ImageError;
    RackError(conflict) when the other command takes longer.
    """
    with preflight.only_one(wait_s=LOCK_WAIT_S, progress=_say), marked(RUN_DIR):
        written = record.load(RUN_DIR)
        serving = written is not None and any(process.alive() for process in written.processes)
        if written is not None and serving and written.docker_host:  # none: a start was killed
            return build(EngineInfo(written.docker_host, written.docker_private))
        engine = Engine(RUN_DIR)
        try:
            return build(engine.start())
        finally:
            engine.stop()
            if written is None:
                shutil.rmtree(RUN_DIR, ignore_errors=True)
                with contextlib.suppress(OSError):
                    RUN_DIR.parent.rmdir()


def _say(line: str) -> None:
    print(f"setup: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
