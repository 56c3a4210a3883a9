"""Unacknowledged data in the kernel's socket table."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from container_mgr.kernel.in_flight import settled

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def sock(timer: str, state: str = "01", unacknowledged: int = 0) -> str:
    return (
        f"   1: 0B004D0A:5BA0 0D004D0A:C580 {state} {unacknowledged:08X}:00000000"
        f" {timer}:00000013 00000000 0\n"
    )


def net(tmp_path: Path, tcp: str = "", tcp6: str = "", **used: int) -> Path:
    """Make a /proc with one process whose namespace has these sockets."""
    place = tmp_path / "42" / "net"
    place.mkdir(parents=True)
    (place / "tcp").write_text(HEAD + tcp)
    (place / "tcp6").write_text(HEAD + tcp6)
    counts = {
        "TCP": bool(tcp),
        "UDP": 0,
        "RAW": 0,
        **{k: v for k, v in used.items() if "6" not in k},
    }
    counts6 = {"TCP6": bool(tcp6), "UDP6": 0, **{k: v for k, v in used.items() if "6" in k}}
    for name, found in (("sockstat", counts), ("sockstat6", counts6)):
        lines = [f"{kind}: inuse {int(n)} mem 0\n" for kind, n in found.items()]
        (place / name).write_text("sockets: used 9\n" + "".join(lines))
    return tmp_path


@pytest.mark.parametrize(("timer", "queued"), [("00", 0), ("02", 0), ("03", 0), ("04", 64)])
def test_idle_kept_alive_and_full_connections_are_settled(
    tmp_path: Path, timer: str, queued: int
) -> None:
    listening = sock("00", "0A")
    assert settled(42, net(tmp_path, listening + sock(timer, unacknowledged=queued))) is True


def test_a_retransmission_timer_means_data_in_flight(tmp_path: Path) -> None:
    assert settled(42, net(tmp_path, sock("00") + sock("01"))) is False


def test_a_timer_that_expires_now_means_data_in_flight(tmp_path: Path) -> None:
    assert settled(42, net(tmp_path, sock("00") + sock("00", unacknowledged=64))) is False


def test_connections_of_dual_stack_sockets_count(tmp_path: Path) -> None:
    assert settled(42, net(tmp_path, sock("00"), sock("01"))) is False


@pytest.mark.parametrize("kind", ["UDP", "UDP6", "RAW"])
def test_protocols_without_acknowledgements_are_unknown(tmp_path: Path, kind: str) -> None:
    assert settled(42, net(tmp_path, sock("00"), **{kind: 1})) is None


def test_a_kernel_without_ipv6(tmp_path: Path) -> None:
    proc = net(tmp_path, sock("00"))
    (proc / "42/net/sockstat6").unlink()
    (proc / "42/net/tcp6").unlink()
    assert settled(42, proc) is True


def test_more_sockets_than_are_looked_at_are_unknown(tmp_path: Path) -> None:
    proc = net(tmp_path, sock("00") * 100_000 + sock("01"))
    tracemalloc.start()
    assert settled(42, proc) is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_namespace_that_is_gone(tmp_path: Path) -> None:
    assert settled(42, tmp_path) is None
