from __future__ import annotations

from pathlib import Path

import pytest

from container_mgr.volumes.offers import MAX_FILE_BYTES, Offer, check, parse, read_file


def test_options_of_a_volume() -> None:
    assert parse("imagenet=/srv/imagenet") == Offer("imagenet", Path("/srv/imagenet"))
    assert parse("imagenet=/srv/imagenet:ro,mount").mount
    assert parse("scratch=/srv/s:rw") == Offer("scratch", Path("/srv/s"), writable=True)
    assert parse("scratch=/srv/s:mount,rw") == Offer(
        "scratch", Path("/srv/s"), writable=True, mount=True
    )


@pytest.mark.parametrize(
    "text",
    [
        *("imagenet", "=/srv/x", "../x=/srv/x", "a/b=/srv/x", "A=/srv/x", "x=relative"),
        *("x=/", "x=/srv/../etc", "x=/srv/", "x=//srv", "x=/srv/x:wr", "x=/srv/x:ro,rw"),
        *("x=/srv/x:ro,ro", "x=/srv/x:", "x=/etc/x", "x=/proc", "x=/var", "x=/var/lib/docker/x"),
    ],
)
def test_a_volume_that_cannot_be_offered(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


def test_a_file_of_volumes(tmp_path: Path) -> None:
    file = tmp_path / "volumes.yaml"
    file.write_text(
        "imagenet: {path: /srv/imagenet, mount: true}\nscratch: {path: /srv/s, mode: rw}\n",
        encoding="utf-8",
    )
    assert read_file(file) == (
        Offer("imagenet", Path("/srv/imagenet"), mount=True),
        Offer("scratch", Path("/srv/s"), writable=True),
    )


@pytest.mark.parametrize(
    "text",
    [
        *("[1]", "x: 1", "x: {}", "x: {path: 1}", "x: {path: /srv/x, mode: wr}", "{"),
        *("x: {path: /srv/x, mount: 1}", "x: {path: /srv/x, colour: red}", "../x: {path: /srv/x}"),
        "#" * (MAX_FILE_BYTES + 1),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "volumes.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"."):
        read_file(file)


@pytest.mark.parametrize(
    ("first", "second", "word"),
    [
        ("a=/srv/a", "a=/srv/b", "name a"),
        ("a=/srv/a", "b=/srv/a", "path /srv/a"),
        ("a=/srv/a:rw", "b=/srv/a/b", "b lies inside volume a"),
        ("b=/srv/a/b", "a=/srv/a:rw", "b lies inside volume a"),
    ],
)
def test_volumes_that_collide(first: str, second: str, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        check([parse(first), parse(second)])


def test_a_longer_name_is_not_a_path_inside() -> None:
    assert set(check([parse("a=/srv/a"), parse("b=/srv/ab"), parse("c=/srv/a-b")])) == {*"abc"}
