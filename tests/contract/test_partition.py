"""F20: no partition, however timed, gives one endpoint to two containers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.contract.partition import run_once

RUNS = 80
"""``benchmarks/agent_faults.py`` plays 10,000."""


async def test_no_endpoint_is_ever_given_twice(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    for seed in range(RUNS):
        directory = tmp_path / str(seed)
        directory.mkdir()
        counted += await run_once(seed, directory)
    assert counted["double"] == counted["stolen"] == 0
    assert counted["started"] > RUNS
    assert counted["refused"] > RUNS
