"""A job in two placements on the rack: measured in turns, predicted, and applied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import ring_steps
from testbed.demo import homes
from testbed.demo.api import Controller, Document
from testbed.rack import RackStatus

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

STEPS, BYTES = 45, 1_000_000
TOGETHER = {"gpu3": "as0", "gpu4": "as0"}
SPEC = "homes=" + "+".join(f"{endpoint}:{home}" for endpoint, home in TOGETHER.items())
PROGRAM = ["python3", "-c", Path(ring_steps.__file__).read_text("utf-8")]
JOB = {"resources": {"gpus": 2}, "run": [*PROGRAM, "0.02", str(BYTES), str(STEPS)]}
COMMAND_LINE = "import sys; from console.cli.main import main; sys.exit(main())"


def lightloom(url: str, *words: str) -> Any:
    """Run the command line; return its document."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND_LINE, *words, "-o", "json"],
        env={**os.environ, "LIGHTLOOM_URL": url},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # 3 is a result that is not valid: a loaded machine is no reason to fail here.
    assert done.returncode in (0, 3), done.stderr
    return json.loads(done.stdout)


def test_two_placements_are_measured_predicted_kept_and_applied(
    paper: RackStatus, controller: Controller, tmp_path: Path
) -> None:
    url = paper.url
    before = homes.present(controller)
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(JOB))
    given = ("compare", "-f", str(file), "--run", "--steps", "30", "--rounds", "2")
    done: Document = lightloom(url, *given, "--placement", f"{SPEC},remote")
    assert done["state"] == "completed", done["reason"]
    together, remote = done["result"]["rows"]
    assert (together["span"], remote["span"]) == (1, 2)
    assert together["homes"] == TOGETHER
    for row in (together, remote):
        assert row["measured_step_s"]["n"] == 60
        assert 0 < row["predicted_step_s"]["low"] <= row["predicted_step_s"]["high"]
        assert row["error"] is not None
    assert homes.present(controller) == before

    kept = lightloom(url, "get", "predictions")
    kept = kept["items"] if isinstance(kept, dict) else kept
    kept = [p for p in kept if p["cause"] == "compare"]
    assert {p["state"] for p in kept} == {"met"}
    assert sorted(p["error"] for p in kept) == sorted((together["error"], remote["error"]))

    plan = tmp_path / "plan.json"
    known = ("compare", "-f", str(file), "--predict", "--from", done["id"], "--out", str(plan))
    again: Document = lightloom(url, *known, "--placement", SPEC)
    assert again["state"] == "completed" and again["runs"] == []
    applied = lightloom(url, "apply", str(plan), "--yes", "--wait")
    assert applied["state"] == "committed"
    assert {e: homes.present(controller)[e] for e in TOGETHER} == TOGETHER
