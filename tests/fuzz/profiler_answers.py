"""Feeds mutated answers of TensorFlow's profiler to the agent's decoder, guided by its coverage.

By hand, for hours: ``python -m tests.fuzz.profiler_answers -max_total_time=3600 CORPUS``.
"""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["container_mgr.recordings.xspace"]):
    from container_mgr.recordings import xspace


def one_input(data: bytes) -> None:
    """An answer is invalid, or what it says is within bounds."""
    with contextlib.suppress(xspace.InvalidError):
        profile = xspace.read(data)
        assert 0 < profile.length <= xspace.LONGEST_NS
        assert 0 <= profile.exposed <= profile.comm <= 2 * xspace.LONGEST_NS
        assert 0 <= profile.waited <= 2 * xspace.LONGEST_NS
        assert len(profile.calls) <= xspace.MOST_CALLS
        assert all(0 <= begin <= end for _, begin, end in profile.calls)


def main() -> None:
    """Fuzz until libFuzzer is told to stop."""
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
