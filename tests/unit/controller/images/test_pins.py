from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.base.errors import ServiceError
from controller.devices.engine import Pull, ServerImage
from controller.images.pins import decide, hosts, pinned
from controller.schema.submit.request import JobRequest
from sitefile import load_site
from tests.parts.sites import PAPER

A, B = (f"sha256:{letter * 64}" for letter in "ab")
TAG = "registry.example:5000/team/net:1"
PIN = f"registry.example:5000/team/net@{B}"
HAS = ServerImage("srv0", True, A, (TAG, PIN))
LOCAL = ServerImage("srv0", True, A, (TAG,))
LACKS = ServerImage("srv1", False)
REFUSES = ServerImage("srv1", False, refusal="its registry is not listed")


def on(server: str, found: ServerImage) -> ServerImage:
    return replace(found, server=server)


@pytest.mark.parametrize(
    ("pull", "found", "pin"),
    [
        (Pull.NEVER, [], ""),
        (Pull.NEVER, [HAS], PIN),
        (Pull.NEVER, [LOCAL], A),
        (Pull.NEVER, [HAS, on("srv1", HAS)], PIN),
        (Pull.NEVER, [HAS, on("srv1", LOCAL)], A),  # the same image, loaded by hand
        (Pull.MISSING, [HAS, LACKS], PIN),
        (Pull.MISSING, [LACKS], None),
        (Pull.ALWAYS, [HAS, LACKS], None),
    ],
)
def test_what_a_tag_means(pull: Pull, found: list[ServerImage], pin: str | None) -> None:
    assert decide(TAG, pull, found) == pin


@pytest.mark.parametrize("pull", [Pull.MISSING, Pull.ALWAYS])
def test_a_digest_means_itself(pull: Pull) -> None:
    assert decide(PIN, pull, [LACKS]) == PIN
    assert decide(PIN, pull, [HAS]) == PIN


@pytest.mark.parametrize(
    ("pull", "found", "words"),
    [
        (Pull.NEVER, [HAS, LACKS], "is not on srv1"),
        (Pull.NEVER, [LACKS, on("srv2", LACKS)], "is not on srv1, srv2"),
        (Pull.MISSING, [HAS, REFUSES], "srv1 would not fetch image"),
        (Pull.MISSING, [LOCAL, LACKS], "srv1 cannot fetch it"),
        (Pull.ALWAYS, [HAS, REFUSES], "srv1 would not fetch image"),
    ],
)
def test_a_server_that_cannot_run_it_is_named(
    pull: Pull, found: list[ServerImage], words: str
) -> None:
    with pytest.raises(ServiceError) as refused:
        decide(TAG, pull, found)
    assert refused.value.code == "invalid"
    assert words in refused.value.message
    assert refused.value.hint


def test_two_images_under_one_name_are_a_conflict_that_names_both_servers() -> None:
    other = ServerImage("srv1", True, B, (TAG,))
    with pytest.raises(ServiceError) as refused:
        decide(TAG, Pull.NEVER, [LOCAL, other])
    assert refused.value.code == "conflict"
    assert "srv0" in refused.value.message
    assert "srv1" in refused.value.message


IMAGES = st.builds(
    ServerImage,
    st.sampled_from(["srv0", "srv1", "srv2"]),
    st.booleans(),
    st.sampled_from([A, B]),
    st.sets(st.sampled_from([TAG, PIN, f"registry.example:5000/team/net@{A}"])).map(tuple),
    refusal=st.sampled_from(["", "no"]),
)


@given(st.sampled_from(list(Pull)), st.lists(IMAGES, max_size=4, unique_by=lambda i: i.server))
def test_a_pin_is_an_image_of_every_server_that_has_it(
    pull: Pull, found: list[ServerImage]
) -> None:
    try:
        pin = decide(TAG, pull, found)
    except ServiceError:
        return
    holders = [server for server in found if server.present]
    assert pin or not found or pin is None
    if pin:
        assert all(pin == server.id or pin in server.names for server in holders)
        assert holders


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("ubuntu", "ubuntu"),
        ("ubuntu:24.04", "ubuntu"),
        ("host:5000/x", "host:5000/x"),
        ("host:5000/x:1", "host:5000/x"),
        (f"host:5000/x:1@{A}", "host:5000/x"),
    ],
)
def test_a_pinned_name_has_no_tag(image: str, name: str) -> None:
    assert pinned(image, B) == f"{name}@{B}"


def test_only_servers_that_can_host_the_job_are_asked() -> None:
    site = load_site(PAPER)
    everywhere = {e.server for e in site.endpoints}
    assert hosts(site, JobRequest(count=1)) == everywhere
    one = site.endpoints[0]
    assert hosts(site, JobRequest(count=1, endpoints=[one.name])) == {one.server}
    assert hosts(site, JobRequest(count=1, min_memory_bytes=2**49)) == frozenset()
