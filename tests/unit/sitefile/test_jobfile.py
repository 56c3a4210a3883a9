"""Tests job files: the resulting requests, and the problems of invalid files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from controller.devices.engine import Pull
from controller.schema.jobs import JobBody, read_job
from controller.schema.submit.file import MAX_BYTES, JobFileModel, command, job_schema, load_job
from sitefile import SiteFileError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"

WHOLE = """
apiVersion: lightloom/v1
kind: Job
name: red
project: vision
priority: 3
resources: {gpus: 4, kind: gpu, model: M40, memory: 12GiB, endpoints: [gpu0, gpu1, gpu2, gpu3]}
image: ll-torch:1
pull: missing
setup: pip list
run: |
  exec python3 train.py --epochs 3
env: {SEED: 7, NAME: "yes", WANDB_API_KEY: {secret: wandb}}
limits: {cpu: 1.5, memory: 32GiB, io: 500MB/s}
volumes:
  - {volume: imagenet, path: /data}
  - {volume: scratch, path: /scratch, read_only: true}
locality: strict
policy: live
rank_order: placed
pinned: true
restart: on-failure:2
dark_tolerance_s: 2
checkpoint_grace_s: 30
checkpoint:
  complete: "marker: DONE"
  local: {where: disk, size: 8GiB, keep: 3}
  copies: {scheme: xor, apart: aggregator, set: 5}
  shared: {store: models, every: 20}
  replicas: distinct
spares: 1?
on_loss: shrink
at_least: 2
time_limit_s: 3600
time_limit_action: end
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "job.yaml"


def problems(file: Path, text: str) -> list[tuple[str, str, str]]:
    file.write_text(text)
    with pytest.raises(SiteFileError) as caught:
        load_job(file)
    assert caught.value.file == str(file)
    return [(p.path, p.message, p.fix) for p in caught.value.problems]


def test_all_keys_of_a_file(file: Path) -> None:
    file.write_text(WHOLE)
    assert load_job(file) == {
        "name": "red",
        "project": "vision",
        "priority": 3,
        "count": 4,
        "model": "M40",
        "min_memory_bytes": 12 * 2**30,
        "endpoints": ["gpu0", "gpu1", "gpu2", "gpu3"],
        "image": "ll-torch:1",
        "pull": "missing",
        "command": ["/bin/sh", "-ec", "pip list\nexec python3 train.py --epochs 3\n"],
        "env": {"SEED": "7", "NAME": "yes", "WANDB_API_KEY": {"secret": "wandb"}},
        "cpu": 1.5,
        "memory_bytes": 32 * 2**30,
        "io_bps": 500_000_000,
        "volumes": [
            {"volume": "imagenet", "path": "/data"},
            {"volume": "scratch", "path": "/scratch", "read_only": True},
        ],
        "locality": "strict",
        "policy": "live",
        "rank_order": "placed",
        "pinned": True,
        "restart": "on-failure:2",
        "dark_tolerance_s": 2.0,
        "checkpoint_grace_s": 30.0,
        "checkpoint": {
            "complete": "marker: DONE",
            "local": {"where": "disk", "size_bytes": 8 * 2**30, "keep": 3},
            "copies": {"scheme": "xor", "apart": "aggregator", "set_size": 5},
            "shared": {"store": "models", "every": 20},
            "replicas": "distinct",
        },
        "spares": 1,
        "spares_needed": False,
        "on_loss": "shrink",
        "at_least": 2,
        "time_limit_s": 3600.0,
        "time_limit_action": "end",
    }


def test_the_controller_accepts_all_keys_of_a_file(file: Path) -> None:
    file.write_text(WHOLE)
    request = JobBody.model_validate(load_job(file))
    assert request.model_dump(exclude_unset=True, mode="json") == load_job(file)


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("2", {"spares": 2, "spares_needed": True}),
        ("1?", {"spares": 1, "spares_needed": False}),
        ("64?", {"spares": 64, "spares_needed": False}),
        ("0", {"spares": 0, "spares_needed": True}),
    ],
)
def test_spares_are_needed_or_wished(file: Path, text: str, request_: dict[str, object]) -> None:
    file.write_text(f"spares: {text}\n")
    assert load_job(file) == request_


@pytest.mark.parametrize("text", ["65", "65?", "-1", "one", "1.5", "true", "'?'"])
def test_spares_that_are_none(file: Path, text: str) -> None:
    assert {path.partition(".")[0] for path, _, _ in problems(file, f"spares: {text}")} == {
        "spares"
    }


def test_every_rule_of_a_file_is_one_of_the_controllers(file: Path) -> None:
    for rule in ("rename", "dcp", "orbax", "keras", "marker: DONE", "marker:a.b"):
        keep = f"checkpoint: {{complete: '{rule}', local: {{size: 1GiB}}}}"
        file.write_text(f"resources: {{gpus: 1}}\n{keep}\n")
        asked = read_job(load_job(file)).checkpoint
        assert asked is not None
        assert asked.complete == rule


def test_absent_keys_are_not_requested(file: Path) -> None:
    file.write_text("resources: {gpus: 2}\n")
    assert load_job(file) == {"count": 2}


