"""Images of a registry with a password: pinned, pulled once, refused by name, cleaned up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from agentlink.values import RegistryLogin
from agentlink.values import RegistryLogin as AgentLogin
from container_mgr.docker.engine import DockerHost
from container_mgr.images.kept import KeepPolicy, KeptImages
from container_mgr.images.pulls import Pulls
from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, Pull
from controller.images.keeper import ImageKeeper
from controller.state.state import State
from sitefile import PasswordRef, load_site
from sitefile import Registry as Listed
from tests.integration.agent_parts import IMAGE, PrivateEngine, Rig, agent_rig, pulled, two_nics
from tests.integration.registry_parts import PASSWORD, USER, Registry, registry
from tests.integration.tiny_image import tiny_image_tar
from tests.parts.agent.ranks import SLEEP, output, when_ended
from tests.parts.sites import PAPER

pytestmark = pytest.mark.root

LOGIN = RegistryLogin(USER, PASSWORD)
WRONG = RegistryLogin(USER, "ll-wr0ng-one")


@pytest.fixture(scope="module")
def hub(private: PrivateEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with registry(tmp_path_factory.mktemp("hub") / "registry") as one:
        yield one


@pytest_asyncio.fixture
async def rig(private: PrivateEngine, hub: Registry, tmp_path: Path) -> AsyncIterator[Rig]:
    with two_nics():
        async with agent_rig(private, tmp_path, registries=[hub.address]) as one:
            yield one


def push(private: PrivateEngine, hub: Registry, name: str, word: str) -> str:
    """Push an image whose variable WORD is ``word`` under ``name``:1; keep no copy."""
    repository = f"{hub.address}/{name}"
    with private.api() as api:
        api.import_image_from_data(
            tiny_image_tar(), repository=repository, tag="1", changes=[f"ENV WORD={word}"]
        )
        login = {"username": USER, "password": PASSWORD}
        steps: Any = api.push(repository, "1", stream=True, decode=True, auth_config=login)
        assert [step for step in steps if "error" in step] == []
        api.remove_image(f"{repository}:1")
    return f"{repository}:1"


def keeper(rig: Rig, hub: Registry, password: Path) -> ImageKeeper:
    """Return the controller's keeper of images at a site that lists the registry."""
    listed = Listed(hub.address, frozenset({"vision"}), USER, PasswordRef(file=str(password)))
    site = replace(load_site(PAPER), registries=(listed,))
    return ImageKeeper(cast(State, SimpleNamespace(site=site)), rig.engine, IMAGE)


def secret(directory: Path, text: str) -> Path:
    path = directory / "password"
    path.write_text(text, encoding="ascii")
    path.chmod(0o600)
    return path


