"""The site file's registries: projects, and a login by reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sitefile import PasswordRef, Registry, SiteFileError, load_site
from tests.parts.sites import PAPER

HOST = "registry.example:5000"


def load(tmp_path: Path, registries: Any, **sections: Any) -> tuple[Registry, ...]:
    document = yaml.safe_load(PAPER.read_text(encoding="utf-8"))
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump({**document, "registries": registries, **sections}))
    return load_site(file).registries


def test_a_registry_with_a_login(tmp_path: Path) -> None:
    login = {"username": "puller", "password": {"file": "/etc/lightloom/registry"}}
    assert load(tmp_path, {HOST: {"projects": ["vision"], **login}}) == (
        Registry(
            HOST, frozenset({"vision"}), "puller", PasswordRef(file="/etc/lightloom/registry")
        ),
    )
    assert load(tmp_path, {}) == ()


@pytest.mark.parametrize(
    ("registries", "words"),
    [
        ({HOST: {"projects": []}}, "projects"),
        ({HOST: {"projects": ["vision"], "username": "x"}}, "username and password"),
        ({HOST: {"projects": ["vision"], "password": "plain"}}, "password"),
        ({"https://registry.example": {"projects": ["vision"]}}, "registries"),
        ({HOST: {"projects": ["speech"]}}, "unknown project 'speech'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, registries: Any, words: str) -> None:
    with pytest.raises(SiteFileError, match=words):
        load(tmp_path, registries, projects=[{"name": "vision"}])
