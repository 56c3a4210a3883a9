"""A lane's engine has the images of the machine's, and nothing else of it."""

from __future__ import annotations

from pathlib import Path

from testbed.lanes.clone import copy_engine


def data_root(at: Path) -> Path:
    """A data root of Docker with one image of one layer, a container and a build cache."""
    images = at / "image" / "overlay2"
    for folder in ("layerdb/sha256/aa", "layerdb/mounts/c1", "layerdb/tmp", "imagedb/content"):
        (images / folder).mkdir(parents=True)
    (images / "repositories.json").write_text("{}")
    (images / "layerdb/sha256/aa/cache-id").write_text("layer1")
    for layer in ("layer1", "of-container"):
        (at / "overlay2" / layer / "diff" / "bin").mkdir(parents=True)
        (at / "overlay2" / layer / "work").mkdir()
        (at / "overlay2" / layer / "link").write_text(f"L-{layer}")
    (at / "overlay2" / "layer1" / "diff" / "bin" / "sh").write_text("shell")
    (at / "containers" / "c1").mkdir(parents=True)
    return at


def test_layers_are_links_to_the_view_and_containers_are_left(tmp_path: Path) -> None:
    source = data_root(tmp_path / "machine")
    target = tmp_path / "lane"
    copy_engine(source, target, view=source / "overlay2")
    assert (target / "image/overlay2/repositories.json").read_text() == "{}"
    assert (target / "overlay2/l/L-layer1/bin/sh").read_text() == "shell"
    assert (target / "overlay2/layer1/diff").is_symlink()
    assert (target / "overlay2/layer1/work").is_dir()
    assert {path.name for path in (target / "overlay2").iterdir()} == {"layer1", "l"}
    assert not (target / "image/overlay2/layerdb/mounts").exists()
    assert not (target / "containers").exists()


def test_without_images_the_data_root_is_empty(tmp_path: Path) -> None:
    copy_engine(tmp_path / "nothing", tmp_path / "lane", tmp_path)
    assert list((tmp_path / "lane").iterdir()) == []
