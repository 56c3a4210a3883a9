"""Names and paths of volumes that a job may ask for."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container_mgr.values import AgentError
from container_mgr.volumes import rules

_JOB = "ll-red-0-1"


@pytest.mark.parametrize("name", ["imagenet", "a", "scratch-2", "x" * 63])
def test_accepts_names(name: str) -> None:
    rules.check_name(name, _JOB)


@pytest.mark.parametrize(
    "name", ["", "..", "../etc", "a/b", "/srv", "Data", "-a", "a-", "a\n", "x" * 64, "a b", "a:b"]
)
def test_refuses_what_is_no_name(name: str) -> None:
    with pytest.raises(AgentError) as refused:
        rules.check_name(name, _JOB)
    assert (refused.value.code, refused.value.obj) == ("invalid", _JOB)


@pytest.mark.parametrize("owner", ["vision", "vision.red", "a.b-2", f"{'p' * 32}.{'j' * 41}"])
def test_accepts_owners(owner: str) -> None:
    rules.check_owner(owner, _JOB)


@pytest.mark.parametrize(
    "owner", ["", ".", "..", ".red", "vision.", "a.b.c", "../x", "a/b", "a\n", "x" * 81]
)
def test_refuses_what_is_no_owner(owner: str) -> None:
    with pytest.raises(AgentError, match="cannot own"):
        rules.check_owner(owner, _JOB)


@pytest.mark.parametrize(
    "path", ["/data", "/mnt/sets/imagenet", "/tmp/cache", "/var/lib/data", "/runs", "/home/me"]
)
def test_accepts_paths(path: str) -> None:
    rules.check_path(path, _JOB)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "data", "//data", "/data/", "/a//b", "/a/../etc", "/..", "/a/.", "/a b", "/a:b"),
        *("/proc", "/proc/1", "/sys", "/dev/shm", "/etc", "/etc/ssl", "/run", "/run/lightloom"),
        *("/lightloom", "/lightloom/rank", "/usr/lib", "/bin", "/var/run", "/var", "/tmp"),
        *("/data\n", "/data\0", f"/{'x' * 255}", "/dät"),
    ],
)
def test_refuses_other_paths(path: str) -> None:
    with pytest.raises(AgentError) as refused:
        rules.check_path(path, _JOB)
    assert refused.value.code == "invalid"
    assert refused.value.hint


def test_paths_are_separate() -> None:
    rules.check_mounts([("a", "/data"), ("b", "/data-2"), ("a", "/models/a")], _JOB)
    with pytest.raises(AgentError, match="/data is given twice"):
        rules.check_mounts([("a", "/data"), ("b", "/data")], _JOB)
    with pytest.raises(AgentError, match="/data/in is inside /data"):
        rules.check_mounts([("a", "/data/in"), ("c", "/data-2"), ("b", "/data")], _JOB)


def test_volumes_are_bounded() -> None:
    most = [(f"v{i}", f"/data{i}") for i in range(rules.MAX_VOLUMES)]
    rules.check_mounts(most, _JOB)
    with pytest.raises(AgentError, match="more than 16"):
        rules.check_mounts([*most, ("one-more", "/more")], _JOB)


_PATHS = st.lists(
    st.text(st.sampled_from("ab-.~/"), min_size=1, max_size=6).map("/".__add__), max_size=4
)


@given(_PATHS)
def test_accepted_paths_are_normal_and_hide_none_of_each_other(paths: list[str]) -> None:
    try:
        rules.check_mounts([("v", path) for path in paths], _JOB)
    except AgentError:
        return
    for path in paths:
        assert posixpath.normpath(path) == path
        inside = [other for other in paths if posixpath.commonpath([other, path]) == path]
        assert inside == [path]
