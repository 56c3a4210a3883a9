"""The top-level folders are the import packages: nobody else's package may shadow one."""

from __future__ import annotations

import configparser
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [
    "scheduler",
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
