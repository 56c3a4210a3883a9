"""Rates of the rings of a cabled site."""

from __future__ import annotations

import pytest

from scheduler.steptime.sites import SharedLinks


def test_rates_of_a_site() -> None:
    links = SharedLinks(250e6, 114e6, {frozenset({"as0", "as1"}): 1})
    homes = {"a": "as0", "b": "as0", "c": "as1", "d": "as1", "e": None}
    ordered = links.rates({"red": ["a", "b", "c", "d"], "dark": ["a", "e"]}, homes)
    assert ordered == {"red": pytest.approx(114 / 250)}
    mixed = links.rates({"red": ["a", "c", "b", "d"]}, homes)
    assert mixed["red"] == pytest.approx(114 / 250 / 2)
    doubled = SharedLinks(250e6, 114e6, {frozenset({"as0", "as1"}): 2})
    assert doubled.rates({"red": ["a", "b", "c", "d"]}, homes)["red"] == pytest.approx(228 / 250)
    assert links.rates({"red": ["a", "b"]}, homes) == {"red": 1.0}
