"""What jobs print is bounded by what it becomes in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator

import pytest

from controller.devices.engine import LogLine
from controller.measurements import lines
from controller.measurements.lines import Collected


def printed(text: str) -> LogLine:
    return LogLine(0, 1.0, "stdout", text)


@pytest.mark.parametrize(
    "value", ["[" + ",".join(["[]"] * 4000) + "]", "{" + ",".join(['"a":{}'] * 2000) + "}"]
)
def test_short_values_fill_no_memory(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MOST_VALUES", 100_000)
    found = Collected()
    tracemalloc.start()
    for _ in range(200):
        found.add(0, 1, printed(f'{{"probe":"pair","x":{value}}}'))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0 < len(found) < 30
    assert used < 100 * 100_000
    assert "lines are left out: 200000 lines, 64 MiB and 100000 values are kept" in str(
        found.problems()
    )


def test_a_line_of_too_many_values_is_not_parsed() -> None:
    found = Collected()
    many = ",".join(["[]"] * lines.MOST_LINE_VALUES)
    found.add(0, 1, printed(f'{{"probe":"pair","x":[{many}]}}'))
    assert len(found) == 0
    assert "1 lines are left out" in found.problems()[0]


async def test_the_values_of_a_run_that_is_read_again_count_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines, "MOST_VALUES", 40)

    async def output() -> AsyncIterator[LogLine]:
        for number in range(10):
            yield printed(f'{{"n":{number}}}')

    found = Collected()
    for _ in range(5):
        await found.read(0, 1, output())
    assert len(found) == 10
    assert found.problems() == []
