from __future__ import annotations

from testbed.rack import ovs
from testbed.rack.layout import Bridge


def test_one_transaction_makes_a_secure_userspace_bridge_with_numbered_ports() -> None:
    arguments = ovs.bridge_arguments(
        [Bridge("ll-as0", 0xA0, {2: "as0-p2", 1: "as0-p1"})], "127.0.0.1:6653"
    )
    commands = " ".join(arguments).removeprefix("-- ").split(" -- ")
    assert commands == [
        "add-br ll-as0",
        "set bridge ll-as0 datapath_type=netdev fail_mode=secure protocols=OpenFlow13 "
        "other_config:datapath-id=00000000000000a0 other_config:disable-in-band=true",
        "set-controller ll-as0 tcp:127.0.0.1:6653",
        "set controller ll-as0 connection_mode=out-of-band max_backoff=1000 inactivity_probe=5000",
        "add-port ll-as0 as0-p1",
        "set interface as0-p1 ofport_request=1",
        "add-port ll-as0 as0-p2",
        "set interface as0-p2 ofport_request=2",
    ]


def test_a_bridge_with_tls_connects_with_tls() -> None:
    arguments = ovs.bridge_arguments([Bridge("ll-as0", 0xA0, {}, tls=True)], "127.0.0.1:6653")
    assert "ssl:127.0.0.1:6653" in arguments
