"""A lane lives as long as its folder is held."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.lanes import LaneError, record
from testbed.processes import lane_of


@pytest.fixture(autouse=True)
def lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LANES", tmp_path)


@pytest.mark.parametrize("name", ["red", "a", "r2-d2", "x" * 24])
def test_names(name: str) -> None:
    record.check_name(name)


@pytest.mark.parametrize("name", ["", "Red", "a/b", "..", "-a", "a-", "a b", "x" * 25])
def test_names_that_cannot_be_paths_are_refused(name: str) -> None:
    with pytest.raises(LaneError) as caught:
        record.check_name(name)
    assert caught.value.code == "invalid"


def test_a_record_is_read_as_it_was_written() -> None:
    held = record.claim("red")
    assert record.load("red") is None
    lane = record.RackLane("red", 10, 11, 5.0, {8470: 40000})
    record.save(lane)
    assert record.load("red") == lane
    assert record.names() == ("red",)
    os.close(held)


def test_a_held_lane_is_not_seized_and_a_name_is_given_once() -> None:
    held = record.claim("red")
    assert record.seize("red") is None
    assert record.holds(os.getpid(), "red")
    with pytest.raises(LaneError) as caught:
        record.claim("red")
    assert caught.value.code == "conflict"
    os.close(held)
    assert not record.holds(os.getpid(), "red")
    seized = record.seize("red")
    assert seized is not None
    os.close(seized)


def test_a_lane_that_is_gone_is_not_seized() -> None:
    assert record.seize("red") is None


@pytest.mark.parametrize(
    ("path", "lane"),
    [
        ("/", None),
        ("/ll-rack/0123", None),
        ("/ll-lane-red", "red"),
        ("/sys/fs/cgroup/cpu/ll-lane-red/ll-rack/0123", "red"),
    ],
)
def test_the_lane_of_a_control_group(path: str, lane: str | None) -> None:
    assert lane_of(path) == lane
