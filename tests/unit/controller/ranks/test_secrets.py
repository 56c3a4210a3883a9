"""The site's secret directory: who can use which file, and where a value goes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from container_mgr.ranks.policy import MAX_ENV_VALUE_BYTES
from controller.base.errors import ServiceError
from controller.ranks.secrets import SecretFolder
from controller.schema.jobs import read_job
from sitefile import load_site
from tests.parts.controller.jobs import submit, until
from tests.parts.controller.rack import Rack, crash
from tests.parts.sites import PAPER

CANARY = "canary-9f31'$(id)\"`\\ü"
ENV = {"APP_TOKEN": {"secret": "wandb"}}


def keep(folder: Path, project: str, name: str, value: bytes, mode: int = 0o600) -> Path:
    (folder / project).mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / project / name
    file.write_bytes(value)
    file.chmod(mode)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "secrets"
    folder.mkdir(mode=0o700)
    keep(folder, "default", "wandb", CANARY.encode() + b"\n")
    keep(folder, "speech", "other", b"theirs")
    return folder


@pytest_asyncio.fixture
async def rack(tmp_path: Path, folder: Path) -> AsyncIterator[Rack]:
    rack = Rack(tmp_path, replace(load_site(PAPER), secrets=folder))
    await rack.up()
    yield rack
    await rack.down()


async def refused(folder: Path, project: str, name: str) -> ServiceError:
    with pytest.raises(ServiceError) as error:
        await SecretFolder(folder).values(project, {"APP_TOKEN": name})
    assert error.value.object.startswith(("secret/", "project/"))
    assert error.value.hint
    return error.value


async def test_a_value_is_the_files_text_without_its_last_line_end(folder: Path) -> None:
    keep(folder, "default", "pem", b"one\ntwo\n\n")
    values = await SecretFolder(folder).values("default", {"A": "wandb", "B": "pem"})
    assert values == {"A": CANARY, "B": "one\ntwo\n"}


async def test_a_project_has_only_its_own_secrets(folder: Path) -> None:
    error = await refused(folder, "default", "other")
    assert error.message == "project default has no secret other"
    assert "default/other" in error.hint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
async def test_a_file_that_others_can_open_is_refused(folder: Path, mode: int) -> None:
    keep(folder, "default", "open", b"x", mode)
    assert "open to other users" in (await refused(folder, "default", "open")).message


@pytest.mark.parametrize("which", ["", "default"])
async def test_a_folder_that_others_can_change_is_refused(folder: Path, which: str) -> None:
    (folder / which).chmod(0o777)
    assert "open to other users" in (await refused(folder, "default", "wandb")).message


async def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (folder / "default" / "link").symlink_to(folder / "speech" / "other")
    (folder / "linked").symlink_to(folder / "speech")
    (tmp_path / "way").symlink_to(folder)
    assert "symbolic link" in (await refused(folder, "default", "link")).message
    assert "symbolic link" in (await refused(folder, "linked", "other")).message
    assert "symbolic link" in (await refused(tmp_path / "way", "default", "wandb")).message


async def test_what_is_no_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "default" / "pipe", 0o600)
    (folder / "default" / "folder").mkdir(mode=0o700)
    assert "is not a file" in (await refused(folder, "default", "pipe")).message
    assert "is not a file" in (await refused(folder, "default", "folder")).message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"a\0b", "is not a text"),
        (b"\xff", "is not a text"),
        (b"x" * (MAX_ENV_VALUE_BYTES + 1), "is too long"),
    ],
)
async def test_a_value_that_is_no_variable_is_refused(
    folder: Path, value: bytes, message: str
) -> None:
    keep(folder, "default", "bad", value)
    assert message in (await refused(folder, "default", "bad")).message


async def test_the_longest_value_is_accepted_and_the_sum_is_bounded(folder: Path) -> None:
    keep(folder, "default", "long", b"x" * MAX_ENV_VALUE_BYTES + b"\n")
    secrets = SecretFolder(folder)
    assert len((await secrets.values("default", {"A": "long", "B": "long"}))["A"]) == 2**15
    with pytest.raises(ServiceError, match="together"):
        await secrets.values("default", dict.fromkeys("ABC", "long"))


async def test_names_are_listed_without_values(rack: Rack) -> None:
    found = await rack.desks.jobs.secrets()
    assert [(view.project, view.name) for view in found] == [
        ("default", "wandb"),
        ("speech", "other"),
    ]
    assert await SecretFolder(None).names() == []


@pytest.mark.parametrize("name", ["../speech/other", "..", ".hidden", "a/b", "", "A", "x" * 64])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(ValueError, match="secret"):
        read_job({"count": 1, "env": {"APP_TOKEN": {"secret": name}}})


async def test_a_site_without_secrets_says_so(folder: Path) -> None:
    with pytest.raises(ServiceError, match="has no secrets"):
        await SecretFolder(None).check("default", ["wandb"])


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"APP_TOKEN": {"secret": "absent"}}, "has no secret absent"),
        ({"RANK": {"secret": "wandb"}}, "lightloom sets it"),
        ({"LIGHTLOOM_X": {"secret": "wandb"}}, "lightloom's own"),
        ({"MASTER_PORT": {"secret": "wandb"}}, "cannot be a secret"),
        ({"LD_PRELOAD": {"secret": "wandb"}}, "not allowed"),
    ],
)
async def test_a_submit_that_cannot_work_is_refused(
    rack: Rack, env: dict[str, object], message: str
) -> None:
    with pytest.raises(ServiceError, match=message):
        await submit(rack, "red", 1, env=env)


async def test_every_start_reads_the_value_again(rack: Rack, folder: Path) -> None:
    await submit(rack, "red", 2, env=ENV, restart="on-failure")
    await rack.state("red", "running")
    assert {s.secrets["APP_TOKEN"] for s in rack.engine.specs["red"]} == {CANARY}
    assert all("APP_TOKEN" not in s.env for s in rack.engine.specs["red"])
    keep(folder, "default", "wandb", b"rotated")
    rack.engine.exit("red", 0, 1)
    await until(rack, "red", state="running", restarts=1)
    assert {s.secrets["APP_TOKEN"] for s in rack.engine.specs["red"]} == {"rotated"}


async def test_a_secret_that_is_gone_at_the_start_ends_the_job(rack: Rack, folder: Path) -> None:
    await submit(rack, "big", 6)
    await rack.state("big", "running")
    await submit(rack, "red", 1, env=ENV)
    (folder / "default" / "wandb").unlink()
    await rack.desks.jobs.cancel("big")
    job = await until(rack, "red", state="failed")
    assert job.reason == "its containers did not start: project default has no secret wandb"
    assert not rack.engine.holds("gpu0")


async def test_a_value_is_nowhere_but_in_the_call_that_starts_the_ranks(
    rack: Rack, tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with structlog.testing.capture_logs() as logged:
        await submit(rack, "red", 2, env=ENV)
        await rack.state("red", "running")
        spec = rack.engine.specs["red"][0]
        assert spec.secrets == {"APP_TOKEN": CANARY}
        await crash(rack)
        await rack.up()
        rack.engine.exit("red", 0, 1)
        await rack.state("red", "failed")
    desks = rack.desks
    job = desks.jobs.job("red")
    assert job.secrets == {"APP_TOKEN": "wandb"}
    shown = [job, await desks.jobs.secrets(), desks.fabric.events(0, 500)]
    mark = "canary-9f31"
    assert mark not in repr(shown) + repr(logged) + repr(spec) + "".join(capfd.readouterr())
    written = files_with(tmp_path, folder, b"")
    assert "controller.sqlite" in {path.name for path in written}
    assert files_with(tmp_path, folder, mark.encode()) == []


def files_with(place: Path, but: Path, text: bytes) -> list[Path]:
    """Return the files below ``place``, except those below ``but``, that hold a text."""
    files = [path for path in place.rglob("*") if path.is_file() and but not in path.parents]
    return [path for path in files if text in path.read_bytes()]
