"""A part as a stream, and a stream cut into files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints.manifest import Damage, Damaged
from container_mgr.transfers import parts
from container_mgr.transfers.parts import DamagedPartError, Files, PartStream
from tests.unit.container_mgr.transfers.fakes import content_of, files_of, fill, flip, manifest_of

NAMES = st.sampled_from(["a", "b", "c/d", "c/e", "f/g/h"])


@settings(deadline=None)
@given(
    files=st.dictionaries(NAMES, st.binary(max_size=50), min_size=1),
    cuts=st.lists(st.integers(1, 40), min_size=1),
)
def test_a_stream_becomes_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], cuts: list[int]
) -> None:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    fill(source, files)
    manifest = manifest_of(0, files)
    root = os.open(target, os.O_RDONLY)
    try:
        out = Files(root, manifest)
        with PartStream(source, manifest) as stream:
            number = 0
            while block := stream.read(cuts[number % len(cuts)]):
                out.write(block)
                number += 1
        assert out.finish() == ()
    finally:
        os.close(root)
    assert content_of(target) == files


@given(at=st.integers(0, 400_000))
@settings(deadline=None, max_examples=30)
def test_a_stream_is_read_at_any_place(tmp_path_factory: pytest.TempPathFactory, at: int) -> None:
    root, files = tmp_path_factory.mktemp("part"), files_of(1)
    fill(root, files)
    whole = b"".join(block for _, block in sorted(files.items()))
    with PartStream(root, manifest_of(1, files)) as stream:
        stream.seek(at)
        read = b""
        while len(read) < 5000 and (block := stream.read(5000 - len(read))):
            read += block
    assert read == whole[at : at + 5000]


def test_a_file_that_is_shorter_or_a_link_is_damage(tmp_path: Path) -> None:
    files = files_of(1)
    fill(tmp_path, files)
    manifest = manifest_of(1, files)
    os.truncate(tmp_path / "model.bin", 10)
    with PartStream(tmp_path, manifest) as stream, pytest.raises(DamagedPartError):
        stream.seek(len(files["deep/er/optimizer.bin"]))
        stream.read(1)
    (tmp_path / "model.bin").unlink()
    (tmp_path / "model.bin").symlink_to("/etc/hostname")
    with PartStream(tmp_path, manifest) as stream, pytest.raises(DamagedPartError):
        stream.seek(len(files["deep/er/optimizer.bin"]))
        stream.read(1)


def test_a_folder_that_became_a_link_is_not_entered(tmp_path: Path) -> None:
    files = files_of(1)
    fill(tmp_path / "part", files)
    (tmp_path / "part/deep").rename(tmp_path / "elsewhere")
    (tmp_path / "part/deep").symlink_to(tmp_path / "elsewhere")
    found = parts.damages(tmp_path / "part", manifest_of(1, files))
    assert found == (Damage("deep/er/optimizer.bin", Damaged.MISSING),)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    files = files_of(1)
    fill(tmp_path, files)
    manifest = manifest_of(1, files)
    assert parts.damages(tmp_path, manifest) == ()
    flip(tmp_path / "model.bin")
    found = parts.damages(tmp_path, manifest)
    assert found == (Damage("model.bin", Damaged.CONTENT),)
    assert "model.bin (content)" in parts.summary(found)


def test_more_bytes_than_the_manifest_says(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_RDONLY)
    out = Files(root, manifest_of(0, {"a": b"12"}))
    with pytest.raises(ValueError, match="more bytes"):
        out.write(b"123")
    os.close(root)


def test_a_stream_that_ends_too_early_is_missed(tmp_path: Path) -> None:
    root = os.open(tmp_path, os.O_RDONLY)
    out = Files(root, manifest_of(0, {"a": b"12", "b": b"3"}))
    out.write(b"1")
    assert {one.what for one in out.finish()} == {Damaged.MISSING}
    os.close(root)
