"""Rates over routed links: rings that transit an aggregator load its links as well."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.openflow.rules.routes import Wiring
from scheduler.steptime.road import Roads
from scheduler.steptime.routes import Routes
from scheduler.steptime.sites import SharedLinks
from sitefile.model import Port, Uplink

HOMES = {f"{home}{i}": home for home in "abcd" for i in range(4)}


def links(*pairs: str, rate: float = 1.0) -> SharedLinks:
    """Return the links of cables such as "ab", each as fast as ``rate`` access links."""
    return SharedLinks(100e6, rate * 100e6, Counter(frozenset(pair) for pair in pairs))


def test_two_jobs_that_share_a_link_of_a_chain_halve_it() -> None:
    """a - b - c: one job from a to b, one from a to c through b."""
    chain = links("ab", "bc")
    rates = chain.rates({"near": ["a0", "b0"], "far": ["a1", "c1"]}, HOMES)
    assert rates == {"near": pytest.approx(0.5), "far": pytest.approx(0.5)}
    assert chain.rates({"far": ["a1", "c1"]}, HOMES) == {"far": 1.0}


def test_a_ring_over_a_star_crosses_its_centre() -> None:
    star = links("ad", "bd", "cd", rate=0.5)
    rates = star.rates({"red": ["a0", "b0"], "blue": ["c0", "b1"], "inside": ["d0", "d1"]}, HOMES)
    assert rates == {"red": pytest.approx(0.25), "blue": pytest.approx(0.25), "inside": 1.0}


def test_equal_paths_of_a_mesh_share_a_ring_evenly() -> None:
    """a square: from a to c half goes through b and half through d."""
    square = links("ab", "bc", "cd", "da")
    rates = square.rates({"red": ["a0", "c0"], "blue": ["a1", "c1"]}, HOMES)
    assert rates == {"red": 1.0, "blue": 1.0}
    beside = square.rates({"red": ["a0", "c0"], "blue": ["a1", "b1"]}, HOMES)
    assert beside["red"] + 2 * beside["blue"] == pytest.approx(2.0)
    whole = links("ab", "bc", "cd", "da", "ac", "bd")
    assert whole.rates({"red": ["a0", "c0"], "blue": ["a1", "c1"]}, HOMES) == {
        "red": pytest.approx(0.5),
        "blue": pytest.approx(0.5),
    }


def test_more_cables_of_one_way_take_more_of_it() -> None:
    routes = Routes({frozenset(pair): 2 if "b" in pair else 1 for pair in ("ab", "bc", "ad", "dc")})
    shares = routes.shares("a", "c")
    assert shares is not None
    assert shares["a", "b"] == pytest.approx(2 / 3) and shares["d", "c"] == pytest.approx(1 / 3)


def test_without_a_cable_there_is_no_rate() -> None:
    apart = links("ab", "cd")
    assert apart.rates({"red": ["a0", "c0"], "blue": ["a1", "b1"]}, HOMES) == {"blue": 1.0}
    roads = Roads({"red": ["a0", "c0"]}, HOMES, apart)
    assert roads.to("red") is None


@st.composite
def wirings(draw: st.DrawFn) -> list[tuple[int, int]]:
    pairs = st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda pair: pair[0] != pair[1])
    return draw(st.lists(pairs, max_size=12))


@given(wirings())
def test_ways_are_those_of_the_flow_compiler(cables: list[tuple[int, int]]) -> None:
    aggregators = [f"as{i}" for i in range(6)]
    uplinks = tuple(
        Uplink(Port(f"as{a}", str(100 + number)), Port(f"as{b}", str(200 + number)))
        for number, (a, b) in enumerate(cables)
    )
    wired = Wiring(uplinks)
    far = {
        (end.device, int(end.port)): other.device
        for link in uplinks
        for end, other in ((link.a, link.b), (link.b, link.a))
    }
    routes = Routes(Counter(frozenset((f"as{a}", f"as{b}")) for a, b in cables))
    for here in aggregators:
        for there in aggregators:
            if here is there:
                continue
            ports = wired.towards(here, there)
            shares = routes.shares(here, there)
            assert (shares is None) == (not ports)
            first = Counter(far[here, port] for port in ports)
            for peer, count in first.items():
                assert shares is not None
                assert shares[here, peer] == pytest.approx(count / len(ports))
