"""Tests guests: the serial protocol, and the cache of their kernel and packages."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.guests import packages, parts
from testbed.guests.errors import GuestError
from testbed.guests.machine import GuestMachine, connected
from testbed.guests.parts import Recipe
from testbed.rack import procfs
from testbed.rack.process import Process, accepts

RECIPE = Recipe("small", ("perftest",), (), Path(__file__))


@pytest.fixture
def line() -> Iterator[tuple[GuestMachine, socket.socket]]:
    """Yield a guest without a machine, and the other end of its serial line."""
    near, far = socket.socketpair()
    process = Process("ll-red-0", os.getpid(), 0, "/run/x/ll-red-0.log", (), 0.0)
    with near, far:
        yield GuestMachine("ll-red-0", process, near), far


def test_a_command_gives_its_output_and_status(line: tuple[GuestMachine, socket.socket]) -> None:
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
    line: tuple[GuestMachine, socket.socket],
) -> None:
    guest, _ = line
    begin = time.monotonic()
    with pytest.raises(GuestError, match=r"did not finish in time: sleep") as caught:
        guest.run("sleep 99", timeout_s=0.05)
    assert time.monotonic() - begin < 60  # not the 99 s
    assert caught.value.hint == "see /run/x/ll-red-0-console.log"


def test_a_guest_that_ended_is_an_error(line: tuple[GuestMachine, socket.socket]) -> None:
    guest, far = line
    far.close()
    with pytest.raises(GuestError, match=r"ll-red-0 (has ended|is gone)"):
        guest.run("true", timeout_s=5)


def test_the_kernel_is_the_one_debian_has_now(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "Package: linux-image-amd64\nDepends: linux-image-6.1.0-56-amd64 (= 6.1.192-2)\n"
    monkeypatch.setattr(packages, "_call", lambda *_: shown)
    assert packages.names(("perftest",))[0] == "linux-image-6.1.0-56-amd64"
    monkeypatch.setattr(packages, "_call", lambda *_: "")
    with pytest.raises(GuestError, match="apt has no package linux-image-amd64") as caught:
        packages.names(("perftest",))
    assert "Debian" in caught.value.hint


def test_a_cached_guest_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def unpack(names: object, root: Path) -> None:
        made.append(root)

    def make(recipe: Recipe, root: Path, tree: Path, target: Path) -> None:
        (target / "vmlinuz").write_text("kernel")

    version = ["busybox_1.deb"]
    monkeypatch.setattr(packages, "names", lambda tools: ("busybox-static", *tools))
    monkeypatch.setattr(packages, "files", lambda names: tuple(version))
    monkeypatch.setattr(packages, "unpack", unpack)
    monkeypatch.setattr(parts, "_make", make)
    first = parts.ensure(RECIPE, tmp_path)
    assert parts.ensure(RECIPE, tmp_path) == first
    assert len(made) == 1
    version[:] = ["busybox_2.deb"]
    second = parts.ensure(RECIPE, tmp_path)
    assert second != first
    assert second.kernel.read_text() == "kernel"
    assert not first.kernel.exists(), "outdated parts are removed"
    assert {p.name for p in (tmp_path / "small").iterdir()} == {second.kernel.parent.name, "lock"}
