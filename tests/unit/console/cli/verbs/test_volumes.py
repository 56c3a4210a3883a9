"""``submit --volume``, ``get volumes`` and ``volume remove``."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from controller.base.errors import ServiceError
from controller.schema.volumes import (
    DataRemovalView,
    RemovedDataView,
    VolumeDataView,
    VolumeView,
)
from tests.parts.api.desks import answer, kept
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run

AT = 1_700_000_000.0
VOLUMES = [
    VolumeView(
        name="scratch",
        server="s0",
        mode="rw",
        per="job",
        projects=[],
        filesystem="xfs",
        total_bytes=2**40,
        free_bytes=2**39,
        quota="kernel",
        read_at=AT,
        data=[
            VolumeDataView(
                owner=f"{project}.{project}-red",
                project=project,
                job=f"{project}-red",
                uid=2001,
                bytes=2**30,
                files=12,
                quota_bytes=2**38,
                created_at=AT,
                used_at=AT + 60,
                kept_until=AT + 10**10,
            )
            for project in ("alpha", "beta")
        ],
    ),
    VolumeView(
        name="imagenet",
        server="s0",
        mode="ro",
        per="site",
        projects=["beta"],
        problem="/srv/imagenet is not a mount point",
    ),
]


def removal(done: list[RemovedDataView]) -> DataRemovalView:
    return DataRemovalView(volume="scratch", owner="alpha", dry_run=False, directories=done)


def test_submit_asks_for_volumes_by_name(run: Run, rack: Rack) -> None:
    asked_for = kept(rack.desks.jobs, "submit")
    ran = run(
        *("submit", "-n", "2", "--name", "new", "--volume", "images:/data"),
        *("--volume", "results:/s:ro", "--volume", "models:/m:rw", "--", "true"),
    )
    assert (ran.code, "models" in ran.err) == (2, True)  # the site has no volume models
    asked = [asdict(v) for v in asked_for[-1].args[0].volumes]
    assert asked == [
        {"volume": "images", "path": "/data", "read_only": None},
        {"volume": "results", "path": "/s", "read_only": True},
        {"volume": "models", "path": "/m", "read_only": False},
    ]


@pytest.mark.parametrize(
    "text", ["imagenet", "imagenet:", ":/data", "imagenet:/data:", "imagenet:/data:rx", "a:/b:ro:x"]
)
def test_what_is_no_volume(run: Run, text: str) -> None:
    ran = run("submit", "-n", "1", "--volume", text, "-o", "json")
    assert (ran.code, ran.error["hint"]) == (2, "for example imagenet:/data")


def test_get_volumes_shows_what_jobs_left(run: Run, rack: Rack) -> None:
    answer(rack.desks.volumes, volumes=VOLUMES)
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


def test_remove_names_whose_data(run: Run, rack: Rack) -> None:
    done = [RemovedDataView(server="s0", bytes=2**30, files=12)]
    answer(rack.desks.volumes, volumes=VOLUMES)
    answer(rack.desks.data, remove=removal(done))
    asked = kept(rack.desks.data, "remove")
    ran = run("volume", "remove", "scratch", "--job", "alpha-red", "--dry-run")
    assert ran.code == 0, ran.err
    assert "would be removed" in ran.out
    ran = run(
        *("volume", "remove", "volume/scratch", "--job", "job/alpha-red", "--project", "alpha"),
        *("--server", "s0", "-o", "json"),
    )
    assert ran.document["directories"][0]["server"] == "s0"
    assert [(call.args, call.named) for call in asked] == [
        (("scratch", "alpha.alpha-red"), {"server": None, "dry_run": True}),
        (("scratch", "alpha.alpha-red"), {"server": "s0", "dry_run": False}),
    ]


def test_a_job_of_two_projects_is_told_apart(run: Run, rack: Rack) -> None:
    (scratch, *others) = VOLUMES
    both = [data.model_copy(update={"job": "red"}) for data in scratch.data]
    shown = [scratch.model_copy(update={"data": both}), *others]
    answer(rack.desks.volumes, volumes=shown)
    asked = kept(rack.desks.data, "remove")
    ran = run("volume", "remove", "scratch", "--job", "red", "-o", "json")
    assert (ran.code, ran.error["hint"]) == (2, "name the --project as well")
    ran = run("volume", "remove", "scratch", "--job", "blue", "-o", "json")
    assert (ran.code, ran.error["object"]) == (5, "volume/scratch")
    assert asked == []


def test_remove_needs_an_owner(run: Run, rack: Rack) -> None:
    asked = kept(rack.desks.data, "remove")
    ran = run("volume", "remove", "scratch", "-o", "json")
    assert (ran.code, ran.error["hint"]) == (2, "give --project P, --job J, or both")
    assert asked == []


def test_a_refused_removal_names_the_volume(run: Run, rack: Rack) -> None:
    refusal = ServiceError(
        "conflict", "job red uses it", object="volume/scratch", hint="wait for its end"
    )
    answer(rack.desks.data, remove=refusal)
    answer(rack.desks.volumes, volumes=VOLUMES)
    ran = run("volume", "remove", "scratch", "--job", "alpha-red", "-o", "json")
    assert ran.code == 6
    assert ran.error["object"] == "volume/scratch"


def test_a_removal_that_a_server_did_not_confirm_fails(run: Run, rack: Rack) -> None:
    done = [RemovedDataView(server="s0"), RemovedDataView(server="s1", problem="no answer")]
    answer(rack.desks.data, remove=removal(done))
    ran = run("volume", "remove", "scratch", "--project", "alpha")
    assert ran.code == 1
    assert "not removed from s1: no answer" in ran.err
    assert "no answer" in ran.out
