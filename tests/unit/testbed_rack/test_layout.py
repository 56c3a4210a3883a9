from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import testbed
from sitefile import AggregatorCable, CabledSite, EndpointCable, Fiber, Port, Server, load_site
from testbed.rack.errors import RackError
from testbed.rack.layout import FABRIC_NETNS, MAX_NAME, OCS_NETNS, Patch, lay_out

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"


@pytest.fixture
def site() -> CabledSite:
    return load_site(PAPER)


def test_every_optical_port_of_the_site_has_its_own_link(site: CabledSite) -> None:
    layout = lay_out(site)
    links = layout.link_maps["ocs0"]
    assert len(links) == 6 + 2 * 4
    assert len(set(links.values())) == len(links)
    assert set(links.values()) == {veth.b for veth in layout.fibers}
    assert links["1.1.1"] == "o-gpu0"
    assert links["2.2.4"] == "o-as1-p4"


def test_fibers_end_in_the_optical_namespace(site: CabledSite) -> None:
    layout = lay_out(site)
    assert {veth.b_netns for veth in layout.fibers} == {OCS_NETNS}
    nic = next(veth for veth in layout.fibers if veth.b == "o-gpu3")
    assert (nic.a, nic.a_netns, nic.mac) == ("e-gpu3", "ll-srv1", site.endpoint("gpu3").mac)
    port = next(veth for veth in layout.fibers if veth.b == "o-as0-p2")
    assert (port.a, port.a_netns) == ("as0-p2", FABRIC_NETNS)


def test_bridges_number_their_ports_as_the_site_does(site: CabledSite) -> None:
    bridges = {bridge.name: bridge for bridge in lay_out(site).bridges}
    assert set(bridges) == {"ll-as0", "ll-as1"}
    assert bridges["ll-as1"].dpid == 0xA1
    assert bridges["ll-as1"].ports == {
        1: "as1-p1",
        2: "as1-p2",
        3: "as1-p3",
        4: "as1-p4",
        8: "as1-u8",
    }


def test_all_names_fit_into_linux(site: CabledSite) -> None:
    layout = lay_out(site)
    links = [end for veth in (*layout.fibers, *layout.uplinks) for end in (veth.a, veth.b)]
    assert all(len(name) <= MAX_NAME for name in links)
    assert all(name.startswith("ll-") for name in layout.namespaces)
    assert all(bridge.name.startswith("ll-") for bridge in layout.bridges)


def test_a_name_that_does_not_fit_is_named(site: CabledSite) -> None:
    long = dataclasses.replace(site.endpoints[0], name="gpu-in-the-corner")
    with pytest.raises(RackError) as caught:
        lay_out(dataclasses.replace(site, endpoints=(long, *site.endpoints[1:]), homes={}))
    assert caught.value.code == "invalid"
    assert caught.value.object == "o-gpu-in-the-corner"


def test_two_nics_of_one_server_with_one_name_are_refused(site: CabledSite) -> None:
    twin = dataclasses.replace(site.endpoints[1], fibers=site.endpoints[0].fibers)
    with pytest.raises(RackError) as caught:
        lay_out(dataclasses.replace(site, endpoints=(site.endpoints[0], twin)))
    assert caught.value.object == "e-gpu0"


def test_a_server_cannot_use_the_racks_own_namespace(site: CabledSite) -> None:
    servers = (Server("fab", "127.0.0.1:7701"),)
    with pytest.raises(RackError) as caught:
        lay_out(dataclasses.replace(site, servers=servers, endpoints=()))
    assert caught.value.code == "invalid"


def test_a_fixed_cable_has_a_permanent_patch_and_no_optical_port() -> None:
    endpoint = EndpointCable(
        name="gpu9",
        server="s",
        ip="10.0.0.9",
        prefix_len=24,
        fibers=(Fiber("e-gpu9", "02:00:00:00:00:09", Port("as0", "5")),),
    )
    site = CabledSite(
        name="hard-wired",
        servers=(Server("s", "127.0.0.1:7701"),),
        endpoints=(endpoint,),
        aggregators=(AggregatorCable("as0", 1, fibers={}, fixed={5: "gpu9"}),),
        switches=(),
        uplinks=(),
        homes={},
        subnet="10.0.0.0/24",
    )
    layout = lay_out(site)
    assert layout.patches == (Patch("o-gpu9", "o-as0-p5"),)
    assert layout.link_maps == {}
    assert layout.bridges[0].ports == {5: "as0-p5"}
