"""A secret of a running site is in its ranks, and in no file, answer or command line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from container_mgr.docker.entry import SECRETS_FILE
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from testbed.engine import DATA_ROOT
from tests.integration import waiting
from tests.integration.machine import command_lines, files_with
from tests.integration.racks import rack_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

RUN_DIR = Path("/run/lightloom/test-secrets")
CANARY = "canary-9f31-of-a-rack"
SHOW = 'echo "${#APP_TOKEN} of rank"; [ "$RANK" = 1 ] && exit 3; sleep 600'


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    folder = tmp_path / "secrets"
    (folder / "default").mkdir(parents=True, mode=0o700)
    (folder / "default" / "wandb").write_text(CANARY)
    (folder / "default" / "wandb").chmod(0o600)
    site = yaml.safe_load(PAPER_SITE.read_text())
    site["secrets"] = {"directory": str(folder)}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    with rack_of(tmp_path / "site.yaml", RUN_DIR) as status, Controller(status.url) as made:
        yield made


def state(controller: Controller, job: str, wanted: str) -> None:
    until(lambda: controller.get(f"/jobs/{job}")["state"] == wanted)


until = partial(waiting.until, limit_s=60.0, pause_s=0.2)


def test_a_secret_is_found_nowhere_but_in_its_ranks(controller: Controller) -> None:
    env = {"APP_TOKEN": {"secret": "wandb"}}
    controller.post("/jobs", {"count": 2, "name": "red", "command": ["sh", "-c", SHOW], "env": env})
    state(controller, "red", "failed")
    controller.post("/jobs", {"count": 1, "name": "blue", "command": ["sleep", "600"], "env": env})
    state(controller, "blue", "running")
    lines = [text for _, text in controller.logs("red", follow=False)]
    assert f"{len(CANARY)} of rank" in lines  # it reached the program

    answers = [
        controller.get(path)
        for path in ("/jobs/red", "/jobs/blue", "/jobs", "/events", "/audit", "/secrets")
    ]
    assert "wandb" in str(answers)
    assert CANARY not in str(answers)
    assert CANARY not in command_lines()
    given = "agent-*/ranks/*/" + SECRETS_FILE
    until(lambda: not list(RUN_DIR.glob(given)))  # the rank has read it, and its agent has seen so
    # Store, audit trail, histories, logs of all daemons, files of agents and of the engine.
    places = [place for place in RUN_DIR.iterdir() if place.name != "docker"]
    assert {"controller", "logs"} <= {place.name for place in places}
    for place in (*places, DATA_ROOT / "containers"):
        assert files_with(place, CANARY) == []
    until(lambda: processes_with(CANARY))
    ranks = processes_with(CANARY)
    ours = Path("/proc/self/ns/net").readlink()
    assert all((process / "ns/net").readlink() != ours for process in ranks)


def processes_with(text: str) -> list[Path]:
    """Return the processes that have this text in their environment."""
    return [process for process in Path("/proc").glob("[0-9]*") if has_variable(process, text)]


def has_variable(process: Path, text: str) -> bool:
    """Say whether a process has this text in its environment."""
    try:
        return text.encode() in (process / "environ").read_bytes()
    except OSError:
        return False
