"""Builds container images if they are missing: ``python -m testbed.setup.image [NAME...]``.

The default is what every rack needs: ``trainer``, and ``probe`` for measurements of links and
storage. ``torch`` is the PyTorch image of the examples and of measurements of collectives.

It uses the engine of a running rack, else starts one as the rack does and ends it afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Callable, Sequence

import structlog

from testbed.engine import Engine, EngineError, EngineInfo
from testbed.image.build import ensure_image
from testbed.image.errors import ImageError
from testbed.image.probe import ensure_probe_image
from testbed.image.torch import ensure_torch_image
from testbed.rack import RUN_DIR, RackError, preflight, record
from testbed.rack.process import marked

BUILDERS = {
    "trainer": ensure_image,
    "torch": ensure_torch_image,
    "probe": ensure_probe_image,
}
DEFAULT = ("trainer", "probe")
LOCK_WAIT_S = 900.0
"""Longest wait for a rack that goes up for the first time and builds the image, for minutes."""


def main() -> int:
    """Print the images' names; return 1 with one line on stderr on failure."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    parser = argparse.ArgumentParser(prog="python -m testbed.setup.image")
    parser.add_argument("images", nargs="*", metavar="NAME", help=", ".join(BUILDERS))
    names = parser.parse_args().images or DEFAULT
    if unknown := [name for name in names if name not in BUILDERS]:
        parser.error(f"no image {unknown[0]}: choose from {', '.join(BUILDERS)}")
    try:
        for image in ensure([BUILDERS[name] for name in names]):
            print(image)
    except (EngineError, ImageError, RackError) as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 1
    return 0


def ensure(builders: Sequence[Callable[[EngineInfo], str]], *, private: bool = False) -> list[str]:
    """Return the images' names; build those that are missing.

    With ``private`` they are the private engine's, as lanes need them, else those of the engine
    that a rack would take. While a rack goes up or down it waits, at most LOCK_WAIT_S. Raises
    EngineError, ImageError; RackError(conflict) when the other command takes longer.
    """
    with preflight.only_one(wait_s=LOCK_WAIT_S, progress=_say), marked(RUN_DIR):
        written = record.load(RUN_DIR)
        serving = written is not None and any(process.alive() for process in written.processes)
        running = written is not None and serving and bool(written.docker_host)
        if written is not None and running and (written.docker_private or not private):
            at = EngineInfo(written.docker_host, written.docker_private)
            return [build(at) for build in builders]
        engine = Engine(RUN_DIR, prefer_host=not private)
        try:
            started = engine.start()
            return [build(started) for build in builders]
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
