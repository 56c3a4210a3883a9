"""Which spare takes which place, at a site with two optical switches."""

from __future__ import annotations

from dataclasses import replace

from checkpoints.ledger import Part, StepRecord
from checkpoints.values import Place
from controller.swaps.choice import by_spares, darkened, elsewhere
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Site

ENDPOINTS = (
    *(Endpoint(f"a{n}", ocs="ocs0", server=f"srv{n}") for n in range(4)),
    *(Endpoint(f"b{n}", ocs="ocs1", server=f"srv{n}") for n in range(4)),
)
SITE = Site(
    "two",
    ENDPOINTS,
    (
        Aggregator("as0", {"ocs0": 2, "ocs1": 2}),
        Aggregator("as1", {"ocs0": 2, "ocs1": 2}),
    ),
)
HOMES = {
    **dict.fromkeys(("a0", "a1", "b0", "b1"), "as0"),
    **dict.fromkeys(("a2", "a3", "b2", "b3"), "as1"),
}
FABRIC = Fabric(SITE, HOMES, (Job("red", ("a0", "b0")),))
PLACES = {e.name: Place(e.name, e.server, HOMES[e.name] or "") for e in ENDPOINTS}
SERVERS = frozenset(e.server for e in ENDPOINTS)


def swap(
    dead: set[str], spares: list[str], lost: frozenset[str] = frozenset(), **parts: str
) -> tuple[dict[str, str], dict[str, str | None]]:
    record = StepRecord(
        parts={int(rank[1:]): Part("d", 1, holders=frozenset({e})) for rank, e in parts.items()}
    )
    return by_spares(
        FABRIC,
        ("a0", "b0"),
        dead,
        spares,
        record=record,
        places=PLACES,
        servers=SERVERS,
        lost=lost,
    )


def test_a_spare_on_the_same_switch_takes_the_port_and_one_on_another_does_not() -> None:
    assert swap({"a0"}, ["a3"]) == ({"a0": "a3"}, {"a0": None, "a3": "as0"})
    swaps, moves = swap({"a0"}, ["b3"])
    assert swaps == {"a0": "b3"}
    assert moves.get("b3") in (None, "as0"), "an idle one on its switch may make way"


def test_a_spare_with_the_dead_ranks_part_comes_first() -> None:
    assert swap({"a0"}, ["a1", "a2"])[0] == {"a0": "a1"}, "it is under the same aggregator"
    assert swap({"a0"}, ["a1", "a2"], r0="b2")[0] == {"a0": "a2"}, "its server has the part"


def test_no_light_moves_on_a_lost_switch() -> None:
    swaps, moves = swap({"a0", "b0"}, ["a1", "b3"], frozenset({"ocs0"}))
    assert set(swaps) == {"a0", "b0"}
    assert not {"a0", "a1"} & moves.keys()
    ocs = {e.name: e.ocs for e in ENDPOINTS}
    assert darkened(["a0", "b0"], HOMES, ocs, {"ocs0"}) == {"b0": None}


def test_light_goes_to_other_aggregators_only_where_ports_are_free() -> None:
    assert elsewhere(FABRIC, ("a0", "b0"), ("a0",), frozenset()) is None, "as1 is full"
    free = Fabric(SITE, {**HOMES, "a3": None}, FABRIC.jobs)
    assert elsewhere(free, ("a0", "b0"), ("a0",), frozenset()) == {"a0": "as1"}
    held = replace(free, held_ports={("as1", "ocs0"): 1})
    assert elsewhere(held, ("a0", "b0"), ("a0",), frozenset()) is None, "the port is held"
    assert elsewhere(free, ("a0", "b0"), ("a0", "b0"), frozenset()) is None
    assert elsewhere(free, ("a0", "b0"), ("a0",), frozenset({"ocs0"})) is None
