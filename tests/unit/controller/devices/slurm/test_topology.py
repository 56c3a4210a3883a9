"""The tree that Slurm gets, and what it shows of it."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.observed import Published
from controller.devices.slurm.hostlists import expand
from controller.devices.slurm.topology import (
    CORE,
    Mark,
    SlurmTopology,
    differences,
    leaves_of,
    mark_of,
    misplaced,
    render,
    shown_in,
)
from tests import recorded

NEAR = Published(7, {"as0": ("gpu0", "gpu1", "gpu2"), "as1": ("gpu6",)}, ("gpu3", "gpu4", "gpu5"))


def test_leaves_are_of_whole_nodes() -> None:
    assert leaves_of(NEAR, recorded.NODES, ["login", "n0"]) == {
        "n0": "as0",
        "n1": "alone_n1",
        "n2": "alone_n2",
        "n3": "as1",
        "login": "other_nodes",
    }


def test_the_file() -> None:
    text = render("rack", 7, leaves_of(NEAR, recorded.NODES))
    assert text.splitlines() == [
        "# Written by lightloom for site rack, epoch 7. Changes by hand are lost.",
        "SwitchName=alone_n1 Nodes=n1",
        "SwitchName=alone_n2 Nodes=n2",
        "SwitchName=as0 Nodes=n0",
        "SwitchName=as1 Nodes=n3",
        "SwitchName=lightloom_core Switches=alone_n1,alone_n2,as0,as1",
    ]
    assert mark_of(text) == Mark("rack", 7)


@pytest.mark.parametrize("text", ["", "SwitchName=as0 Nodes=n0\n", "# Written by topograph\n"])
def test_files_of_others(text: str) -> None:
    assert mark_of(text) is None


@pytest.mark.parametrize("leaf", [{}, {"n 0": "as0"}, {"n0,n1": "as0"}, {"n[0-1]": "as0"}])
def test_what_would_break_slurm_is_not_written(leaf: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"nodes|hostlist"):
        render("rack", 1, leaf)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,2}[0-9]{1,3}", fullmatch=True),
        st.sampled_from(["as0", "as1", "as2"]),
        min_size=1,
    )
)
def test_all_nodes_are_in_the_file_once_and_no_leaf_is_empty(leaf: dict[str, str]) -> None:
    lines = render("rack", 1, leaf).splitlines()[1:-1]
    found = {}
    for line in lines:
        name, nodes = re.fullmatch(r"SwitchName=(\S+) Nodes=(\S+)", line).groups()  # type: ignore[union-attr]
        for node in expand(nodes):
            assert node not in found
            found[node] = name
    assert found == leaf


def test_what_real_daemons_show() -> None:
    shown = shown_in(recorded.output("24.11", "topology-a.txt").decode())
    assert shown == SlurmTopology(
        {"n0": "as0", "n1": "as0", "n2": "alone_n2", "n3": "as1"}, (CORE,)
    )
    assert shown_in(recorded.output("24.11", "topology-old.txt").decode()).roots == ("core",)
    moved = shown_in(recorded.output("26.05", "topology-e.txt").decode())
    assert moved.leaf == {"n0": "as0", "n1": "as0", "n2": "as1", "n3": "as1"}
    assert moved.roots == (CORE,)
    assert shown_in("") == SlurmTopology({}, ())


@pytest.mark.parametrize(
    "text",
    [
        "BlockName=b0 Nodes=n0",
        "SwitchName=as0 Level=x LinkSpeed=1 Nodes=n0",
        "SwitchName=as0 Level=0 LinkSpeed=1 Nodes=n[0-",
        "SwitchName=as0 Level=0 LinkSpeed=1 Nodes=a[0-65535]\n"
        "SwitchName=as1 Level=0 LinkSpeed=1 Nodes=b0",
    ],
)
def test_what_is_no_tree(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        shown_in(text)


@given(st.text(max_size=80) | st.text(alphabet="SwitchNameLvlkpdos=[]0-9, \n", max_size=200))
def test_any_text_is_shown_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        shown_in(text)


def test_what_slurm_has_otherwise() -> None:
    shown = shown_in(recorded.output("24.11", "topology-a.txt").decode())
    wanted = leaves_of(NEAR, recorded.NODES)
    assert misplaced(wanted, shown) == {"alone_n1": ("n1",)}
    assert differences(wanted, shown) == ("Slurm has n1 under as0, not under alone_n1",)
    many = {f"m{i}": "as0" for i in range(20)}
    words = differences(many, shown)
    assert len(words) == 8
    assert words[-1] == "and 13 more"
