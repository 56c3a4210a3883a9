from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from sitefile import load_site
from testbed.rack import shaping
from testbed.rack.errors import RackError
from testbed.rack.layout import FABRIC_NETNS, OCS_NETNS, Patch, RackLayout, lay_out


@pytest.fixture
def layout() -> RackLayout:
    return lay_out(load_site(Path(testbed.__file__).parent / "sites" / "paper.yaml"))


def test_both_directions_of_every_fiber_and_uplink_are_shaped(layout: RackLayout) -> None:
    lines = shaping.setup_lines(layout, 250_000_000, 114_000_000)
    classes = [line for line in lines[OCS_NETNS] if line.startswith("class")]
    assert len(classes) == len(layout.fibers) == 14
    assert all("rate 250000000bit ceil 250000000bit" in line for line in classes)
    assert {line.split()[3] for line in classes} == set(layout.link_maps["ocs0"].values())
    uplinks = [line for line in lines[FABRIC_NETNS] if line.startswith("class")]
    assert {line.split()[3] for line in uplinks} == {"as0-u8", "as1-u8"}
    assert all("rate 114000000bit" in line for line in uplinks)


def test_one_link_takes_root_class_and_queue() -> None:
    assert shaping.htb_setup(["o-gpu0"], 1_000_000) == [
        "qdisc add dev o-gpu0 root handle 1: htb default 1",
        "class add dev o-gpu0 parent 1: classid 1:1 "
        "htb rate 1000000bit ceil 1000000bit burst 32k quantum 60000",
        "qdisc add dev o-gpu0 parent 1:1 handle 10: pfifo limit 100",
    ]


def test_a_change_touches_only_classes(layout: RackLayout) -> None:
    lines = shaping.change_lines(layout, 1_000_000, 500_000)
    assert all(line.startswith("class change dev ") for part in lines.values() for line in part)


def test_a_patch_redirects_both_ways() -> None:
    lines = shaping.patch_lines([Patch("o-gpu9", "o-as0-p5")])
    redirects = [line.split() for line in lines if line.startswith("filter")]
    assert [(line[3], line[-1]) for line in redirects] == [
        ("o-gpu9", "o-as0-p5"),
        ("o-as0-p5", "o-gpu9"),
    ]


@pytest.mark.parametrize("bps", [0.0, -1.0, 7_999.0, 2e12, float("nan"), float("inf")])
def test_an_impossible_rate_is_refused(bps: float) -> None:
    with pytest.raises(RackError) as caught:
        shaping.check_rate("access_bps", bps)
    assert (caught.value.code, caught.value.object) == ("invalid", "access_bps")
