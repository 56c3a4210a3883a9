"""The time-domain reference reproduces the published times of Yan et al. (OFC 2022)."""

from __future__ import annotations

import pytest

from scheduler.steptime.profile import StepProfile
from tests.unit.scheduler.steptime.fluid import Trainer, completion_s

SAMPLES = 1200
PAIR = (("as0", "as1"), ("as1", "as0"))


def paper_time(
    compute_s: float, ring_s: float, ratio: float, hide: float, *rings: tuple[str, int, int]
) -> float:
    """Return when the red job completes; rings are (name, ranks, crossings each way)."""
    profile = StepProfile(compute_s / SAMPLES, ring_s / SAMPLES, hide)
    trainers = [
        Trainer(name, profile, ranks, dict.fromkeys(PAIR, m) if m else {}, SAMPLES // ranks)
        for name, ranks, m in rings
    ]
    return completion_s(trainers, dict.fromkeys(PAIR, 1 / ratio), "red")


@pytest.mark.parametrize("fit", [(420, 151, 2.24, 0.5), (211, 153, 2.20, 0.0)])
@pytest.mark.parametrize(
    ("rings", "published"),
    [
        # Yan et al., OFC 2022: case a fragmented (ranks interleaved) and regrouped, then case b.
        ((("red", 4, 2), ("blue", 2, 1)), 407),
        ((("red", 4, 0), ("blue", 2, 0)), 109),
        ((("red", 3, 1), ("blue", 3, 1)), 368),
        ((("red", 3, 0), ("blue", 3, 0)), 140),
    ],
)
def test_the_papers_four_times(
    fit: tuple[float, float, float, float],
    rings: tuple[tuple[str, int, int], ...],
    published: float,
) -> None:
    assert paper_time(*fit, *rings) == pytest.approx(published, rel=0.02)


def test_reordering_alone_gains_about_half() -> None:
    found = paper_time(420, 151, 2.24, 0.5, ("red", 4, 1), ("blue", 2, 1))
    assert found == pytest.approx(257, rel=0.03)


def test_a_step_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="never ends"):
        completion_s([Trainer("red", StepProfile(0, 0), 2, {}, 1)], {}, "red")
