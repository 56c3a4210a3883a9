"""``submit -f``, ``submit --dry-run`` and ``schema job``."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from controller.schema.submit.request import JobRequest
from tests.unit.console.cli.conftest import Run

TEXT = """
name: green
project: vision
resources: {gpus: 3, model: M40}
run: [python3, train.py]
env: {APP_SEED: 7, APP_DEPTH: 16}
policy: live
dark_tolerance_s: 2
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(TEXT)
    return str(path)


def test_a_file_says_it_all(run: Run, requests: list[JobRequest], file: str) -> None:
    assert run("submit", "-f", file).code == 0
    (request,) = requests
    assert (request.name, request.project, request.count) == ("green", "vision", 3)
    assert (request.model, request.policy, request.dark_tolerance_s) == ("M40", "live", 2.0)
    assert request.command == ["python3", "train.py"]
    assert request.env == {"APP_SEED": "7", "APP_DEPTH": "16"}


def test_options_go_over_the_file(run: Run, requests: list[JobRequest], file: str) -> None:
    ran = run(
        *("submit", "-f", file, "-n", "2", "--name", "lime", "--policy", "pause"),
        *("--env", "APP_SEED=8", "--", "sleep", "1"),
    )
    assert ran.code == 0
    (request,) = requests
    assert (request.name, request.count, request.policy) == ("lime", 2, "pause")
    assert request.project == "vision"
    assert request.env == {"APP_SEED": "8", "APP_DEPTH": "16"}
    assert request.command == ["sleep", "1"]


def test_a_dry_run_prints_the_request_and_sends_nothing(
    run: Run, requests: list[JobRequest], file: str
) -> None:
    ran = run("submit", "-f", file, "-n", "2", "--dry-run", "-o", "json")
    assert ran.code == 0
    assert ran.document == {
        "name": "green",
        "project": "vision",
        "count": 2,
        "model": "M40",
        "command": ["python3", "train.py"],
        "env": {"APP_SEED": "7", "APP_DEPTH": "16"},
        "policy": "live",
        "dark_tolerance_s": 2.0,
    }
    assert "name: green" in run("submit", "-f", file, "--dry-run").out
    assert requests == []


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_dry_run_prints_every_choice_as_its_word(run: Run, form: str) -> None:
    ran = run(
        *("submit", "-n", "1", "--locality", "strict", "--policy", "live", "--pull", "always"),
        *("--rank-order", "placed", "--dry-run", "-o", form),
    )
    assert ran.code == 0, ran.err
    assert yaml.safe_load(ran.out) == {
        "count": 1,
        "locality": "strict",
        "policy": "live",
        "pull": "always",
        "rank_order": "placed",
    }


def test_a_bad_file_is_told_with_path_and_fix(
    run: Run, requests: list[JobRequest], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("resources: {gpus: 2, modell: M40}\npolicy: shoot\n")
    ran = run("submit", "-f", str(bad))
    assert ran.code == 2
    assert str(bad) in ran.err
    assert "resources.modell: unknown key" in ran.err
    assert "policy: " in ran.err
    assert "lightloom schema job" in ran.err
    assert requests == []


def test_the_number_of_gpus_is_required(run: Run, tmp_path: Path) -> None:
    empty = tmp_path / "job.yaml"
    empty.write_text("name: red\n")
    for arguments in (("submit",), ("submit", "-f", str(empty))):
        ran = run(*arguments)
        assert ran.code == 2
        assert "-n N" in ran.err
    assert "resources.gpus" in run("submit", "-f", str(empty)).err
    assert run("submit", "-f", str(tmp_path / "absent.yaml")).code == 2


def test_both_schemas_are_printed(run: Run) -> None:
    assert "resources" in run("schema", "job").document["properties"]
    assert "fibers" in run("schema").document["properties"]


SEVERAL = "name: lime\nresources: {gpus: 1}\n---\nname: teal\nresources: {gpus: 2}\n"


def test_a_file_with_several_jobs(run: Run, requests: list[JobRequest], tmp_path: Path) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(SEVERAL)
    ran = run("submit", "-f", str(path), "--priority", "3", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.document["names"] == ["lime", "teal"]
    assert [(r.name, r.count, r.priority) for r in requests] == [
        ("lime", 1, 3),
        ("teal", 2, 3),
    ]
    ran = run("submit", "-f", str(path), "--dry-run", "-o", "json")
    assert [job["name"] for job in ran.document["jobs"]] == ["lime", "teal"]
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (SEVERAL, ("--name", "green"), "--name would name all"),
        (SEVERAL, ("--wait",), "--wait waits for one job"),
        (SEVERAL.replace("gpus: 2", "gpus: -2"), (), "document 2, resources.gpus"),
        (SEVERAL + "---\n- a list\n", (), "document 3"),
        (SEVERAL + "---\nname: green\n", (), "the number of GPUs is missing"),
        ("---\nname: red\nresources: {gpus: 1}\n" * 1001, (), "at most 1000 documents"),
    ],
    ids=["name", "wait", "wrong", "list", "no count", "too many"],
)
def test_a_file_with_several_jobs_that_is_wrong(
    run: Run,
    requests: list[JobRequest],
    tmp_path: Path,
    *,
    text: str,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    path = tmp_path / "jobs.yaml"
    path.write_text(text)
    ran = run("submit", "-f", str(path), *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert requests == []
