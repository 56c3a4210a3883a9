"""A failed job on the rack is diagnosed with one command, also when a server is away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from testbed.rack import record
from tests.integration.racks import rack_of
from tests.integration.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

RUN_DIR = Path("/run/lightloom/test-failure")
FAILS = 'echo "rank $RANK begins"; [ "$RANK" = 1 ] && { echo no such file >&2; exit 3; }; sleep 600'


@pytest.fixture
def controller() -> Iterator[Controller]:
    with rack_of(PAPER_SITE, RUN_DIR) as status, Controller(status.url) as made:
        yield made


def lightloom(controller: Controller, *words: str) -> subprocess.CompletedProcess[str]:
    written = record.load(RUN_DIR)
    assert written is not None
    program = str(Path(sys.executable).with_name("lightloom"))
    argv = [program, "--url", written.url, *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_a_failed_job_is_diagnosed_with_one_command(controller: Controller) -> None:
    request = {"count": 3, "name": "red", "command": ["sh", "-c", FAILS]}
    controller.post("/jobs", request)
    view = until(
        lambda: controller.get("/jobs/red"), lambda job: job["state"] == "failed", limit_s=120.0
    )
    shown = lightloom(controller, "describe", "job", "red").stdout
    assert "rank 1 exited with code 3" in shown
    assert "lightloom stopped ranks 0, 2" in shown
    assert "  no such file" in shown
    found = lightloom(controller, "logs", "red", "--search", "begins", "--timestamps")
    assert sorted(line.partition("Z ")[2] for line in found.stdout.splitlines()) == [
        f"[{rank}] rank {rank} begins" for rank in range(3)
    ]

    written = record.load(RUN_DIR)
    assert written is not None
    server = view["ranks"][1]["server"]
    agent = next(p for p in written.processes if p.name == f"agent-{server}")
    os.kill(agent.pid, signal.SIGKILL)
    away = [rank["rank"] for rank in view["ranks"] if rank["server"] == server]
    found = lightloom(controller, "logs", "red")
    assert sorted(found.stderr.splitlines()) == [
        f"output of rank {rank} is missing here: {server} does not answer" for rank in away
    ]
    assert "rank 1 exited with code 3" in lightloom(controller, "describe", "job", "red").stdout
