"""Addresses as people write them."""

from __future__ import annotations

import pytest

from base.addresses import join_address, split_address
from controller.base.addresses import is_loopback


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:6653", ("127.0.0.1", 6653)),
        ("[::1]:1", ("::1", 1)),
        ("a.b:65535", ("a.b", 65535)),
        ("[fd00::10]:0", ("fd00::10", 0)),
        ("[fe80::1%eth0]:7701", ("fe80::1%eth0", 7701)),
        ("srv-0_a.example.:7701", ("srv-0_a.example.", 7701)),
    ],
)
def test_addresses_are_split(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts
    assert join_address(*parts) == text


BAD = (
    *("6653", "host:", ":6653", "host:x", "host:70000", "host:99999", "host:65536", "host:-1"),
    *("fd00::10:7701", "::1:6653", "::1", "[::1]", "[host]:1", "[::1:1", "[]:1", "[127.0.0.1]:1"),
    *("host:07701", "host:+1", "host:1_0", "host: 1", "host:\u0661", "host:1\n", "ho st:1"),
    *("999.0.0.1:1", "1.2.3:1", "10:1", "-a:1", "a/b:1", "user@a:1", "http://a:1"),
)


@pytest.mark.parametrize("text", BAD)
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|\[IPv6 address\]:port"):
        split_address(text)


def test_only_who_listens_takes_any_port() -> None:
    assert split_address("a:0") == ("a", 0)
    with pytest.raises(ValueError, match="ports are 1 to 65535"):
        split_address("a:0", lowest=1)


@pytest.mark.parametrize(
    ("host", "is_it"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback_has_several_names(host: str, is_it: bool) -> None:
    assert is_loopback(host) is is_it
