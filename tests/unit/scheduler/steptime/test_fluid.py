"""The time-domain reference reproduces the published times of Yan et al. (OFC 2022)."""

from __future__ import annotations

import pytest

from scheduler.steptime.fluid import Trainer, completion_s, mean_rates
from scheduler.steptime.profile import StepProfile

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


def test_mean_rates_explain_the_completion() -> None:
    # Two rings on one link: what a step takes follows from the mean rate while it sends.
    one, other = StepProfile(0.2, 0.3, 0.0), StepProfile(0.5, 0.2, 0.0)
    trainers = [Trainer("a", one, 2, {"l": 1}, 50), Trainer("b", other, 2, {"l": 1}, 50)]
    rates = mean_rates(trainers, {"l": 0.5}, 10_000)
    assert rates is not None
    steady = completion_s(trainers, {"l": 0.5}, "a") / 50
    assert one.step_s(2, rates["a"]) == pytest.approx(steady, rel=0.05)


def test_too_short_a_look_has_no_rates() -> None:
    job = StepProfile(0.1, 0.1, 0.0)
    slow = StepProfile(1000.0, 0.1, 0.0)
    trainers = [Trainer("a", job, 2, {"l": 1}), Trainer("b", slow, 2, {"l": 1})]
    assert mean_rates(trainers, {"l": 1.0}, 1000) is None
    assert mean_rates([Trainer("a", StepProfile(0, 0), 2, {})], {}, 1000) is None
    assert mean_rates([], {}, 10) is None


def test_a_step_of_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="never ends"):
        completion_s([Trainer("red", StepProfile(0, 0), 2, {}, 1)], {}, "red")
