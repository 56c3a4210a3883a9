"""The order of what is ready is drawn: what was acknowledged is durable in every order.

Hypothesis draws the story and the seed of its order, shortens what fails, and prints both;
``LIGHTLOOM_STORIES`` sets how many stories are told.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.stories import clients, dropping, writers
from tests.stories.clients import Step
from tests.stories.dropping import STEPS, Drop
from tests.stories.writers import Change

SEEDS = st.integers(0, 2**32 - 1)
JOBS = st.sampled_from("abc")


def told(stories: int, *, shortened: bool = True) -> settings:
    """Return the settings for ``stories`` stories, or as many as the environment asks for.

    One that fails is not ``shortened`` where that takes minutes.
    """
    return settings(
        max_examples=int(os.environ.get("LIGHTLOOM_STORIES", "0")) or stories,
        suppress_health_check=list(HealthCheck),
        phases=[phase for phase in Phase if shortened or phase is not Phase.shrink],
    )


def steps(*what: str, until_ms: int) -> st.SearchStrategy[Step]:
    """Return steps of these kinds within ``until_ms``."""
    return st.builds(
        Step,
        what=st.sampled_from(what),
        job=JOBS,
        at_ms=st.integers(0, until_ms // 5).map(lambda n: 5 * n),
        count=st.integers(1, 6),
    )


SUBMITS = st.permutations([Step("submit", "a", 0, 4), Step("submit", "b", 0, 5)])


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="the queue writes a job as it was before the cancel that is under way",
)
@told(400)
@given(first=SUBMITS, others=st.lists(steps("cancel", until_ms=150), min_size=1), seed=SEEDS)
def test_a_cancel_that_was_acknowledged_is_durable(
    first: list[Step], others: list[Step], seed: int
) -> None:
    clients.story([*first, *others], seed)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="an owed row is dropped when an older one goes in the same commit",
)
@told(300)
@given(
    changes=st.lists(
        st.builds(Change, how=st.sampled_from(["commit", "record"]), at_ms=st.integers(0, 1000)),
        min_size=2,
        max_size=8,
    ),
    seed=SEEDS,
)
def test_a_change_that_was_acknowledged_is_durable(changes: list[Change], seed: int) -> None:
    writers.story(changes, seed)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="a drop writes the record as it was before it computed in a thread",
)
@told(15, shortened=False)
@given(
    drops=st.lists(
        st.builds(Drop, step=st.integers(1, STEPS), at_ms=st.integers(0, 30)),
        min_size=2,
        max_size=4,
        unique_by=lambda drop: drop.step,
    ),
    seed=SEEDS,
)
def test_a_drop_that_was_acknowledged_is_durable(drops: list[Drop], seed: int) -> None:
    dropping.story(drops, seed)


@pytest.mark.real_time  # other processes
def test_a_story_is_the_same_every_time() -> None:
    logs = [
        subprocess.run(
            [sys.executable, "-m", "tests.stories", "3"],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            capture_output=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert logs[0] == logs[1] and b"JobStarted" in logs[0]