async def test_a_wrong_password_is_a_clear_error_without_the_password(
    private: PrivateEngine,
    hub: Registry,
    rig: Rig,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    image = await asyncio.to_thread(push, private, hub, "wrong", "one")
    images = keeper(rig, hub, secret(tmp_path, WRONG.password))
    with pytest.raises(ServiceError) as refused:
        await images.pin(image, "vision", Pull.MISSING, ["srv0"])
    with pytest.raises(EngineError) as unpulled:
        await pulled(rig, image, WRONG)
    for text in (refused.value.message, str(unpulled.value)):
        assert f"registry {hub.address} refuses image" in text
    captured = capfd.readouterr()
    everything = captured.out + captured.err + refused.value.message + str(unpulled.value)
    assert WRONG.password not in everything


async def test_ranks_run_what_the_tag_meant_at_submit(
    private: PrivateEngine, hub: Registry, rig: Rig, tmp_path: Path
) -> None:
    image = await asyncio.to_thread(push, private, hub, "moved", "one")
    images = keeper(rig, hub, secret(tmp_path, PASSWORD))
    pin = await images.pin(image, "vision", Pull.MISSING, ["srv0"])
    assert pin.startswith(f"{hub.address}/moved@sha256:")
    await asyncio.to_thread(push, private, hub, "moved", "two")
    assert await images.pin(image, "vision", Pull.ALWAYS, ["srv0"]) != pin
    done = await images.fetch(pin, "srv0", LOGIN, lambda server, step: None)
    assert done.image is not None
    spec = replace(rig.spec(0, "sh", "-c", "echo $WORD"), image=pin)
    await rig.engine.start([spec, rig.spec(1, *SLEEP)], 60)
    await when_ended(rig, 0)
    assert await output(rig, 0) == ["one"]
    held = [one for one in await rig.engine.images(60) if pin in one.names]
    assert [(one.jobs, one.used_at is not None) for one in held] == [(("red",), True)]
    with private.api() as api:
        shown = str(api.inspect_container("ll-red-0-1"))
    assert PASSWORD not in shown
    kept = [path.read_bytes() for path in files_below(rig.config.directory)]
    assert not any(PASSWORD.encode() in text for text in kept)


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


async def test_two_ranks_on_one_server_are_one_pull(
    private: PrivateEngine, hub: Registry, rig: Rig
) -> None:
    image = await asyncio.to_thread(push, private, hub, "once", "one")
    before = hub.manifests_read("once")
    both = await asyncio.gather(pulled(rig, image, LOGIN), pulled(rig, image, LOGIN))
    assert all(found is not None and found.present for found in both)
    assert hub.manifests_read("once") - before == 1
    with contextlib.closing(DockerHost(private.info.host_url)) as docker:
        await docker.remove_image(image)


async def test_a_missing_image_is_refused_at_submit(
    hub: Registry, rig: Rig, tmp_path: Path
) -> None:
    image = f"{hub.address}/none:1"
    images = keeper(rig, hub, secret(tmp_path, PASSWORD))
    with pytest.raises(ServiceError) as absent:
        await images.pin(image, "vision", Pull.NEVER, ["srv0"])
    assert (absent.value.code, absent.value.message) == (
        "invalid",
        f"image {image} is not on srv0",
    )
    with pytest.raises(ServiceError) as unknown:
        await images.pin(image, "vision", Pull.MISSING, ["srv0"])
    assert unknown.value.code in ("not_found", "failed")
    assert image in unknown.value.message
    with pytest.raises(ServiceError) as foreign:
        await images.pin(image, "speech", Pull.MISSING, ["srv0"])
    assert foreign.value.code == "forbidden"


async def test_another_project_cannot_run_a_private_image_by_its_id(
    private: PrivateEngine, hub: Registry, rig: Rig, tmp_path: Path
) -> None:
    image = await asyncio.to_thread(push, private, hub, "private", "one")
    images = keeper(rig, hub, secret(tmp_path, PASSWORD))
    found = await pulled(rig, image, LOGIN)
    assert found is not None
    digest = found.id.removeprefix("sha256:")
    for name in (found.id, digest, digest[:12]):
        with pytest.raises(ServiceError) as refused:
            await images.pin(name, "speech", Pull.NEVER, ["srv0"])
        assert refused.value.code == "forbidden"
        assert await images.pin(name, "vision", Pull.NEVER, ["srv0"])


async def test_only_pulled_images_are_cleaned_up(
    private: PrivateEngine, hub: Registry, tmp_path: Path
) -> None:
    image = await asyncio.to_thread(push, private, hub, "cleaned", "one")
    now = 0.0
    with contextlib.closing(DockerHost(private.info.host_url)) as docker:
        kept = KeptImages(docker, tmp_path / "images.json", KeepPolicy(space_bytes=0), lambda: now)
        pulls = Pulls(docker, kept)
        await pulls.join(image, AgentLogin(USER, PASSWORD)).task
        await kept.check()
        assert await docker.image(image) is not None  # young
        now = 7200.0
        await kept.check()
        assert await docker.image(image) is None
        assert await docker.image(IMAGE) is not None
