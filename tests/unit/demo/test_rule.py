import pytest

from testbed.demo.rule import (
    Base,
    TrainerCalibration,
    crossings,
    derive_rates,
    fixed_samples,
    measured_overlap,
    predicted_step_s,
)

MEASURED = TrainerCalibration(compute_s=0.18, gradient_bytes=4_088_680, overlap=0.0, ring_s=0.18)
HOMES = {"g0": "as0", "g1": "as0", "g2": "as1", "g3": "as1"}


@pytest.mark.parametrize(("overlap", "ratio"), [(0.0, 0.725), (0.5, 0.36)])
def test_rates_are_the_values_that_explain_the_papers_times(overlap: float, ratio: float) -> None:
    rates = derive_rates(TrainerCalibration(0.1, 4_088_680, overlap, ring_s=0.2))
    assert 8 * 4_088_680 / rates.access_bps == pytest.approx(ratio * 0.2, rel=1e-6)
    assert rates.access_bps / rates.inter_aggregator_bps == pytest.approx(2.2, rel=1e-6)


def test_rates_at_the_reference_measurement() -> None:
    rates = derive_rates(MEASURED)
    assert rates.access_bps / 1e6 == pytest.approx(250.6, abs=0.1)
    assert rates.inter_aggregator_bps / 1e6 == pytest.approx(113.9, abs=0.1)


def test_the_rule_names_its_inputs() -> None:
    rule = derive_rates(MEASURED).rule
    for part in ("0.725", "t_c = 0.180 s", "M = 32.71 Mbit", "h = 0.00", "48 images"):
        assert part in rule


def test_the_rule_also_takes_the_step_of_a_rank_alone() -> None:
    measured = TrainerCalibration(0.2, 4_088_680, 0.0, ring_s=0.3)
    ring, alone = derive_rates(measured), derive_rates(measured, Base.ALONE)
    assert alone.access_bps == pytest.approx(1.5 * ring.access_bps)
    assert "t_c = 0.300 s (of a ring on unshaped links)" in ring.rule
    assert "t_c = 0.200 s (of a rank alone)" in alone.rule


def test_the_constant_of_a_ring_is_in_every_predicted_step() -> None:
    rates = derive_rates(MEASURED)
    slower = TrainerCalibration(0.18, 4_088_680, 0.0, ring_s=0.28)
    for ranks, batch in ((2, 48), (4, 64)):
        assert predicted_step_s(slower, rates, ranks, batch, own=1, others=1) == pytest.approx(
            0.1 + predicted_step_s(MEASURED, rates, ranks, batch, own=1, others=1)
        )
    assert TrainerCalibration(0.18, 4_088_680, 0.0, ring_s=0.1).constant_s == 0


def test_full_overlap_still_gives_a_rate() -> None:
    assert derive_rates(TrainerCalibration(0.2, 4_088_680, 1.0, 0.2)).access_bps > 0


@pytest.mark.parametrize(
    ("step_s", "overlap"),
    [(0.5, 0.0), (0.4, 0.5), (0.3, 1.0), (0.6, 0.0), (0.1, 1.0)],
)
def test_overlap_is_the_excess_of_the_parts_over_the_step(step_s: float, overlap: float) -> None:
    assert measured_overlap(0.2, 0.3, step_s) == pytest.approx(overlap)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (("g0", "g2", "g1", "g3"), 2),
        (("g0", "g1", "g2", "g3"), 1),
        (("g0", "g2"), 1),
        (("g0", "g1"), 0),
        (("g0",), 0),
    ],
)
def test_crossings_of_the_busiest_direction(order: tuple[str, ...], expected: int) -> None:
    assert crossings(order, HOMES) == expected


def test_predicted_step_shares_the_link_between_rings() -> None:
    rates = derive_rates(MEASURED)
    alone = predicted_step_s(MEASURED, rates, 4, 48, own=2, others=0)
    contended = predicted_step_s(MEASURED, rates, 4, 48, own=2, others=1)
    together = predicted_step_s(MEASURED, rates, 4, 48, own=0, others=1)
    assert (contended - 0.18) == pytest.approx(1.5 * (alone - 0.18))
    # Under one aggregator: M / B_access = 0.725 t_c, of which a ring of four carries 3/2.
    assert together == pytest.approx(0.18 * (1 + 0.725 * 1.5))


def test_predicted_step_hides_what_overlaps() -> None:
    rates = derive_rates(MEASURED)
    hidden = TrainerCalibration(0.18, 4_088_680, 0.5, 0.18)
    assert predicted_step_s(hidden, rates, 1, 48, own=0, others=0) == pytest.approx(0.18)


def test_predicted_step_grows_with_the_batch() -> None:
    rates = derive_rates(MEASURED)
    at_48 = predicted_step_s(MEASURED, rates, 3, 48, own=1, others=1)
    at_64 = predicted_step_s(MEASURED, rates, 3, 64, own=1, others=1)
    assert at_64 - at_48 == pytest.approx(0.06)


@pytest.mark.parametrize("step_s", [0.4, 1.0, 1.47, 1.8])
def test_samples_are_whole_steps_and_last_a_minute_with_margin(step_s: float) -> None:
    samples = fixed_samples(step_s, 192)
    assert samples % 192 == 0
    assert samples // 192 * step_s >= 60 * 1.35
    assert (samples // 192 - 1) * step_s < 60 * 1.35
