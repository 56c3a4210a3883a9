"""The order of what is ready is drawn: what was acknowledged is durable in every order.

Hypothesis draws the story and the seed of its order, shortens what fails, and prints both;
``LIGHTLOOM_STORIES`` sets how many stories are told.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.stories import faults
from tests.stories.kinds import KINDS, SEEDS


def told(stories: int) -> settings:
    """Return the settings for ``stories`` stories, or as many as the environment asks for."""
    return settings(
        max_examples=int(os.environ.get("LIGHTLOOM_STORIES", "0")) or stories,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )


@told(25)
@given(story=KINDS["clients"].stories, seed=SEEDS)
def test_what_clients_were_promised_outlives_faults_and_deaths(story: Any, seed: int) -> None:
    KINDS["clients"].tell(story, seed)


@told(60)
@given(story=KINDS["cancels"].stories, seed=SEEDS)
def test_a_cancel_that_was_acknowledged_is_durable(story: Any, seed: int) -> None:
    KINDS["cancels"].tell(story, seed)


@told(15)
@given(story=KINDS["losses"].stories, seed=SEEDS)
def test_whatever_dies_a_job_goes_on_from_its_newest_step(story: Any, seed: int) -> None:
    KINDS["losses"].tell(story, seed)


@told(15)
@given(story=KINDS["faults"].stories, seed=SEEDS)
def test_no_fault_breaks_an_invariant(story: Any, seed: int) -> None:
    KINDS["faults"].tell(story, seed)


def test_light_comes_back_when_the_fault_is_mended() -> None:
    frozen_badly, of_the_job = 565, 1
    steps = [
        faults.Step("submit", 964),
        faults.Step("fail", frozen_badly),
        faults.Step("pull a fiber", of_the_job),
        faults.Step("mend", after_ms=20_000),
    ]
    faults.story(steps, 1, repairs=False)


@told(60)
@given(story=KINDS["checkpoints"].stories, seed=SEEDS)
def test_the_newest_step_that_can_be_had_is_restored(story: Any, seed: int) -> None:
    KINDS["checkpoints"].tell(story, seed)


@told(100)
@given(story=KINDS["writers"].stories, seed=SEEDS)
def test_a_change_that_was_acknowledged_is_durable(story: Any, seed: int) -> None:
    KINDS["writers"].tell(story, seed)


@told(15)
@given(story=KINDS["drops"].stories, seed=SEEDS)
def test_a_drop_that_was_acknowledged_is_durable(story: Any, seed: int) -> None:
    KINDS["drops"].tell(story, seed)


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
    assert all(f"{name}: ".encode() in logs[0] for name in KINDS)
