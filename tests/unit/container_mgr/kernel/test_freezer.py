"""The freezer of one container, in a cgroup tree of plain files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from container_mgr.kernel import freezer
from container_mgr.kernel.freezer import Freezer, FreezerState, find

ID = "4f" * 32


def tree(tmp_path: Path, *, version: int, cgroup: str, root: str = "/") -> Path:
    """Make a /proc in which process 42 is in ``cgroup``, and the mount that has it."""
    proc, mount = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "42").mkdir(parents=True)
    (proc / "self").mkdir()
    name = "7:freezer" if version == 1 else "0:"
    other = "0::/\n" if version == 1 else "5:devices:/elsewhere\n"
    (proc / "42" / "cgroup").write_text(f"{name}:{cgroup}\n{other}")
    kind = "cgroup cgroup rw,freezer" if version == 1 else "cgroup2 cgroup2 rw"
    (proc / "self" / "mountinfo").write_text(f"30 25 0:26 {root} {mount} rw - {kind}\n")
    return proc


def group(path: Path, version: int) -> Freezer:
    """Make a thawed cgroup at ``path``."""
    path.mkdir(parents=True)
    if version == 1:
        (path / "freezer.state").write_text("THAWED\n")
    else:
        (path / "cgroup.freeze").write_text("0\n")
        (path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    return Freezer(version, path)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("name", [ID, f"docker-{ID}.scope"])
def test_the_containers_own_cgroup_is_found(tmp_path: Path, version: int, name: str) -> None:
    proc = tree(tmp_path, version=version, cgroup=f"/ll-rack/{name}")
    there = group(tmp_path / "cgroup" / "ll-rack" / name, version)
    assert find(ID, 42, proc) == there


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_below_the_containers_is_not_enough(tmp_path: Path, version: int) -> None:
    proc = tree(tmp_path, version=version, cgroup=f"/ll-rack/{ID}/init")
    whole = group(tmp_path / "cgroup" / "ll-rack" / ID, version)
    group(whole.group / "init", version)
    assert find(ID, 42, proc) == whole


def test_a_mount_with_a_lower_root(tmp_path: Path) -> None:
    proc = tree(tmp_path, version=1, cgroup=f"/docker/outer/ll/{ID}", root="/docker/outer")
    there = group(tmp_path / "cgroup" / "ll" / ID, 1)
    assert find(ID, 42, proc) == there


@pytest.mark.parametrize(
    ("cgroup", "root", "reason"),
    [
        ("/ll-rack/another", "/", "is not container"),
        ("/", "/", "is not container"),
        (f"/../ll-rack/{ID}", "/", "no mount shows"),
        (f"/outer2/{ID}", "/outer", "no mount shows"),
        (f"/ll-rack/{ID}", "/", "cannot be written"),  # it does not exist
    ],
)
def test_a_cgroup_that_may_not_be_the_containers_is_refused(
    tmp_path: Path, cgroup: str, root: str, reason: str
) -> None:
    group(tmp_path / "cgroup" / "ll-rack" / "another", 1)
    proc = tree(tmp_path, version=1, cgroup=cgroup, root=root)
    with pytest.raises(LookupError, match=reason):
        find(ID, 42, proc)


def test_a_container_without_an_id_has_no_freezer(tmp_path: Path) -> None:
    group(tmp_path / "cgroup" / "ll-rack" / ID, 1)
    with pytest.raises(LookupError, match="is not container"):
        find("", 42, tree(tmp_path, version=1, cgroup=f"/ll-rack/{ID}"))


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cgroup"):
        find(ID, 43, tree(tmp_path, version=1, cgroup=f"/ll-rack/{ID}"))


def test_version_1_has_words_as_states(tmp_path: Path) -> None:
    one = group(tmp_path / "x", 1)
    one.request(frozen=True)
    assert one.state() is FreezerState.FROZEN
    one.request(frozen=False)
    assert one.state() is FreezerState.THAWED
    (one.group / "freezer.state").write_text("FREEZING\n")
    assert one.state() is FreezerState.FREEZING


def test_version_2_is_frozen_when_the_kernel_reports_it(tmp_path: Path) -> None:
    one = group(tmp_path / "x", 2)
    one.request(frozen=True)
    assert (one.group / "cgroup.freeze").read_text().startswith("1")
    assert one.state() is FreezerState.FREEZING
    (one.group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert one.state() is FreezerState.FROZEN


def test_no_file_is_created_where_the_kernel_has_no_freezer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Freezer(1, tmp_path).request(frozen=True)
    assert not list(tmp_path.iterdir())


async def test_settle_waits_until_all_are_frozen(tmp_path: Path) -> None:
    fast, slow = group(tmp_path / "fast", 1), group(tmp_path / "slow", 2)
    for one in (fast, slow):
        freezer.request(one, frozen=True)
    waiting = asyncio.create_task(freezer.settle([fast, slow], frozen=True, limit_s=30))
    await asyncio.sleep(10)
    assert not waiting.done()
    (slow.group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert await waiting == {}


async def test_settle_returns_what_is_late_and_does_not_wait_for_ended_containers(
    tmp_path: Path,
) -> None:
    stuck, dead = group(tmp_path / "stuck", 2), Freezer(1, tmp_path / "gone")
    freezer.request(stuck, frozen=True)
    late = await freezer.settle([stuck, dead], frozen=True, limit_s=1.0)
    assert late == {stuck: FreezerState.FREEZING, dead: None}
    assert not freezer.request(dead, frozen=False)
