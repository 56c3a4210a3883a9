"""Addresses as people write them."""

from __future__ import annotations

import pytest

from controller.base.addresses import is_loopback, split_address


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("127.0.0.1:6653", ("127.0.0.1", 6653)),
        ("[::1]:1", ("::1", 1)),
        ("a.b:65535", ("a.b", 65535)),
    ],
)
def test_addresses_are_split(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["6653", "host:", ":6653", "host:x", "host:70000"])
def test_bad_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(text)


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
