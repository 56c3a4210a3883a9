"""``image prepare``."""

from __future__ import annotations

import json

from tests.parts.api.desks import show
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run


def test_prepare_shows_progress_on_stderr_and_a_table(run: Run) -> None:
    ran = run("image", "prepare", "registry.example/net:1")
    assert ran.code == 0
    assert "srv0: done" in ran.err
    assert ran.out.splitlines()[0].split() == ["SERVER", "STATE", "SIZE", "IMAGE"]
    assert f"sha256:{'a' * 64}" in ran.out


def test_prepare_on_some_servers_as_json(run: Run, rack: Rack) -> None:
    ran = run("image", "prepare", "net:1", "--servers", "srv1", "-o", "json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert found["state"] == "done"
    assert [server["server"] for server in found["servers"]] == ["srv1"]


def test_a_server_that_fails_is_named(run: Run, rack: Rack) -> None:
    rack.engine.lost.add("srv1")
    ran = run("image", "prepare", "net:1")
    assert ran.code == 1
    assert "image net:1 is not on srv1: " in ran.err


def test_servers_and_all_exclude_each_other(run: Run) -> None:
    assert run("image", "prepare", "net:1", "--servers", "srv0", "--all").code == 2
    assert run("image", "prepare", "net:1", "--servers", "").code == 2


def test_prepare_gives_up_waiting_but_not_the_pull(run: Run) -> None:
    ran = run("image", "prepare", "net:1", "--timeout", "0")
    assert ran.code == 124
    assert "the same command joins them" in ran.err


def test_get_images_lists_them_by_server(run: Run) -> None:
    ran = run("get", "images")
    assert ran.code == 0
    head, first, *_ = ran.out.splitlines()
    assert head.split() == ["SERVER", "NAME", "ID", "SIZE", "JOBS", "USED"]
    assert first.split()[:3] == ["srv0", "image:1", "a" * 12]
    items = json.loads(run("get", "images", "-o", "json").out)["items"]
    assert [item["server"] for item in items] == ["srv0", "srv1", "srv2", "srv3"]
    one = run("get", "image", f"srv1/{'a' * 12}", "-o", "json")
    assert json.loads(one.out)["server"] == "srv1"


def test_describe_shows_what_the_ranks_run(run: Run, rack: Rack) -> None:
    digest = f"net@sha256:{'a' * 64}"
    show(rack.desks.jobs, "red", image="net:1", image_digest=digest)
    ran = run("describe", "job", "red")
    assert "net:1" in ran.out
    assert digest in ran.out
