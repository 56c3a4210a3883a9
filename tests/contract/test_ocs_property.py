"""Tests scripts of random maps and random faults over all dialects in virtual time."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from pathlib import Path

import pytest
import structlog

from tests.contract.ocs_script import DIALECTS, Dialect, Tally, play, small

SCRIPTS = [60, pytest.param(1120, marks=pytest.mark.soak)]
"""Scripts per dialect; 9 x 1120 is just over 10^4. benchmarks/ocs_faults.py runs 10^5."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scripts", SCRIPTS)
@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
def test_it_converges_or_reports_why_and_never_affects_other_circuits(
    dialect: Dialect, scripts: int
) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.disable(logging.WARNING)
    personality = small(dialect.personality)
    total = Tally()

    async def all_of_them(state: Path) -> None:
        for seed in range(scripts):
            total.add(await play(dialect, personality, seed, state))

    try:
        with tempfile.TemporaryDirectory(dir=_memory()) as state:
            asyncio.run(all_of_them(Path(state)))
    finally:
        logging.disable(logging.NOTSET)
    assert total.wrong == []
    assert total.scripts == scripts
    assert total.dropped == 0
    assert total.frames > scripts
    assert total.converged > scripts // 3
    assert total.explained > 0


def _memory() -> str | None:
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() else None
