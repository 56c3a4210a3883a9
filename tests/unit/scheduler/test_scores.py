"""Scores of placements and of the remaining capacity."""

from __future__ import annotations

import pytest

from scheduler.scores import Scorer
from tests.unit.scheduler.racks import scattered


def test_scores() -> None:
    fabric = scattered()
    scorer = Scorer(fabric)
    scores = scorer.of(["g0", "g1"])
    assert (scores.span, scores.span_reachable) == (2, 1)
    assert scorer.left.idle == 4
    assert scorer.left.largest == 2
    assert scorer.left.stranded[4] == 1.0
    assert scorer.left.external == 0.5
    assert scorer.excess(["g0", "g1"], fabric.homes) == 1
    assert scorer.excess(["g0", "g1"], {"g0": "a", "g1": "a"}) == scorer.excess([], {}) == 0
    with pytest.raises(KeyError):
        scorer.of(["unknown"])
