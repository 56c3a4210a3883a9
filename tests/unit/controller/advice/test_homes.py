"""Homes to suppose: ports, compact homes, and sites with two switches."""

from __future__ import annotations

from controller.advice.homes import compact_homes, dark_members, ports_suffice
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Site


def fabric(
    ports: dict[str, dict[str, int]], homes: dict[str, tuple[str, str | None]], jobs: dict[str, str]
) -> Fabric:
    """``homes``: by endpoint its optical switch and its home; ``jobs``: its endpoints as text."""
    return Fabric(
        Site(
            "test",
            tuple(Endpoint(name, ocs=ocs) for name, (ocs, _) in homes.items()),
            tuple(Aggregator(name, have) for name, have in ports.items()),
        ),
        {name: home for name, (_, home) in homes.items()},
        tuple(Job(name, tuple(members.split())) for name, members in jobs.items()),
    )


def test_idle_endpoints_give_way_and_other_jobs_do_not() -> None:
    homes = {"a": ("o", "x"), "b": ("o", "y"), "c": ("o", "x"), "d": ("o", "y")}
    ports = {"x": {"o": 2}, "y": {"o": 2}}
    free = fabric(ports, homes, {"red": "a b"})
    after = {**free.homes, "b": "x"}
    assert ports_suffice(free, ("a", "b"), after)
    held = fabric(ports, homes, {"red": "a b", "blue": "c d"})
    assert not ports_suffice(held, ("a", "b"), after)


def test_ports_are_those_of_the_endpoints_own_switch() -> None:
    """Two switches: x has ports for both endpoints, but only one on b's switch."""
    homes = {"a": ("o", "x"), "b": ("p", "y"), "c": ("p", "x")}
    ports = {"x": {"o": 3, "p": 1}, "y": {"o": 3, "p": 2}}
    held = fabric(ports, homes, {"red": "a b", "blue": "c"})
    assert not ports_suffice(held, ("a", "b"), {**held.homes, "b": "x"})
    found = compact_homes(held, ("a", "b"))
    assert found is not None and found["a"] == found["b"] == "y"


def test_an_endpoint_out_of_use_does_not_move() -> None:
    homes = {"a": ("o", "x"), "b": ("o", "y")}
    base = fabric({"x": {"o": 2}, "y": {"o": 2}}, homes, {"red": "a b"})
    out = Fabric(base.site, base.homes, base.jobs, unavailable=frozenset({"b"}))
    assert not ports_suffice(out, ("a", "b"), {**base.homes, "b": "x"})
    assert ports_suffice(out, ("a", "b"), {**base.homes, "a": "y"})


def test_a_compact_job_has_no_more_compact_homes() -> None:
    homes = {"a": ("o", "x"), "b": ("o", "x"), "c": ("o", "y")}
    base = fabric({"x": {"o": 2}, "y": {"o": 2}}, homes, {"red": "a b"})
    assert compact_homes(base, ("a", "b")) is None


def test_a_job_larger_than_an_aggregator_gets_the_fewest() -> None:
    homes = {name: ("o", home) for name, home in zip("abcdef", "xyzxyz", strict=True)}
    base = fabric({n: {"o": 3} for n in "xyz"}, homes, {"red": "a b c d e f"})
    found = compact_homes(base, tuple("abcdef"))
    assert found is not None
    assert len({found[name] for name in "abcdef"}) == 2


def test_dark_members_are_named() -> None:
    assert dark_members(("a", "b"), {"a": "x", "b": None}) == ["b"]
