from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_mgr.users import RankUser
from container_mgr.values import AgentError
from container_mgr.volumes import tree

ME = RankUser(os.geteuid(), os.getegid())


def measured(path: Path) -> tree.Measure:
    with tree.opened(path) as at:
        *_, last = tree.measure(at)
    return last


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_component_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real" / "below").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with tree.opened(tmp_path / "real" / "below"):
        pass
    for path in (tmp_path / "link", tmp_path / "link" / "below"):
        with pytest.raises(OSError) as refused, tree.opened(path):
            pass
        assert refused.value.errno in (errno.ENOTDIR, errno.ELOOP)


def test_an_own_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    with tree.opened(tmp_path) as at:
        with tree.own(at, "jobs", 0o711, "scratch"):
            pass
        (tmp_path / "jobs").chmod(0o777)
        with (
            pytest.raises(AgentError, match="mode 0777"),
            tree.own(at, "jobs", 0o711, "scratch"),
        ):
            pass


def test_an_owners_directory_is_made_once(tmp_path: Path) -> None:
    with tree.opened(tmp_path) as at:
        assert tree.make_for(at, "red", ME, "ll-red-0-1")
        assert not tree.make_for(at, "red", ME, "ll-red-0-1")
    assert (tmp_path / "red").stat().st_mode & 0o7777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_directory_that_a_crash_left_unowned_is_taken(tmp_path: Path) -> None:
    (tmp_path / "red").mkdir()
    with tree.opened(tmp_path) as at:
        assert not tree.make_for(at, "red", RankUser(5000, 5000), "ll-red-0-1")
        assert (tmp_path / "red").stat().st_uid == 5000
        with pytest.raises(AgentError, match="belongs to uid 5000"):
            tree.make_for(at, "red", RankUser(5001, 5001), "ll-red-0-1")


@pytest.mark.parametrize("kind", ["link", "file"])
def test_something_else_in_place_of_a_directory_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / "red").symlink_to("/")
    else:
        (tmp_path / "red").touch()
    with tree.opened(tmp_path) as at, pytest.raises(AgentError, match="in place of") as refused:
        tree.make_for(at, "red", ME, "ll-red-0-1")
    assert refused.value.code == "conflict"


def test_a_measurement_counts_blocks_once_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "deep" / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    found = measured(tmp_path)
    expected = sum(
        path.lstat().st_blocks * 512
        for path in (tmp_path / "deep", tmp_path / "again", tmp_path / "link")
    )
    assert (found.files, found.bytes, found.too_deep) == (4, expected, False)


def test_a_tree_that_is_too_deep_says_so(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(tree.MAX_DEPTH + 5):
        path /= "d"
    path.mkdir(parents=True)
    before = descriptors()
    assert measured(tmp_path).too_deep
    assert descriptors() == before


def test_a_measurement_that_is_given_up_closes_everything(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    before = descriptors()
    with tree.opened(tmp_path) as at:
        work = tree.measure(at)
        for _ in range(2):
            next(work)
        work.close()
    assert descriptors() == before


def test_a_deep_tree_is_removed(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    top = os.dup(at)
    for level in range(3000):  # deeper than a path can be
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
        if level % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    before = descriptors()
    for _ in tree.empty(top):
        pass
    assert descriptors() == before
    os.close(top)
    assert list(tmp_path.iterdir()) == []


NAMES = st.sampled_from(["a", "b", "1", "2", "3"])


@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=5), st.booleans()), max_size=30))
def test_every_tree_is_removed_whole_and_nothing_beside_it(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[list[str], bool]]
) -> None:
    base = tmp_path_factory.mktemp("tree")
    victim, top = base / "victim", base / "top"
    victim.mkdir()
    (victim / "kept").touch()
    top.mkdir()
    for parts, linked in entries:
        path = top.joinpath(*parts)
        if any(p.is_symlink() for p in (path, *path.parents)) or path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if linked:
            path.symlink_to(victim)
        else:
            path.mkdir()
    with tree.opened(top) as at:
        for _ in tree.empty(at):
            pass
    assert list(top.iterdir()) == []
    assert [p.name for p in victim.iterdir()] == ["kept"]
