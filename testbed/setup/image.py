"""Builds container images if they are missing: ``python -m testbed.setup.image [NAME...]``.

The default is what every rack needs: ``trainer``, and ``probe`` for measurements of links and
storage. ``torch`` is the PyTorch image of the examples and of measurements of collectives.

It uses the engine of a running rack, else starts one on the same data root and ends it afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Sequence

import structlog

from testbed.engine import (
    BUILD_DIR,
    DockerEngine,
    DockerEngineError,
    EngineInfo,
    builder_engine,
    host_engine,
)
from testbed.image.build import ensure_image
from testbed.image.errors import ImageError
from testbed.image.probe import ensure_probe_image
from testbed.image.torch import ensure_torch_image
from testbed.rack import RUN_DIR, RackError, locks
from testbed.rack.process import marked

BUILDERS = {
    "trainer": ensure_image,
    "torch": ensure_torch_image,
    "probe": ensure_probe_image,
}
DEFAULT = ("trainer", "probe")


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
    except (DockerEngineError, ImageError, RackError) as error:
        print(f"{error} ({error.hint})", file=sys.stderr)
        return 1
    return 0


def ensure(builders: Sequence[Callable[[EngineInfo], str]], *, private: bool = False) -> list[str]:
    """Return the images' names; build those that are missing.

    With ``private`` they are the private engine's, as lanes need them, else those of the engine
    that a rack would use. The rack is not locked meanwhile. While another command uses the
    private engine's images it waits, at most ``locks.BUILD_S``. Raises DockerEngineError and
    ImageError; RackError(conflict) when the other command takes longer.
    """
    at = None if private else host_engine()
    if at is None:
        with locks.STORE.held(wait_s=locks.BUILD_S, progress=_print), marked(BUILD_DIR):
            at = DockerEngine(RUN_DIR).answering()
            if at is None:
                return _on_its_own(builders)
    return [build(at) for build in builders]


def _on_its_own(builders: Sequence[Callable[[EngineInfo], str]]) -> list[str]:
    engine = builder_engine()
    try:
        started = engine.start()
        return [build(started) for build in builders]
    finally:
        engine.stop()
        shutil.rmtree(BUILD_DIR, ignore_errors=True)


def _print(line: str) -> None:
    print(f"setup: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
