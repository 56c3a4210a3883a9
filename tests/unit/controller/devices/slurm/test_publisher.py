"""Publishing: the file whole and at once, the running Slurm after it, and what was refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from controller.devices.observed import ObservedError, Published
from controller.devices.slurm.publisher import TopologyWriter, version_of
from controller.devices.slurm.transport import late
from tests import recorded
from tests.parts.controller.slurm import FakeSlurm


def near(epoch: int, *, swapped: bool = False) -> Published:
    a, b = ("gpu0", "gpu1", "gpu2", "gpu3"), ("gpu4", "gpu5", "gpu6")
    return Published(epoch, {"as0": b if swapped else a, "as1": a if swapped else b})


class Site:
    def __init__(self, folder: Path, version: str = "v0.0.45") -> None:
        self.file = folder / "topology.conf"
        self.slurm = FakeSlurm(version, str(self.file))
        self.publisher = TopologyWriter(self.slurm, self.slurm, self.file, "rack", recorded.NODES)

    def told(self) -> list[str]:
        calls, self.slurm.calls = self.slurm.calls, []
        return [call for call in calls if call.startswith(("place", "reconfigure"))]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_the_first_tree_needs_a_reconfigure_and_the_next_do_not(site: Site) -> None:
    assert (await site.publisher.publish(near(1))).differences == ()
    assert site.told() == ["reconfigure"]
    assert stat.S_IMODE(site.file.stat().st_mode) == 0o644
    assert (await site.publisher.publish(near(2, swapped=True))).epoch == 2
    assert site.told() == [
        "place n[0-1] default:lightloom_core:as1",
        "place n[2-3] default:lightloom_core:as0",
    ]
    assert "epoch 2" in site.file.read_text()


async def test_before_25_05_every_change_is_a_reconfigure(tmp_path: Path) -> None:
    site = Site(tmp_path, "v0.0.42")
    await site.publisher.publish(near(1))
    await site.publisher.publish(near(2, swapped=True))
    assert site.told() == ["reconfigure", "reconfigure"]


async def test_equal_homes_of_a_later_epoch_are_noted_in_the_file_only(site: Site) -> None:
    await site.publisher.publish(near(1))
    site.told()
    assert (await site.publisher.publish(near(2))).epoch == 2
    assert site.told() == []
    before = site.file.stat()
    assert (await site.publisher.publish(near(2))).epoch == 2
    assert site.file.stat() == before


async def test_what_slurm_forgot_is_told_again(site: Site) -> None:
    await site.publisher.publish(near(1))
    site.told()
    site.slurm.tree = {"as0": ["n2"], "as1": ["n0", "n1", "n3"]}
    assert (await site.publisher.publish(near(1))).differences == ()
    assert len(site.told()) == 2


async def test_mode_and_neighbours_are_kept(site: Site) -> None:
    site.file.write_text("")
    site.file.chmod(0o640)
    (site.file.parent / "slurm.conf").write_text("x")
    await site.publisher.publish(near(1))
    assert stat.S_IMODE(site.file.stat().st_mode) == 0o640
    assert sorted(path.name for path in site.file.parent.iterdir()) == [
        "slurm.conf",
        "topology.conf",
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("topology.conf", "SwitchName=core Nodes=n[0-3]\n", "did not write it"),
        ("topology.conf", "# Written by lightloom for site other, epoch 1. X\n", "site other"),
        ("topology.yaml", "- topology: x\n", "topology.yaml"),
    ],
)
async def test_a_foreign_file_is_left_alone(site: Site, name: str, text: str, words: str) -> None:
    file = site.file.with_name(name)
    file.write_text(text)
    with pytest.raises(ObservedError, match=words) as error:
        await site.publisher.publish(near(1))
    assert error.value.code == "conflict"
    assert error.value.hint
    assert file.read_text() == text
    assert site.told() == []
    assert site.publisher.epoch() is None


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    slurm = FakeSlurm("v0.0.45")
    publisher = TopologyWriter(slurm, slurm, tmp_path / "none" / "t.conf", "rack", recorded.NODES)
    with pytest.raises(ObservedError) as error:
        await publisher.publish(near(1))
    assert error.value.code == "invalid"
    assert "reconfigure" not in slurm.calls


async def test_a_reconfigure_of_unknown_outcome_is_read_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = site.slurm.reconfigure

    async def works_and_is_late() -> None:
        await really()
        raise late("reconfigure", 15)

    monkeypatch.setattr(site.slurm, "reconfigure", works_and_is_late)
    assert (await site.publisher.publish(near(1))).differences == ()


async def test_a_reconfigure_that_did_nothing_is_reported(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_late() -> None:
        raise late("reconfigure", 15)

    async def nothing() -> None: ...

    monkeypatch.setattr(site.slurm, "reconfigure", is_late)
    with pytest.raises(ObservedError) as error:
        await site.publisher.publish(near(1))
    assert error.value.code == "timeout"
    monkeypatch.setattr(site.slurm, "reconfigure", nothing)
    read = await site.publisher.publish(near(1))
    assert len(read.differences) == 4


async def test_a_live_change_that_fails_becomes_a_reconfigure(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.publisher.publish(near(1))
    site.told()

    async def is_late(nodes: str, unit: str) -> None:
        raise late("topology", 15)

    monkeypatch.setattr(site.slurm, "place", is_late)
    assert (await site.publisher.publish(near(2, swapped=True))).differences == ()
    assert site.told() == ["reconfigure"]


async def test_nodes_that_the_site_file_does_not_map_are_in_the_tree(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    slurm = FakeSlurm("v0.0.45", str(file))
    some = {name: recorded.NODES[name] for name in ("n0", "n1")}
    await TopologyWriter(slurm, slurm, file, "rack", some).publish(near(1))
    assert "SwitchName=other_nodes Nodes=n[2-3]\n" in file.read_text()


async def test_nodes_that_slurm_does_not_know_are_left_out_and_named(tmp_path: Path) -> None:
    file = tmp_path / "topology.conf"
    slurm = FakeSlurm("v0.0.42", str(file))
    nodes = {**recorded.NODES, "n8": ("gpu8",), "n9": ("gpu9",)}
    publisher = TopologyWriter(slurm, slurm, file, "rack", nodes)
    for epoch in range(1, 4):
        read = await publisher.publish(near(epoch))
        assert (read.differences, read.unknown) == ((), ("n8", "n9"))
    assert slurm.calls.count("reconfigure") == 1
    assert "n8" not in file.read_text()


async def test_a_difference_that_stays_is_not_tried_again_until_a_side_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, "v0.0.42")
    tried = 0

    async def nothing() -> None:
        nonlocal tried
        tried += 1

    monkeypatch.setattr(site.slurm, "reconfigure", nothing)
    for _ in range(65):
        assert len((await site.publisher.publish(near(1))).differences) == 4
    assert tried == 1
    await site.publisher.publish(near(2, swapped=True))
    assert tried == 2, "light has moved"
    site.slurm.tree = {"as0": ["n0"], "as1": ["n1", "n2", "n3"]}
    await site.publisher.publish(near(2, swapped=True))
    assert tried == 3, "Slurm has another topology"
    await site.publisher.publish(near(2, swapped=True))
    assert tried == 3


async def test_a_change_of_unknown_outcome_is_tried_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, "v0.0.42")
    tried = 0

    async def is_late() -> None:
        nonlocal tried
        tried += 1
        raise late("reconfigure", 15)

    monkeypatch.setattr(site.slurm, "reconfigure", is_late)
    for _ in range(3):
        with pytest.raises(ObservedError):
            await site.publisher.publish(near(1))
    assert len((await site.publisher.publish(near(1))).differences) == 4
    assert tried == 3


@pytest.mark.parametrize(
    ("release", "version"),
    [("25.05.3", (25, 5)), ("23.11.4-1", (23, 11)), ("", (0, 0)), ("x.y", (0, 0))],
)
def test_releases(release: str, version: tuple[int, int]) -> None:
    assert version_of(release) == version
