"""Paths between aggregators are the shortest, regardless of earlier questions."""

from __future__ import annotations

import networkx as nx
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.devices.openflow.rules.routes import Wiring
from tests.parts.openflow.sites import UPLINK_BASE, make_site

SIZE = 7
NODES = st.integers(0, SIZE - 1)
LINKS = st.lists(st.tuples(NODES, NODES).filter(lambda ab: ab[0] != ab[1]), max_size=14)


@settings(max_examples=200, deadline=None)
@given(LINKS, st.lists(st.tuples(NODES, NODES), min_size=1, max_size=20))
def test_uplinks_are_those_of_all_shortest_paths(
    links: list[tuple[int, int]], questions: list[tuple[int, int]]
) -> None:
    graph = nx.MultiGraph()
    graph.add_nodes_from(range(SIZE))
    graph.add_edges_from((a, b, n) for n, (a, b) in enumerate(links))
    wiring = Wiring(make_site(aggregators=SIZE, links=tuple(links)).uplinks)
    for here, there in questions:
        far = nx.single_source_shortest_path_length(graph, there)
        right = sorted(
            UPLINK_BASE + n
            for _, peer, n in graph.edges(here, keys=True)
            if here in far and far[peer] == far[here] - 1
        )
        assert wiring.towards(f"as{here}", f"as{there}") == tuple(right)
