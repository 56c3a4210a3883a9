"""The top-level folders are the import packages: no other distribution's may shadow one."""

from __future__ import annotations

import configparser
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "base",
    "scheduler",
    "measure",
    "checkpoints",
    "agentlink",
    "readings",
    "probe",
    "recorder",
    "sitefile",
    "ocs_driver",
    "container_mgr",
    "pki",
    "protos",
    "controller",
    "console",
    "testbed",
]


@pytest.mark.parametrize("name", PACKAGES)
def test_package_is_ours(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).parent == ROOT / name


def test_every_package_is_under_the_layering_rules() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["importlinter"]["root_packages"].split() == PACKAGES
    layers = config["importlinter:contract:parts"]["layers"].replace("|", " ").split()
    assert sorted(layers) == sorted(PACKAGES)


BY_IDEA = (
    "controller",
    "scheduler",
    "container_mgr",
    "console/cli",
    "measure",
    "checkpoints",
    "agentlink",
    "probe",
)


@pytest.mark.parametrize("top", BY_IDEA)
def test_no_folder_is_a_drawer(top: str) -> None:
    """About a dozen modules at most; ``setup.cfg`` holds the floors."""
    folders = [ROOT / top, *(path for path in (ROOT / top).rglob("*") if path.is_dir())]
    sizes = {str(f.relative_to(ROOT)): len(list(f.glob("[!_]*.py"))) for f in folders}
    assert {name: size for name, size in sizes.items() if size > 13} == {}


def test_packages_of_the_controller_import_nothing_by_themselves() -> None:
    """What listens first loads nothing heavy (ADR 0015), and no package hands on names."""
    filled = [p for p in (ROOT / "controller").rglob("__init__.py") if p.read_text().strip()]
    assert filled == []
