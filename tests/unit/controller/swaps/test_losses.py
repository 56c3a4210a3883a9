"""What is lost, judged from what is seen: silence alone proves nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from controller.devices.aggregators import AttachPoint
from controller.swaps.losses import HealthSnapshot, judge, surely_lost
from sitefile import load_site
from sitefile.model import EndpointCable, Server
from tests.parts.sites import PAPER

SITE = load_site(PAPER)
AT = {
    "gpu0": AttachPoint("as0", 1),
    "gpu1": AttachPoint("as0", 2),
    "gpu2": AttachPoint("as1", 1),
    "gpu3": AttachPoint("as1", 2),
}
UP = {**dict.fromkeys(AT.values(), True), AttachPoint("as0", 8): True, AttachPoint("as1", 8): True}
FINE = HealthSnapshot(
    answering={server.name: True for server in SITE.servers},
    sessions=frozenset({"as0", "as1"}),
    switches=frozenset({"ocs0"}),
    carriers=UP,
    nics={},
    stalled={},
    endpoints=frozenset(AT),
)


def silent(*servers: str) -> dict[str, bool]:
    return {**FINE.answering, **dict.fromkeys(servers, False)}


def down(*endpoints: str) -> dict[AttachPoint, bool]:
    return {**UP, **{AT[e]: False for e in endpoints}}


def without(aggregator: str) -> dict[AttachPoint, bool]:
    return {point: up for point, up in UP.items() if point.aggregator != aggregator}


@pytest.mark.parametrize(
    ("seen", "lost"),
    [
        pytest.param(FINE, {}, id="all is well"),
        pytest.param(replace(FINE, answering=silent("srv0")), {}, id="a silent agent alone"),
        pytest.param(
            replace(FINE, answering=silent("srv0"), carriers=down("gpu0", "gpu1")),
            {"server/srv0": ("gpu0", "gpu1")},
            id="a server without carriers",
        ),
        pytest.param(
            replace(FINE, answering=silent("srv0"), carriers=down("gpu0")),
            {},
            id="a silent agent and one of two carriers",
        ),
        pytest.param(
            replace(FINE, answering=silent("srv0"), stalled={"red": tuple(AT)}),
            {"server/srv0": ("gpu0", "gpu1")},
            id="a server that hangs with its job",
        ),
        pytest.param(
            replace(FINE, sessions=frozenset({"as0"}), carriers=without("as1")),
            {},
            id="a lost session of an aggregator",
        ),
        pytest.param(
            replace(
                FINE,
                sessions=frozenset({"as0"}),
                carriers={**without("as1"), AttachPoint("as0", 8): False},
            ),
            {"aggregator/as1": ("gpu2", "gpu3")},
            id="an aggregator that its neighbour does not see",
        ),
        pytest.param(
            replace(
                FINE,
                sessions=frozenset({"as0"}),
                carriers=without("as1"),
                stalled={"red": ("gpu2", "gpu3")},
            ),
            {"aggregator/as1": ("gpu2", "gpu3")},
            id="an aggregator whose jobs have all stalled",
        ),
        pytest.param(
            replace(
                FINE,
                sessions=frozenset({"as0"}),
                carriers=without("as1"),
                stalled={"red": tuple(AT)},
            ),
            {"aggregator/as1": ("gpu2", "gpu3")},
            id="an aggregator whose job, half of it elsewhere, has stalled",
        ),
        pytest.param(
            replace(
                FINE,
                sessions=frozenset({"as0"}),
                carriers=without("as1"),
                nics={"gpu0": True, "gpu2": False, "gpu3": False},
            ),
            {"aggregator/as1": ("gpu2", "gpu3")},
            id="an aggregator from which no NIC has light",
        ),
        pytest.param(
            replace(
                FINE,
                sessions=frozenset({"as0"}),
                carriers=without("as1"),
                nics={"gpu2": True, "gpu3": True},
            ),
            {},
            id="a lost session of an aggregator that gives light",
        ),
        pytest.param(
            replace(
                FINE,
                sessions=frozenset({"as0"}),
                carriers=without("as1"),
                nics={"gpu2": False},
            ),
            {"endpoint/gpu2": ("gpu2",)},
            id="a dark NIC, and one whose agent does not know",
        ),
        pytest.param(
            replace(FINE, nics={"gpu3": False}),
            {"endpoint/gpu3": ("gpu3",)},
            id="a NIC without light from a port with light",
        ),
        pytest.param(
            replace(FINE, nics={"gpu3": False}, endpoints=frozenset({"gpu0"})),
            {},
            id="a dark NIC that no job uses",
        ),
        pytest.param(
            replace(
                FINE,
                sessions=frozenset(),
                switches=frozenset(),
                carriers={},
                nics=dict.fromkeys(AT, False),
            ),
            {"switch/ocs0": tuple(AT)},
            id="an optical switch that passes no light, as the NICs say",
        ),
        pytest.param(
            replace(FINE, switches=frozenset()), {}, id="a lost session of an optical switch"
        ),
        pytest.param(
            replace(FINE, switches=frozenset(), carriers=down(*AT)),
            {"switch/ocs0": tuple(AT)},
            id="an optical switch that passes no light",
        ),
        pytest.param(
            replace(FINE, carriers=down("gpu3")), {"endpoint/gpu3": ("gpu3",)}, id="one link"
        ),
        pytest.param(
            replace(FINE, carriers=down("gpu3"), endpoints=frozenset({"gpu0"})),
            {},
            id="a link that no job uses",
        ),
        pytest.param(
            replace(FINE, stalled={"red": tuple(AT)}), {}, id="a job that hangs by itself"
        ),
    ],
)
def test_what_is_lost(seen: HealthSnapshot, lost: dict[str, tuple[str, ...]]) -> None:
    assert {found.object: found.endpoints for found in judge(SITE, AT, seen)} == lost


def test_a_nic_whose_light_a_transaction_moves_proves_nothing() -> None:
    still = {e: at for e, at in AT.items() if e not in ("gpu2", "gpu3")}
    seen = replace(
        FINE,
        sessions=frozenset({"as0"}),
        carriers=without("as1"),
        nics={"gpu2": False, "gpu3": False},
    )
    assert judge(SITE, still, seen) == ()


def test_an_endpoint_is_lost_once_under_the_largest_object() -> None:
    seen = replace(FINE, switches=frozenset(), answering=silent("srv0"), carriers=down(*AT))
    found = judge(SITE, AT, seen)
    assert [lost.object for lost in found] == ["switch/ocs0"]


@pytest.mark.parametrize(
    ("fault", "sure"),
    [("lost", True), ("xid", True), ("hang", False), ("library", False), ("", False)],
)
def test_only_some_faults_are_certain(fault: str, sure: bool) -> None:
    assert surely_lost(fault) is sure


class Counted(tuple[EndpointCable, ...]):
    """A site's endpoints, which count how often somebody goes through them."""

    passes = 0

    def __iter__(self) -> Iterator[EndpointCable]:
        type(self).passes += 1
        return super().__iter__()


def test_a_large_site_is_looked_through_as_often_as_a_small_one() -> None:
    """With a pass for each server a look held the loop for 0.4 s at 4,096 endpoints."""
    passes = []
    for servers in (2, 200):
        site = replace(
            SITE,
            servers=tuple(Server(f"srv{n}", "127.0.0.1:1") for n in range(servers)),
            endpoints=Counted(SITE.endpoints),
        )
        before = Counted.passes
        judge(site, AT, FINE)
        passes.append(Counted.passes - before)
    assert passes[0] == passes[1]
