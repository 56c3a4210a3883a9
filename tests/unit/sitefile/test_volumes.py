"""Volumes and users in the site file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from sitefile import CabledSite, SiteFileError, load_site, site_schema
from sitefile.volumes import User, Volume
from tests.parts.sites import PAPER

_PROJECTS = [{"name": "vision", "uid": 2001, "gid": 2000}, {"name": "speech"}]


@pytest.fixture
def document() -> dict[str, Any]:
    paper = copy.deepcopy(yaml.safe_load(PAPER.read_text()))
    del paper["volumes"], paper["emulation"]["volumes"]
    return paper


def load(tmp_path: Path, document: Any) -> CabledSite:
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump(document))
    return load_site(file)


def refused(tmp_path: Path, document: Any) -> str:
    with pytest.raises(SiteFileError) as caught:
        load(tmp_path, document)
    return "; ".join(str(problem) for problem in caught.value.problems)


def test_volumes_of_a_site(tmp_path: Path, document: dict[str, Any]) -> None:
    document["projects"] = _PROJECTS
    document["volumes"] = {
        "imagenet": {"projects": ["vision"], "read": "1GB/s"},
        "scratch": {
            "mode": "rw",
            "per": "job",
            "quota": "200GiB",
            "keep": "7d",
            "write": "500MB/s",
        },
    }
    volumes = load(tmp_path, document).volumes
    assert volumes == {
        "imagenet": Volume("imagenet", projects=frozenset({"vision"}), read_bps=10**9),
        "scratch": Volume(
            "scratch",
            read_only=False,
            per="job",
            quota_bytes=200 * 2**30,
            keep_s=7 * 86400.0,
            write_bps=500 * 10**6,
        ),
    }
    assert volumes["imagenet"].admits("vision")
    assert not volumes["imagenet"].admits("speech")
    assert volumes["scratch"].admits("speech")


def test_a_site_without_volumes(tmp_path: Path, document: dict[str, Any]) -> None:
    site = load(tmp_path, document)
    assert site.volumes == {}
    assert site.users.of("default") == User(None, None)


def test_users_of_projects(tmp_path: Path, document: dict[str, Any]) -> None:
    document["projects"] = _PROJECTS
    document["users"] = {"uid": 3000, "gid": 3000}
    users = load(tmp_path, document).users
    assert users.of("vision") == User(2001, 2000)
    assert users.of("speech") == users.of("made-later") == User(3000, 3000)


@pytest.mark.parametrize("uid", [0, -1, 2**31 + 1, "root", True, 1.5])
def test_no_job_runs_as_root(tmp_path: Path, document: dict[str, Any], uid: object) -> None:
    document["users"] = {"uid": uid}
    assert "users.uid" in refused(tmp_path, document)
    document["users"] = {}
    document["projects"] = [{"name": "vision", "gid": uid}]
    assert "projects[0].gid" in refused(tmp_path, document)


def test_an_unknown_project_is_named(tmp_path: Path, document: dict[str, Any]) -> None:
    document["projects"] = _PROJECTS
    document["volumes"] = {"imagenet": {"projects": ["vision", "visoin"]}}
    text = refused(tmp_path, document)
    assert "volumes.imagenet.projects[1]: unknown project 'visoin'" in text
    assert "correct the name" in text
    document["projects"] = []  # then the site accepts any project
    assert load(tmp_path, document).volumes["imagenet"].admits("visoin")


@pytest.mark.parametrize(
    ("volume", "said"),
    [
        ({"mode": "w"}, "volumes.v.mode"),
        ({"path": "/srv"}, "unknown key 'path'"),
        ({"per": "job"}, "per: job needs mode: rw"),
        ({"write": "1GB/s"}, "write needs mode: rw"),
        ({"mode": "rw", "quota": "1GiB"}, "quota needs per: project or per: job"),
        ({"mode": "rw", "keep": "7d"}, "keep needs per: project or per: job"),
        ({"mode": "rw", "per": "job", "keep": "soon"}, "not a duration"),
        ({"mode": "rw", "per": "job", "keep": 0}, "volumes.v.keep"),
        ({"mode": "rw", "per": "job", "quota": True}, "true and false are not numbers"),
        ({"read": "1KB/s"}, "volumes.v.read"),
    ],
)
def test_what_a_volume_cannot_be(
    tmp_path: Path, document: dict[str, Any], volume: dict[str, Any], said: str
) -> None:
    document["volumes"] = {"v": volume}
    assert said in refused(tmp_path, document)


@pytest.mark.parametrize("name", ["../etc", "/srv", "A", "a/b", "", "-a"])
def test_a_volume_has_a_name_not_a_path(
    tmp_path: Path, document: dict[str, Any], name: str
) -> None:
    document["volumes"] = {name: {}}
    assert "volumes" in refused(tmp_path, document)


@pytest.mark.parametrize(
    ("text", "seconds"), [("7d", 604800), ("12h", 43200), ("1h30m", 5400), ("90", 90), (60, 60)]
)
def test_durations(tmp_path: Path, document: dict[str, Any], text: object, seconds: float) -> None:
    document["volumes"] = {"v": {"mode": "rw", "per": "job", "keep": text}}
    assert load(tmp_path, document).volumes["v"].keep_s == seconds


def test_the_schema_has_volumes() -> None:
    properties = site_schema()["properties"]
    assert {"volumes", "users"} <= properties.keys()
