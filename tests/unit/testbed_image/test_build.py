from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from testbed.image import base
from testbed.image.build import image_tag, lacking, locked, trainer_sources
from testbed.image.errors import ImageError

ROOT = Path(__file__).parents[3]


def test_the_image_has_the_trainer_with_all_its_imports(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "sub").mkdir(parents=True)
    for name, text in {
        "pkg/__init__.py": "",
        "pkg/main.py": "import os\nfrom pkg import helper\nimport pkg.sub.deep as d\n",
        "pkg/helper.py": "def f():\n    from pkg.lazy import x\n",
        "pkg/lazy.py": "import pkg.main\n",
        "pkg/sub/__init__.py": "",
        "pkg/sub/deep.py": "import numpy\n",
        "pkg/unused.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    found = [str(path) for path in trainer_sources(tmp_path, Path("pkg/main.py"))]
    assert found == [
        *("pkg/__init__.py", "pkg/helper.py", "pkg/lazy.py", "pkg/main.py"),
        *("pkg/sub/__init__.py", "pkg/sub/deep.py"),
    ]


def test_the_real_trainer_needs_nothing_of_the_control_plane() -> None:
    found = trainer_sources(ROOT, Path("testbed/trainer.py"))
    nets = {
        Path("measure/__init__.py"),
        Path("measure/scaling/__init__.py"),
        Path("measure/scaling/nets.py"),
    }
    assert {path.parts[0] for path in set(found) - nets} == {"testbed"}


def test_the_tag_names_the_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("b")
    tag = image_tag([one, two])
    assert re.fullmatch(r"ll-trainer:[0-9a-f]{12}", tag)
    assert image_tag([one, two]) == tag
    assert image_tag([two, one]) != tag
    two.write_text("c")
    assert image_tag([one, two]) != tag


def test_every_requirement_is_pinned_by_hash() -> None:
    text = (ROOT / "testbed/image/requirements.txt").read_text()
    pins = re.findall(
        r"^([a-z0-9-]+)==\S+ \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M
    )
    names = {name for name, _ in pins}
    assert {"tensorflow-cpu", "numpy", "scikit-learn"} <= names
    assert len(names) == len(re.findall(r"^[a-z0-9-]+==", text, re.M))
    assert "://" not in text


def test_only_the_distributions_own_sources_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = (
        "Debian|deb http://mirror/debian/ bookworm main\n"
        "Debian|deb http://mirror/debian/ bookworm main\n"
        "Vendor|deb http://elsewhere/ stable main\n"
        "$(ORIGIN)|deb http://never-updated/ x y\n"
    )
    apt = tmp_path / "apt-get"
    apt.write_text(f"#!/bin/sh\ncat <<'E'\n{listing}E\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(base.platform, "freedesktop_os_release", lambda: {"ID": "debian"})
    assert base.distribution_sources() == ("deb http://mirror/debian/ bookworm main",)
    monkeypatch.setattr(base.platform, "freedesktop_os_release", lambda: {"ID": "ubuntu"})
    with pytest.raises(ImageError) as failed:
        base.distribution_sources()
    assert failed.value.hint == "apt-get update"


def test_a_build_waits_for_another_one_and_says_for_whom(tmp_path: Path) -> None:
    images: list[str] = []
    listed = SimpleNamespace(list=lambda name: [image for image in images if image == name])
    said = Event()

    def build() -> bool:
        with lacking(SimpleNamespace(images=listed), "ll-x:1", tmp_path) as missing:  # type: ignore[arg-type]
            return missing

    def hear(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        heard.append(line)
        said.set()
        raise structlog.DropEvent

    heard: list[MutableMapping[str, Any]] = []
    before = structlog.get_config()
    structlog.configure(processors=[hear])
    try:
        with ThreadPoolExecutor(max_workers=1) as beside:
            with locked(tmp_path / "image.lock"):
                waiting = beside.submit(build)
                assert said.wait(60)
                images.append("ll-x:1")
                assert not build(), "who lacks nothing does not wait"
            assert not waiting.result(60), "the other one has built it"
    finally:
        structlog.configure(**before)
    assert f"process {os.getpid()}, since " in heard[0]["by"]
