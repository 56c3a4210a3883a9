from __future__ import annotations

from typing import Any

import pytest

from container_mgr.docker.engine import Layers, PullState

STEPS: list[dict[str, Any]] = [
    {"status": "Pulling from team/net", "id": "1"},
    {"status": "Pulling fs layer", "id": "aa"},
    {"status": "Pulling fs layer", "id": "bb"},
    {"status": "Already exists", "id": "cc"},
    {"status": "Downloading", "id": "aa", "progressDetail": {"current": 10, "total": 100}},
    {"status": "Downloading", "id": "bb", "progressDetail": {"current": 5, "total": 50}},
    {"status": "Verifying Checksum", "id": "aa"},
    {"status": "Download complete", "id": "aa"},
    {"status": "Extracting", "id": "aa", "progressDetail": {"current": 7, "total": 100}},
    {"status": "Pull complete", "id": "aa"},
    {"status": "Digest: sha256:abc"},
]


@pytest.mark.parametrize(
    ("taken", "state"),
    [
        (0, PullState()),
        (1, PullState()),
        (4, PullState(1, 3)),
        (6, PullState(1, 3, 15, 150)),
        (8, PullState(1, 3, 105, 150)),
        (11, PullState(2, 3, 105, 150)),
    ],
)
def test_the_steps_of_a_pull_add_up(taken: int, state: PullState) -> None:
    layers = Layers()
    for step in STEPS[:taken]:
        layers.apply(step)
    assert layers.state() == state


@pytest.mark.parametrize(
    "step", [{}, {"id": 7}, {"id": "aa", "progressDetail": None}, {"status": None, "id": "aa"}]
)
def test_a_strange_step_is_no_error(step: dict[str, Any]) -> None:
    Layers().apply(step)
