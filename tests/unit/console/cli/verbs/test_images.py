"""``image prepare``."""

from __future__ import annotations

import json

from tests.parts.api.fake_service import FakeService
from tests.unit.console.cli.conftest import Run


def test_prepare_shows_progress_on_stderr_and_a_table(run: Run) -> None:
    ran = run("image", "prepare", "registry.example/net:1")
    assert ran.code == 0
    assert "s0: pulling 1 GiB of 4 GiB" in ran.err
    assert "s0: done" in ran.err
    assert ran.out.splitlines()[0].split() == ["SERVER", "STATE", "SIZE", "IMAGE"]
    assert "registry.example/net:1" in ran.out


def test_prepare_on_some_servers_as_json(run: Run, service: FakeService) -> None:
    ran = run("image", "prepare", "net:1", "--servers", "s1", "-o", "json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["state"] == "done"
    assert [server["server"] for server in found["servers"]] == ["s1"]


def test_a_server_that_fails_is_named(run: Run, service: FakeService) -> None:
    service.unprepared["s1"] = "registry registry.example refuses image net:1"
    ran = run("image", "prepare", "net:1")
    assert ran.code == 1
    assert "image net:1 is not on s1: registry registry.example refuses" in ran.err


def test_servers_and_all_exclude_each_other(run: Run) -> None:
    assert run("image", "prepare", "net:1", "--servers", "s0", "--all").code == 2
    assert run("image", "prepare", "net:1", "--servers", "").code == 2


def test_prepare_gives_up_waiting_but_not_the_pull(run: Run) -> None:
    ran = run("image", "prepare", "net:1", "--timeout", "0")
    assert ran.code == 124
    assert "the same command joins them" in ran.err


def test_get_images_lists_them_by_server(run: Run) -> None:
    ran = run("get", "images")
    assert ran.code == 0
    head, first, _ = ran.out.splitlines()
    assert head.split() == ["SERVER", "NAME", "ID", "SIZE", "JOBS", "USED"]
    assert first.split()[:3] == ["s0", "trainer:1", "a" * 12]
    items = json.loads(run("get", "images", "-o", "json").out)["items"]
    assert [item["server"] for item in items] == ["s0", "s1"]
    one = run("get", "image", f"s1/{'a' * 12}", "-o", "json")
    assert json.loads(one.out)["server"] == "s1"


def test_describe_shows_what_the_ranks_run(run: Run, service: FakeService) -> None:
    digest = f"net@sha256:{'a' * 64}"
    service.put("red", "running", ["gpu0"], image="net:1", image_digest=digest)
    ran = run("describe", "job", "red")
    assert "net:1" in ran.out
    assert digest in ran.out
