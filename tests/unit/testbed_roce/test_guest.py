"""Tests guests: their command line, the serial protocol, and their packages."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.rack import procfs
from testbed.rack.process import Process, accepts
from testbed.roce import packages, parts, perftest
from testbed.roce.errors import RoceError
from testbed.roce.guest import Address, Guest, command_line, connected
from testbed.roce.parts import MODULES, Parts
from testbed.roce.perftest import Transfer

SAID = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      392              0.00               2.50   		   0.000130
---------------------------------------------------------------------------------------
"""


@pytest.fixture
def line() -> Iterator[tuple[Guest, socket.socket]]:
    """Yield a guest without a machine, and the other end of its serial line."""
    near, far = socket.socketpair()
    process = Process("ll-red-0", os.getpid(), 0, "/run/x/ll-red-0.log", (), 0.0)
    with near, far:
        yield Guest("ll-red-0", "ll-c-red-0-1", process, near), far


def test_a_command_gives_its_output_and_status(line: tuple[Guest, socket.socket]) -> None:
    guest, far = line
    far.sendall(b"ll-ready\none\r\ntwo\nll-done 0\nthree\nll-do")
    guest.await_boot()
    assert guest.run("first", timeout_s=5) == (0, "one\ntwo\n")
    threading.Timer(0.05, far.sendall, (b"ne 3\n",)).start()
    assert guest.run("second", timeout_s=5) == (3, "three\n")
    assert far.recv(100) == b"first\nsecond\n"


def test_waits_until_a_socket_accepts_connections(tmp_path: Path) -> None:
    """QEMU binds the socket, which creates the file, and listens a moment later."""
    path = tmp_path / "ll-red-0.sock"
    me = Process("ll-red-0", os.getpid(), procfs.start_ticks(os.getpid()) or 0, "", (), 0.0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        assert not accepts(path)
        threading.Timer(0.3, server.listen).start()
        with connected(me, path):
            assert accepts(path)
    assert not accepts(tmp_path / "nowhere.sock")


def test_a_silent_guest_is_an_error_that_names_its_console(
    line: tuple[Guest, socket.socket],
) -> None:
    guest, _ = line
    begin = time.monotonic()
    with pytest.raises(RoceError, match=r"did not finish in time: sleep") as caught:
        guest.run("sleep 99", timeout_s=0.05)
    assert time.monotonic() - begin < 60  # not the 99 s
    assert caught.value.hint == "see /run/x/ll-red-0-console.log"


def test_a_guest_that_ended_is_an_error(line: tuple[Guest, socket.socket]) -> None:
    guest, far = line
    far.close()
    with pytest.raises(RoceError, match=r"ll-red-0 (has ended|is gone)"):
        guest.run("true", timeout_s=5)


def test_a_guest_has_the_addresses_of_its_endpoint() -> None:
    address = Address("10.77.0.10", 24, "02:4c:4c:00:00:10")
    made = Parts(Path("/k"), Path("/i"))
    argv = command_line("ll-red-0", address, made, Path("/c.sock"), Path("/c.log"))
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
    with pytest.raises(RoceError, match="no figure: Couldn't connect"):
        perftest.parse("Couldn't connect to 10.77.0.12:18515", transfer)
    options = transfer.options()
    assert "-u 18 " in options
    assert options in perftest.client(transfer, "10.77.0.12")
    assert options in perftest.server(transfer)
    assert ":4853 " in perftest.server(transfer), "the port as /proc/net/tcp writes it"


def test_the_kernel_is_the_one_debian_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n"
    monkeypatch.setattr(packages, "_call", lambda *_: shown)
    assert packages.names()[0] == "linux-image-6.1.0-56-amd64"
    monkeypatch.setattr(packages, "_call", lambda *_: "")
    with pytest.raises(RoceError, match="apt knows no package linux-image-amd64") as caught:
        packages.names()
    assert "Debian" in caught.value.hint


def test_a_cached_guest_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def unpack(names: object, root: Path) -> None:
        made.append(root)

    def make(root: Path, tree: Path, target: Path) -> None:
        (target / "vmlinuz").write_text("kernel")

    version = ["busybox_1.deb"]
    monkeypatch.setattr(packages, "names", lambda: ("busybox-static",))
    monkeypatch.setattr(packages, "files", lambda names: tuple(version))
    monkeypatch.setattr(packages, "unpack", unpack)
    monkeypatch.setattr(parts, "_make", make)
    first = parts.ensure(tmp_path)
    assert parts.ensure(tmp_path) == first
    assert len(made) == 1
    version[:] = ["busybox_2.deb"]
    second = parts.ensure(tmp_path)
    assert second != first
    assert second.kernel.read_text() == "kernel"
    assert not first.kernel.exists(), "outdated parts are removed"
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([second.kernel.parent.name, "lock"])
