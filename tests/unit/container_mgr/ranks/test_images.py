from __future__ import annotations

import pytest

from container_mgr.daemon import AgentConfig, AgentStartError, check
from container_mgr.ranks import images
from container_mgr.values import AgentError, ServedEndpoint
from tests.unit.container_mgr.specs import TLS

ID = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("ubuntu", "docker.io/library/ubuntu"),
        ("ubuntu:24.04", "docker.io/library/ubuntu"),
        ("docker.io/ubuntu", "docker.io/library/ubuntu"),
        ("index.docker.io/someone/x:1", "docker.io/someone/x"),
        ("someone/x", "docker.io/someone/x"),
        ("localhost/x:1", "localhost/x"),
        ("REGISTRY/x:1", "registry/x"),
        ("registry.example:5000/a/b:1@" + ID, "registry.example:5000/a/b"),
        ("registry.example/a@" + ID, "registry.example/a"),
        ("10.0.0.1:22/x", "10.0.0.1:22/x"),
    ],
)
def test_a_name_is_read_as_an_engine_reads_it(image: str, repository: str) -> None:
    assert images.repository(image) == repository


@pytest.mark.parametrize(
    ("image", "registries", "allowed"),
    [
        ("registry.example/x", ["registry.example"], True),
        ("registry.example.evil/x", ["registry.example"], False),
        ("registry.example:5000/x", ["registry.example"], False),
        ("registry.example/team/x", ["registry.example/team"], True),
        ("registry.example/teams/x", ["registry.example/team"], False),
        ("ubuntu", ["docker.io"], True),
        ("ubuntu", ["docker.io/library"], True),
        ("someone/x", ["docker.io/library"], False),
        ("x@" + ID, [], False),
        ("a" * 64, ["docker.io"], False),
    ],
)
def test_a_registry_covers_what_is_below_it(
    image: str, registries: list[str], allowed: bool
) -> None:
    if allowed:
        images.check_pull(image, "red", registries)
        return
    with pytest.raises(AgentError) as refused:
        images.check_pull(image, "red", registries)
    assert refused.value.code == "invalid"
    assert refused.value.hint


@pytest.mark.parametrize("text", ["", "https://registry.example", "Registry", "a b", "x/", "/x"])
def test_an_invalid_registry_is_reported_at_the_start(text: str) -> None:
    with pytest.raises(AgentStartError) as refused:
        check(AgentConfig("srv0", TLS, endpoints=[ServedEndpoint("gpu0", "e0")], registries=[text]))
    assert refused.value.obj == "--registry"
