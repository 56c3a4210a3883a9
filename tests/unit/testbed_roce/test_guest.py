"""Tests the soft-RoCE guest: its command line, its modules, and perftest's figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.guests.errors import GuestError
from testbed.guests.parts import GuestFiles
from testbed.roce import perftest
from testbed.roce.guest import MODULES, GuestAddress, nic_command_line
from testbed.roce.perftest import Transfer

SAID = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      392              0.00               2.50   		   0.000130
---------------------------------------------------------------------------------------
"""


def test_a_guest_has_the_addresses_of_its_endpoint() -> None:
    address = GuestAddress("10.77.0.10", 24, "02:4c:4c:00:00:10")
    made = GuestFiles(Path("/k"), Path("/i"), Path("/r"))
    argv = nic_command_line("ll-red-0", address, made, Path("/c.sock"), Path("/c.log"))
    text = " ".join(argv)
    assert argv[0] == "qemu-system-x86_64"
    assert "accel=tcg" in text
    assert "ifname=ll-tap," in text
    assert "mac=02:4c:4c:00:00:10" in text
    assert "LL_IP=10.77.0.10/24" in text
    assert f"LL_MODULES={','.join(MODULES)}" in text


def test_modules_come_after_what_they_need() -> None:
    order = {name: number for number, name in enumerate(MODULES)}
    for module, need in (
        ("virtio_net", "net_failover"),
        ("net_failover", "failover"),
        ("rdma_rxe", "ib_uverbs"),
        ("rdma_rxe", "ip6_udp_tunnel"),
        ("rdma_rxe", "crc32_generic"),
        ("rdma_cm", "ib_cm"),
        ("rdma_ucm", "rdma_cm"),
    ):
        assert order[need] < order[module]


def test_perftest_figures() -> None:
    transfer = Transfer(seconds=6, qp_timeout=18)
    assert perftest.parse(SAID, transfer) == 2.5 * 2**20 * 8
    with pytest.raises(GuestError, match="no figure: Couldn't connect"):
        perftest.parse("Couldn't connect to 10.77.0.12:18515", transfer)
    options = transfer.options()
    assert "-u 18 " in options
    assert options in perftest.client(transfer, "10.77.0.12")
    assert options in perftest.server(transfer)
    assert ":4853 " in perftest.server(transfer), "the port as /proc/net/tcp writes it"
