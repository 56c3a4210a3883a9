"""``submit --volume``, ``get volumes`` and ``volume remove``."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from controller.base.errors import ServiceError
from controller.schema.volumes import DataRemovalView, RemovedDataView
from tests.parts.api.fake_service import FakeService
from tests.unit.console.cli.conftest import Run


def test_submit_asks_for_volumes_by_name(run: Run, service: FakeService) -> None:
    ran = run(
        *("submit", "-n", "2", "--name", "new", "--volume", "imagenet:/data"),
        *("--volume", "scratch:/s:ro", "--volume", "models:/m:rw", "--", "true"),
    )
    assert ran.code == 0, ran.err
    asked = [asdict(v) for v in service.requests[-1].volumes]
    assert asked == [
        {"volume": "imagenet", "path": "/data", "read_only": None},
        {"volume": "scratch", "path": "/s", "read_only": True},
        {"volume": "models", "path": "/m", "read_only": False},
    ]


@pytest.mark.parametrize(
    "text", ["imagenet", "imagenet:", ":/data", "imagenet:/data:", "imagenet:/data:rx", "a:/b:ro:x"]
)
def test_what_is_no_volume(run: Run, text: str) -> None:
    ran = run("submit", "-n", "1", "--volume", text, "-o", "json")
    assert (ran.code, ran.error["hint"]) == (2, "for example imagenet:/data")


def test_get_volumes_shows_what_jobs_left(run: Run) -> None:
    volumes, left = run("get", "volumes").out.split("\n\n")
    head, scratch, imagenet = volumes.splitlines()
    assert head.split() == ["SERVER", "NAME", "MODE", "PER", "USED", "FREE", "QUOTA", "PROBLEM"]
    assert scratch.split()[:4] == ["s0", "scratch", "rw", "job"]
    assert "not a mount point" in imagenet
    head, alpha, beta = left.splitlines()
    assert head.split()[-1] == "KEPT-FOR"
    assert alpha.split()[:5] == ["s0", "scratch", "alpha", "alpha-red", "1"]
    assert "beta-red" in beta
    wide = run("get", "volumes", "-o", "wide").out.splitlines()[0].split()
    assert wide[-3:] == ["PROJECTS", "FILESYSTEM", "READ"]
    page = run("get", "volumes", "-o", "json").document
    assert page["items"][0]["data"][0]["bytes"] == 2**30
    assert run("get", "volumes", "-o", "name").out.split() == [
        "volume/s0/scratch",
        "volume/s0/imagenet",
    ]
    one = run("get", "volume/s0/imagenet", "-o", "json").document
    assert one["projects"] == ["beta"]
    described = run("describe", "volume", "s0/scratch").out
    assert "alpha-red" in described


def test_remove_names_whose_data(run: Run, service: FakeService) -> None:
    ran = run("volume", "remove", "scratch", "--job", "alpha-red", "--dry-run")
    assert ran.code == 0, ran.err
    assert "would be removed" in ran.out
    ran = run(
        *("volume", "remove", "volume/scratch", "--job", "job/alpha-red", "--project", "alpha"),
        *("--server", "s0", "-o", "json"),
    )
    assert ran.document["directories"][0]["server"] == "s0"
    assert service.removed == [
        ("scratch", "alpha.alpha-red", None, True),
        ("scratch", "alpha.alpha-red", "s0", False),
    ]


def test_a_job_of_two_projects_is_told_apart(run: Run, service: FakeService) -> None:
    (scratch, *others) = service.volumes
    both = [data.model_copy(update={"job": "red"}) for data in scratch.data]
    service.volumes = [scratch.model_copy(update={"data": both}), *others]
    ran = run("volume", "remove", "scratch", "--job", "red", "-o", "json")
    assert (ran.code, ran.error["hint"]) == (2, "name the --project as well")
    ran = run("volume", "remove", "scratch", "--job", "blue", "-o", "json")
    assert (ran.code, ran.error["object"]) == (5, "volume/scratch")
    assert service.removed == []


def test_remove_needs_an_owner(run: Run, service: FakeService) -> None:
    ran = run("volume", "remove", "scratch", "-o", "json")
    assert (ran.code, ran.error["hint"]) == (2, "give --project P, --job J, or both")
    assert service.removed == []


def test_a_refused_removal_names_the_volume(run: Run, service: FakeService) -> None:
    service.refuse["remove_data"] = ServiceError(
        "conflict", "job red uses it", object="volume/scratch", hint="wait for its end"
    )
    ran = run("volume", "remove", "scratch", "--job", "alpha-red", "-o", "json")
    assert ran.code == 6
    assert ran.error["object"] == "volume/scratch"


def test_a_removal_that_a_server_did_not_confirm_fails(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def remove_data(*_: object, **__: object) -> DataRemovalView:
        done = [RemovedDataView(server="s0"), RemovedDataView(server="s1", problem="no answer")]
        return DataRemovalView(volume="scratch", owner="alpha", dry_run=False, directories=done)

    monkeypatch.setattr(service.commands, "remove_data", remove_data)
    ran = run("volume", "remove", "scratch", "--project", "alpha")
    assert ran.code == 1
    assert "not removed from s1: no answer" in ran.err
    assert "no answer" in ran.out