@pytest.mark.parametrize(
    ("text", "path", "message", "fix"),
    [
        (
            "resources: {gpu: 2}",
            "resources.gpu",
            "unknown key 'gpu'; did you mean 'gpus'?",
            "correct its name",
        ),
        ("resources: {gpus: 0}", "resources.gpus", "1 or more", "schema job"),
        ("resources: {gpus: true}", "resources.gpus", "whole number", "schema job"),
        ("resources: {gpus: '2'}", "resources.gpus", "whole number", "schema job"),
        ("resources: {memory: much}", "resources.memory", "a size such as 12GiB", "schema job"),
        ("resources: {kind: tpu}", "resources.kind", "'gpu'", "schema job"),
        ("name: Red Job", "name", "lower-case letters", "schema job"),
        ("env: {SEED: 0.1}", "env.SEED", "quote it", "schema job"),
        ("env: {SEED: yes}", "env.SEED", "quote it", "schema job"),
        ("env: {path: x}", "env.path.[key]", "capital letters", "schema job"),
        ("env: {A: {secret: ../x}}", "env.A.secret.secret", "lower-case letters", "schema job"),
        ("env: {A: {}}", "env.A.secret.secret", "missing", "schema job"),
        ("env: {A: [x]}", "env.A.text", "must be text", "schema job"),
        ("time_limit_action: stop", "time_limit_action", "'end' or 'ignore'", "schema job"),
        ("limits: {cpu: -1}", "limits.cpu", "more than 0", "schema job"),
        ("limits: {cpu: true}", "limits.cpu", "not numbers", "schema job"),
        ("limits: {io: 0}", "limits.io", "more than 0", "schema job"),
        ("policy: shoot", "policy", "'live', 'pause' or 'restart'", "schema job"),
        ("restart: always", "restart", "on-failure:N", "schema job"),
        ("dark_tolerance_s: .inf", "dark_tolerance_s", "some readers", "in quotes"),
        ("dark_tolerance_s: .nan", "dark_tolerance_s", "some readers", "in quotes"),
        ("checkpoint: {}", "checkpoint.local", "missing", "schema job"),
        ("checkpoint: {local: {}}", "checkpoint.local.size", "missing", "schema job"),
        ("checkpoint: {local: {size: 0}}", "checkpoint.local.size", "more than 0", "schema job"),
        (
            "checkpoint: {local: {size: 1GiB, kept: 3}}",
            "checkpoint.local.kept",
            "unknown key 'kept'; did you mean 'keep'?",
            "correct its name",
        ),
        (
            "checkpoint: {local: {size: 1GiB}, complete: fsync}",
            "checkpoint.complete",
            "'marker: FILE'",
            "schema job",
        ),
        (
            "checkpoint: {local: {size: 1GiB}, complete: 'marker: ../x'}",
            "checkpoint.complete",
            "'marker: FILE'",
            "schema job",
        ),
        (
            "checkpoint: {local: {size: 1GiB}, copies: {scheme: raid}}",
            "checkpoint.copies.scheme",
            "'single', 'partner' or 'xor'",
            "schema job",
        ),
        (
            "checkpoint: {local: {size: 1GiB}, shared: {every: 2}}",
            "checkpoint.shared.store",
            "missing",
            "schema job",
        ),
        ("on_loss: hope", "on_loss", "'wait' or 'shrink'", "schema job"),
        ("at_least: 0", "at_least", "1 or more", "schema job"),
        ("apiVersion: lightloom/v2", "apiVersion", "lightloom/v1", "schema job"),
    ],
)
def test_errors_name_the_path_and_the_fix(
    file: Path, text: str, path: str, message: str, fix: str
) -> None:
    found = problems(file, text)
    assert [p for p, _, _ in found] == [path]
    assert message in found[0][1]
    assert fix in found[0][2]


def test_all_problems_are_reported_together(file: Path) -> None:
    assert len(problems(file, "name: A B\npolicy: x\nresources: {gpus: -1}\n")) == 3


def test_a_yaml_bomb_is_refused(file: Path) -> None:
    lines = ['a: &a ["lol", "lol"]']
    lines += [f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]" for n in range(20)]
    ((where, message, fix),) = problems(file, "\n".join(lines))
    assert where.startswith("line 2")
    assert "aliases" in message
    assert fix


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list", "not a mapping"),
        ("", "not a mapping"),
        ("name: red\nname: blue", "is listed twice"),
        ("run: [a, b", "expected"),
        ("name: !!python/object/apply:os.system [id]", "is not accepted"),
        ("run: " + "[" * 5000, ""),
        ("run: " + "x" * MAX_BYTES, "larger than"),
    ],
)
def test_yaml_that_is_not_plain_is_refused(file: Path, text: str, message: str) -> None:
    assert message in problems(file, text)[0][1]


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SiteFileError, match="No such file"):
        load_job(tmp_path / "absent.yaml")


def test_a_list_runs_without_a_shell() -> None:
    assert command(None, ["python3", "a b.py"]) == ["python3", "a b.py"]
    assert command(None, None) == []
    assert command("true", None) == ["/bin/sh", "-ec", "true"]


def test_setup_runs_first_and_its_failure_ends_the_job() -> None:
    def ran(setup: str | None, run: str | list[str]) -> tuple[int, str]:
        done = subprocess.run(command(setup, run), capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert ran("echo one", "echo two") == (0, "one\ntwo\n")
    assert ran("echo one; false", "echo two") == (1, "one\n")
    assert ran("echo one", ["printf", "%s|", "a b", "$HOME"]) == (0, "one\na b|$HOME|")
    assert ran("false", ["echo", "two"]) == (1, "")


def test_the_schema_describes_the_model() -> None:
    schema = job_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["properties"].keys() == JobFileModel.model_fields.keys()
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_the_examples_are_valid(example: Path) -> None:
    assert load_job(example)["count"] >= 1


def test_a_file_knows_every_way_to_fetch_an_image() -> None:
    """The site file's package may not import the enum itself."""
    for way in Pull:
        assert JobFileModel(pull=way.value).pull == way
    (listed,) = [p["enum"] for p in job_schema()["properties"]["pull"]["anyOf"] if "enum" in p]
    assert listed == list(Pull)
