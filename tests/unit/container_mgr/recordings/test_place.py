"""What a job may put into its directory of recordings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentlink.ranks import RankKey
from container_mgr.recordings.place import MOST_FILES, RecordingFolder
from recorder import layout
from tests.unit.container_mgr.recordings.parts import FakeRank


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[FakeRank]:
    one = FakeRank(tmp_path)
    yield one
    one.end()


@pytest.fixture
def place(rank: FakeRank) -> Iterator[RecordingFolder]:
    one = RecordingFolder.open(rank.container, rank.proc)
    yield one
    one.close()


def test_a_file_is_read(rank: FakeRank, place: RecordingFolder) -> None:
    path = rank.write()
    (file,) = place.files()
    assert (file.name, file.problem) == ("torch-17.rec", "")
    assert file.data == path.read_bytes()


def test_other_names_are_not_read(rank: FakeRank, place: RecordingFolder) -> None:
    rank.write("torch-17.rec").rename(rank.directory / "torch-17.rec.old")
    (rank.directory / "torch-0.rec").touch()
    assert place.files() == []


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "device", "huge", "empty"])
def test_what_is_no_recorders_file_is_named(
    rank: FakeRank, place: RecordingFolder, kind: str, tmp_path: Path
) -> None:
    path = rank.directory / "nccl-5.rec"
    match kind:
        case "link":
            (tmp_path / "secret").write_bytes(bytes(layout.SIZE))
            path.symlink_to(tmp_path / "secret")
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "device":
            path.symlink_to("/dev/zero")
        case "huge":
            path.touch()
            os.truncate(path, 2**40)
        case "empty":
            path.touch()
    (file,) = place.files()
    assert file.problem
    assert file.data == b""


def test_only_the_newest_files_are_read(rank: FakeRank, place: RecordingFolder) -> None:
    for number in range(1, 12):
        path = rank.directory / f"torch-{number}.rec"
        path.touch()
        os.utime(path, (number, number))
    assert [f.name for f in place.files()] == [
        f"torch-{number}.rec" for number in range(11, 11 - MOST_FILES, -1)
    ]


def test_a_directory_that_is_replaced_is_the_old_one(
    rank: FakeRank, place: RecordingFolder
) -> None:
    rank.write()
    rank.directory.rename(rank.directory.with_name("moved"))
    rank.directory.mkdir()
    assert len(place.files()) == 1


def test_a_link_in_place_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path / "proc")
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(rank.directory)
    rank.directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Not a directory"):
        RecordingFolder.open(rank.container, rank.proc)
    rank.end()


def test_the_files_of_an_ended_rank_can_be_read(rank: FakeRank, place: RecordingFolder) -> None:
    rank.write()
    assert not place.ended
    rank.end()
    assert place.ended
    assert len(place.files()) == 1


def test_an_ended_rank_is_not_opened(tmp_path: Path) -> None:
    rank = FakeRank(tmp_path, RankKey("red", 3, 1))
    rank.end()
    with pytest.raises(ProcessLookupError):
        RecordingFolder.open(rank.container, rank.proc)
