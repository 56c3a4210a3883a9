from __future__ import annotations

import pytest

from controller.base.errors import ServiceError
from controller.images.access import ImageAccess
from sitefile import Registry

ID = "sha256:" + "a" * 64
ACCESS = ImageAccess(
    [
        Registry("registry.example:5000", frozenset({"vision"})),
        Registry("docker.io", frozenset({"vision", "speech"})),
    ]
)


@pytest.mark.parametrize(
    ("image", "project", "allowed"),
    [
        ("registry.example:5000/net:1", "vision", True),
        ("registry.example:5000/net:1", "speech", False),
        ("REGISTRY.example:5000/net:1", "speech", False),
        (f"registry.example:5000/net@{ID}", "speech", False),
        ("registry.example/net:1", "speech", True),
        ("ubuntu", "speech", True),
        ("ubuntu", "default", False),
        ("index.docker.io/ubuntu", "default", False),
        (ID, "default", False),
    ],
)
def test_a_registrys_images_are_for_its_projects(image: str, project: str, allowed: bool) -> None:
    if allowed:
        ACCESS.check(image, project)
        return
    with pytest.raises(ServiceError) as refused:
        ACCESS.check(image, project)
    assert refused.value.code == "forbidden"
    assert project in refused.value.message


PRIVATE = (f"registry.example:5000/net@{ID}", "registry.example:5000/net:1")


@pytest.mark.parametrize("image", [ID, "a" * 64, "a" * 12, "other/name", f"other/name@{ID}"])
def test_an_id_does_not_lead_to_what_another_project_pulled(image: str) -> None:
    access = ImageAccess([Registry("registry.example:5000", frozenset({"vision"}))])
    access.check_present(image, PRIVATE, "vision")
    with pytest.raises(ServiceError) as refused:
        access.check_present(image, PRIVATE, "speech")
    assert refused.value.code == "forbidden"


def test_a_public_name_of_the_same_image_is_for_all() -> None:
    access = ImageAccess([Registry("registry.example:5000", frozenset({"vision"}))])
    access.check_present("local/net:1", (*PRIVATE, "local/net:1"), "speech")
