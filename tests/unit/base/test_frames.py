"""Frames carry frozen values of one package, and nothing that could do something."""

from __future__ import annotations

import io
import os
import pickle
import time

import pytest

from base import frames
from base.frames import FrameError, body_of, packed, unpacked
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Limits, Move, Policy, Site
from scheduler.regroup.batches import BatchError
from scheduler.regroup.tasks import BatchesTask, RegroupTask
from tests.parts.tasks import Loose, Surroundings

FABRIC = Fabric(
    Site("small", (Endpoint("a", ocs="o"),), (Aggregator("as0", {"o": 1}),)),
    {"a": "as0"},
    (Job("red", ("a",), policy=Policy.LIVE),),
    frozenset({"a"}),
    held_ports={("as0", "p"): 1},
)


def back(value: object, package: str = "scheduler") -> object:
    """Return what the other side reads."""
    return unpacked(body_of(io.BytesIO(packed(value))), package)


def test_values_of_the_package_come_back_equal() -> None:
    task = RegroupTask(FABRIC, Limits(max_moves=3))
    assert back(task) == task
    assert back(("value", None)) == ("value", None)


def test_results_come_back_as_they_were_made() -> None:
    """Plain data alone: a ``Counter`` among it is refused on the other side."""
    ends = tuple(Endpoint(name, ocs="o") for name in "ab")
    site = Site("two", ends, (Aggregator("as0", {"o": 2}), Aggregator("as1", {"o": 2})))
    jobs = tuple(Job(f"job-{name}", (name,), policy=Policy.LIVE) for name in "ab")
    fabric = Fabric(site, dict.fromkeys("ab", "as0"), jobs)
    moves = tuple(Move(name, "as0", "as1") for name in "ab")
    cut = BatchesTask(fabric, moves, max_dark=1, max_pauses=1, park=False)(time.monotonic)
    assert len(cut.batches) == 2
    assert back(cut) == cut
    plan = RegroupTask(fabric, Limits())(time.monotonic)
    assert back(plan) == plan


def test_errors_of_the_package_keep_what_they_say() -> None:
    found = back(("error", BatchError("no order", 7)))
    assert isinstance(found, tuple)
    assert (type(found[1]), str(found[1]), found[1].needed) == (BatchError, "no order", 7)


class Calls:
    """Would call a function where it is read."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("value", "package", "name"),
    [
        (Calls(), "scheduler", "system"),
        (os.getpid, "scheduler", "getpid"),
        (print, "scheduler", "print"),
        (KeyError("no"), "scheduler", "KeyError"),
        (Surroundings(1, frozenset(), frozenset(), 0), "scheduler", "Surroundings"),
        (Loose(), "tests.parts.tasks", "Loose"),
        (packed, "base", "packed"),
    ],
)
def test_everything_else_is_refused(value: object, package: str, name: str) -> None:
    with pytest.raises(FrameError, match=f"{name} is not a value of {package}"):
        back(value, package)


def test_a_similar_name_is_another_package() -> None:
    with pytest.raises(FrameError, match="is not a value of sched"):
        back(FABRIC, "sched")


def test_what_cannot_be_sent_is_refused_before_it_is_sent() -> None:
    with pytest.raises(FrameError, match="function cannot be sent"):
        packed(lambda: None)


@pytest.mark.parametrize("body", [b"", b"\x80\x05", b"nonsense", pickle.dumps([1])[:-1]])
def test_a_wrong_body_is_an_error_of_its_own(body: bytes) -> None:
    with pytest.raises(FrameError, match="cannot be read"):
        unpacked(body, "scheduler")


def test_both_sides_bound_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = packed("x" * 100)
    monkeypatch.setattr(frames, "MOST_BYTES", 50)
    with pytest.raises(FrameError, match="too many"):
        packed("x" * 100)
    with pytest.raises(FrameError, match="announced"):
        body_of(io.BytesIO(frame))


@pytest.mark.parametrize("length", [0, 4, 8, 20])
def test_a_stream_that_ends_in_a_frame_is_at_its_end(length: int) -> None:
    with pytest.raises(EOFError):
        body_of(io.BytesIO(packed("x" * 100)[:length]))
