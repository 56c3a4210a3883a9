"""Links: the schedule of pairs, groups, what stands out, and hostile lines."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure.envelope import Body, Row
from measure.kinds import Line, MeasuredEndpoint, MeasuredSite, RunEnd, SettingsError
from measure.links.fit import fit
from measure.links.groups import cut
from measure.links.kind import LINKS
from measure.links.schedule import choose, class_of, rounds

FABRIC = MeasuredSite(
    [MeasuredEndpoint(f"gpu{i}", f"srv{i // 2}", "as0" if i < 3 else "as1") for i in range(6)]
)
SMALL, LARGE = (1, 4096), (65536, 262144, 1048576)
SETTINGS = LINKS.settings({"sizes": [*SMALL, *LARGE]}, FABRIC)
PAIRS = [(a, b) for a in range(6) for b in range(6) if a != b]


def _beta(a: int, b: int) -> float:
    return 30e6 if (a < 3) == (b < 3) else 14e6


def _lines(
    beta: Callable[[int, int], float],
    latency: Callable[[int, int], float] = lambda a, b: 1e-4,
    numbers: range = range(5),
) -> list[Line]:
    """Lines as the probe prints them; the first repetition is disturbed."""
    found = [Line(0, 0, {"probe": "loopback", "latency_s": [[s, 2e-5] for s in SMALL]})]
    for number in numbers:
        for a, b in PAIRS:
            noise = 0.7 if number == 0 else 1 + 0.002 * number
            record = {
                "probe": "pair",
                "sender": a,
                "receiver": b,
                "number": number,
                "latency_s": [[s, latency(a, b) * noise] for s in SMALL if a < b],
                "bandwidth": [[s, beta(a, b) * noise] for s in LARGE],
            }
            found.append(Line(0, 0, record))
    return found


def _body(lines: list[Line], settings: Row = SETTINGS) -> Body:
    return LINKS.body(settings, FABRIC, 1, lines, [RunEnd(completed=True)])


@given(st.integers(0, 40))
def test_every_pair_meets_once_and_no_rank_twice_in_a_round(count: int) -> None:
    found = rounds(count)
    pairs = Counter(pair for one in found for pair in one)
    assert pairs == {(a, b): 1 for a in range(count) for b in range(a + 1, count)}
    assert all(len({r for p in one for r in p}) == 2 * len(one) for one in found)


@given(st.integers(33, 70), st.integers(0, 5), st.integers(1, 4))
def test_a_sample_has_every_endpoint_and_class(count: int, seed: int, homes: int) -> None:
    places = [MeasuredEndpoint(f"g{i}", f"s{i // 2}", f"as{i % homes}") for i in range(count)]
    pairs = [pair for one in choose(places, seed, every=False) for pair in one]
    assert min(Counter(rank for pair in pairs for rank in pair).values()) >= 3
    every = Counter(class_of(places[a], places[b]) for o in rounds(count) for a, b in o)
    chosen = Counter(class_of(places[a], places[b]) for a, b in pairs)
    assert all(chosen[name] >= min(8, of) for name, of in every.items())


@given(st.lists(st.floats(0.9, 1.1), min_size=1, max_size=20), st.permutations(range(2)))
def test_groups_do_not_depend_on_the_order(values: list[float], order: list[int]) -> None:
    two = [list(values), [3.0 * v for v in values]]
    flat = [v for i in order for v in two[i]]
    parts = cut(flat, [[v, v] for v in flat])
    assert sum(map(len, parts)) == len(flat)
    slow = {i for i, v in enumerate(flat) if v > 2}
    assert all(set(p) <= slow or not slow & set(p) for p in parts)


@given(st.floats(1e-7, 1e-2), st.floats(1e6, 1e11))
def test_a_fit_recovers_latency_and_bandwidth(alpha: float, beta: float) -> None:
    line = fit([(float(s), alpha + s / beta) for s in (1, 1024, 2**16, 2**22)])
    assert line is not None
    assert line.beta == pytest.approx(beta, rel=1e-3)


def test_a_rack_has_two_groups_and_nothing_stands_out() -> None:
    body = _body(_lines(_beta))
    large = [g for g in body.groups if g["size"] >= 65536]
    assert [g["classes"] for g in large] == len(LARGE) * [
        ["same aggregator", "same server"],
        ["as0-as1"],
    ]
    assert (list(body.anomalies), list(body.invalid_because)) == ([], [])
    betas = {"as0-as1": 14e6, "same aggregator": 30e6, "same server": 30e6}
    assert {f["class"]: f["beta"] for f in body.fits} == pytest.approx(betas, rel=0.05)


def test_one_repetition_faster_than_the_link_makes_no_group() -> None:
    """A sender that stood still before it counts fills an empty buffer."""
    lines = _lines(_beta)
    for line in lines:
        told = line.record
        if (told.get("sender"), told.get("receiver"), told.get("number")) == (1, 4, 2):
            told["bandwidth"] = [[size, 1.25 * rate] for size, rate in told["bandwidth"]]
    body = _body(lines)
    assert [g["pairs"] for g in body.groups if g["size"] >= 65536] == len(LARGE) * [12, 18]
    assert not body.anomalies


@pytest.mark.parametrize("disturbed", [(0, 1), (0, 2), (1, 2)])
def test_a_pair_that_was_disturbed_makes_no_group(disturbed: tuple[int, int]) -> None:
    """Most of its repetitions met another program; one shows what the path does."""
    lines = _lines(_beta)
    for line in lines:
        told = line.record
        here = (told.get("sender"), told.get("receiver")) == (1, 4)
        if here and told.get("number") in disturbed:
            told["bandwidth"] = [[size, 0.7 * rate] for size, rate in told["bandwidth"]]
    body = _body(lines)
    assert [g["pairs"] for g in body.groups if g["size"] >= 65536] == len(LARGE) * [12, 18]


def test_a_pair_that_was_not_disturbed_once_is_no_anomaly() -> None:
    """No second pair speaks for a path: one repetition shows what it does."""
    lines = _lines(_beta)
    for line in lines:
        told = line.record
        here = (told.get("sender"), told.get("receiver")) == (1, 4)
        if here and told.get("number") != 2:
            told["bandwidth"] = [[size, 0.7 * rate] for size, rate in told["bandwidth"]]
    assert not _body(lines).anomalies


def test_a_pair_that_is_slow_each_time_is_a_group() -> None:
    body = _body(_lines(lambda a, b: _beta(a, b) * (0.7 if (a, b) == (1, 4) else 1)))
    assert [g["pairs"] for g in body.groups if g["size"] >= 65536] == len(LARGE) * [12, 17, 1]


def _gated(access: Callable[[int], float]) -> Callable[[int, int], float]:
    """Rates of fibers, of which pairs that cross the slower link show less."""
    return lambda a, b: min(access(a), access(b), _beta(a, b))


@pytest.mark.parametrize(
    ("beta", "named"),
    [
        (lambda a, b: _beta(a, b) * (0.8 if a == 5 else 1), ["gpu5 (sends)"]),
        (lambda a, b: _beta(a, b) * (0.8 if b == 2 else 1), ["gpu2 (receives)"]),
        (lambda a, b: _beta(a, b) * (0.8 if (a, b) == (1, 4) else 1), ["gpu1 to gpu4"]),
        (lambda a, b: _beta(a, b) * (0.8 if a < 3 <= b else 1), ["as0 to as1"]),
        (_gated(lambda e: 27e6 if e == 5 else 30e6), ["gpu5 (receives)", "gpu5 (sends)"]),
        (_gated(lambda e: 15e6 if e == 1 else 30e6), ["gpu1 (receives)", "gpu1 (sends)"]),
    ],
)
def test_what_is_slow_is_named(beta: Callable[[int, int], float], named: list[str]) -> None:
    body = _body(_lines(beta))
    assert [found["object"] for found in body.anomalies] == named


@pytest.mark.parametrize("late", range(6))
def test_a_longer_fiber_shows_in_the_latency(late: int) -> None:
    body = _body(_lines(_beta, lambda a, b: 5e-4 if late in {a, b} else 1e-4))
    assert [found["object"] for found in body.anomalies] == [f"gpu{late} (latency)"]


@given(st.randoms(use_true_random=False))
def test_healthy_pairs_whose_ranks_wake_up_at_different_speed_do_not_stand_out(
    draw: random.Random,
) -> None:
    """On the emulated rack, where sides sleep; some pairs were unlucky in all repetitions."""
    settings = LINKS.settings({"sizes": [1, *LARGE]}, replace(FABRIC, emulated=True))
    usual = {pair: draw.uniform(1e-4, 1.9e-4) for pair in PAIRS}
    late = {pair: usual[pair] for pair in draw.sample(PAIRS, 4)}
    lines = _lines(_beta, lambda a, b: late.get((a, b), 1e-4) * draw.uniform(1.0, 1.05))
    body = _body(lines, settings)
    assert (list(body.anomalies), list(body.invalid_because)) == ([], [])
    assert [g["pairs"] for g in body.groups if g["size"] == 1] == [15]


@pytest.mark.parametrize("wait", ["poll", "sleep"])
def test_a_pair_that_is_late_by_what_a_program_notices_stands_out(wait: str) -> None:
    settings = SETTINGS | {"wait": wait}
    late = _lines(_beta, lambda a, b: 4e-4 if {a, b} == {0, 4} else 1e-4)
    (found,) = _body(late, settings).anomalies
    assert (found["object"], found["figure"]) == ("gpu0 to gpu4", "latency")
    once = [
        Line(0, 0, line.record | {"latency_s": [[s, 1.01e-4] for s in SMALL]})
        if line.record.get("number") == 3 and line.record.get("sender") == 0
        else line
        for line in late
    ]
    assert not _body(once, settings).anomalies  # one repetition shows what the path does


def test_a_class_has_one_figure() -> None:
    """A group of one class is that class: it has no second figure for it, in no table."""
    body = _body(_lines(_beta, lambda a, b: 1e-4 if (a < 3) == (b < 3) else 5e-4))
    fits = {f["class"]: f for f in body.fits}
    (across,) = [g for g in body.groups if g["size"] == 1 and g["classes"] == ["as0-as1"]]
    assert across["center"] == fits["as0-as1"]["alpha_s"]
    parts = ("rows", "groups", "anomalies", "fits", "summary")
    table = LINKS.table({name: getattr(body, name) for name in parts})
    figures = re.findall(r"[\d.]+ (?:us|MB/s)", table)
    assert len(figures) == 2 * len(body.fits)
    assert "classes" not in body.summary


def test_a_latency_below_the_processors_own_is_no_anomaly() -> None:
    assert not _body(_lines(_beta, lambda a, b: 1.15e-4 if 5 in {a, b} else 1e-4)).anomalies


def test_a_silent_pair_is_null_with_its_reason() -> None:
    lines = [
        x for x in _lines(_beta) if {x.record.get("sender"), x.record.get("receiver")} != {0, 4}
    ]
    why = {"probe": "pair", "number": 0, "reason": "rank 4: no answer"}
    reasons = [{**why, "sender": a, "receiver": b} for a, b in ((0, 4), (4, 0))]
    body = _body([*lines, *(Line(0, 0, reason) for reason in reasons)])
    lost = [row for row in body.rows if row.get("reason") == "rank 4: no answer"]
    assert lost
    assert all(row["bandwidth"] is row["latency_s"] is None for row in lost)
    assert not body.invalid_because


def test_too_many_silent_pairs_make_it_invalid() -> None:
    lines = [
        x for x in _lines(_beta) if 5 not in {x.record.get("sender"), x.record.get("receiver")}
    ]
    assert any("no figures" in why for why in _body(lines).invalid_because)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_FIELDS = st.fixed_dictionaries(
    {"probe": st.just("pair")},
    optional={
        "sender": st.integers(-2, 8) | _JSON,
        "receiver": st.integers(-2, 8) | _JSON,
        "number": st.integers(-1, 6) | _JSON,
        "latency_s": _JSON,
        "bandwidth": st.lists(
            st.tuples(st.sampled_from([65536, -1, 2**70]), st.floats()).map(list), max_size=3
        )
        | _JSON,
        "reason": _JSON,
    },
)


@given(st.lists(st.tuples(st.integers(0, 3), _FIELDS), max_size=8))
def test_lines_of_any_form_never_raise(given_lines: list[tuple[int, dict[str, Any]]]) -> None:
    lines = [Line(0, rank, record) for rank, record in given_lines]
    body = _body(lines)
    parts = ("rows", "groups", "anomalies", "fits")
    LINKS.table({name: getattr(body, name) for name in parts})
    LINKS.progress(SETTINGS, FABRIC, lines)


@pytest.mark.parametrize(
    "wrong",
    [{"sizes": [0]}, {"sizes": "4m..1k"}, {"repetitions": 1}, {"transport": "x"}, {"colour": 1}],
)
def test_wrong_settings_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError) as caught:
        LINKS.settings(wrong, FABRIC)
    assert caught.value.setting == next(iter(wrong))


def test_one_endpoint_is_no_pair() -> None:
    with pytest.raises(SettingsError):
        LINKS.runs(SETTINGS, MeasuredSite(FABRIC.places[:1]), 1)


def test_fewer_repetitions_are_said_and_make_it_invalid() -> None:
    """A rank that freezes after two repetitions, or a job that ends then."""
    body = _body(_lines(_beta, numbers=range(2)))
    assert {row["reason"] for row in body.rows} == {"2 of 5 repetitions: no figures"}
    assert any("fewer repetitions" in why for why in body.invalid_because)


RACK = replace(
    FABRIC, access_bps=250e6, inter_aggregator_bps=114e6, links={frozenset({"as0", "as1"}): 1}
)


@pytest.mark.parametrize(
    ("fabric", "given_settings", "sizes"),
    [
        (replace(RACK, emulated=True), {}, [*SMALL, *LARGE]),
        (replace(RACK, emulated=True), {"together": True}, [262144]),
        (replace(RACK, emulated=True), {"seconds": 1}, [*SMALL, *LARGE, 2**22]),
        (FABRIC, {}, [*SMALL, *(2**n for n in range(16, 27, 2))]),
        (FABRIC, {"sizes": "1k..1m"}, [2**n for n in range(10, 21, 2)]),
        (FABRIC, {"sizes": "1k..4k*2"}, [1024, 2048, 4096]),
    ],
)
def test_the_largest_message_fits_a_repetition(
    fabric: MeasuredSite, given_settings: dict[str, Any], sizes: list[int]
) -> None:
    assert LINKS.settings(given_settings, fabric)["sizes"] == sizes


def test_short_messages_that_pass_in_a_burst_do_not_bend_the_fit() -> None:
    fits = _body(_lines(_beta)).fits
    assert {f["class"]: f["alpha_s"] for f in fits} == pytest.approx(
        dict.fromkeys(("as0-as1", "same aggregator", "same server"), 1e-4), rel=0.01
    )
