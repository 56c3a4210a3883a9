"""On the rack: README's command blocks do what README says beside each line."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from testbed import rack
from tests.parts.readme import blocks
from tests.parts.terminal import Program

pytestmark = [pytest.mark.root, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
LIMIT_S = 240.0
"""Within this time what a line promises is to be seen, by repeating it where a person would."""
RUN_DIR = Path("/run/lightloom/rack")


class Shell:
    """The shell of a reader, who has done what the first line says."""

    def __init__(self, folder: Path) -> None:
        path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
        self.folder = folder
        for name in ("examples", "testbed"):
            (folder / name).symlink_to(ROOT / name)

    def run(self, line: str) -> str:
        """Run a line, which must succeed; return all that it says."""
        done = subprocess.run(
            ["bash", "-c", line],
            check=False,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{line}: {said}"
        return said

    def until(self, line: str, promise: Callable[[str], object]) -> str:
        """Run a line again and again until it shows what is promised."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                said = self.run(line)
            except AssertionError as error:  # such as "nothing has been recorded yet"
                said = str(error)
            if promise(said):
                return said
            assert time.monotonic() < deadline, f"{line}: {said}"
            time.sleep(2.0)

    def jobs(self) -> Mapping[str, Mapping[str, object]]:
        """Return all jobs by name."""
        listed = json.loads(self.run("lightloom get jobs -o json"))["items"]
        return {job["name"]: job for job in listed}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path)
    rack.down(RUN_DIR, progress=lambda line: None)


def says(*words: str) -> Callable[[str], bool]:
    return lambda said: all(word in said for word in words)


def followed(shell: Shell, lines: list[str], promised: Mapping[str, Callable[[str], None]]) -> None:
    """Follow a block line by line; every line has a promise, which is kept."""
    assert [line for line in lines if line not in promised] == []
    for line in lines:
        promised[line](line)


def test_a_job_is_regrouped_watched_and_survives_a_loss(shell: Shell) -> None:
    block = blocks("By hand")[0]
    submitted = [line for line in block if line.startswith("lightloom submit")]
    red, blue, safe = submitted

    def runs(name: str) -> Callable[[str], None]:
        def submit(line: str) -> None:
            shell.run(line)
            shell.until("lightloom get jobs", lambda said: re.search(rf"{name} +running", said))

        return submit

    def watched(line: str) -> None:
        top = Program(*shlex.split(line)[1:], environment=shell.environment)
        top.until("red")
        top.type("\x03")
        top.end()

    def lost(line: str) -> None:
        assert "gpu2" in shell.jobs()["safe"]["endpoints"]  # type: ignore[operator]
        shell.run(line)

    promised: dict[str, Callable[[str], None]] = {
        block[0]: lambda line: None,  # the environment of this test's own
        "lightloom testbed up": lambda line: _promise(shell, line, "http://"),
        red: runs("red"),
        blue: runs("blue"),
        "lightloom get jobs": lambda line: _promise(shell, line, "as0:2 as1:2"),
        "lightloom plan --out regroup.json": lambda line: _promise(
            shell, line, "break", "dark time", "gain red", "no plan does better"
        ),
        "lightloom apply regroup.json --wait": lambda line: _promise(shell, line, "committed"),
        "lightloom top -w": watched,
        "lightloom describe job red": lambda line: _promise(
            shell, line, "gpu0", "JobStarted", "LightMoved"
        ),
        "lightloom comms red": lambda line: _promise(shell, line, "exposed"),
        "lightloom advise red": lambda line: _promise(shell, line, "1. "),
        "lightloom report red -o red.html": lambda line: _promise(shell, line),
        "lightloom cancel red": lambda line: _promise(shell, line, "cancelled"),
        "lightloom cancel blue": lambda line: _promise(shell, line, "cancelled"),
        safe: runs("safe"),
        "lightloom checkpoints safe": lambda line: _promise(shell, line, "protected"),
        "lightloom testbed lose gpu2": lost,
        "lightloom recoveries safe": lambda line: _promise(
            shell, line, "gpu2 lost: spare", "GPU-HOURS-LOST"
        ),
        "lightloom testbed down": lambda line: _promise(shell, line),
    }
    followed(shell, block, promised)
    assert (shell.folder / "red.html").stat().st_size > 10_000
    assert rack.status(RUN_DIR).state == "down"


def test_a_training_reads_a_volume_and_its_outcome_can_be_looked_up(shell: Shell) -> None:
    """``make torch-image`` has made the image: lanes are given all of them."""
    block = blocks("By hand")[1]
    (trained,) = [line for line in block if "torch_volume.yaml" in line]

    def began_at(step: int) -> None:
        shell.until(
            "lightloom logs torch-volume --search start",
            lambda said: re.search(rf'"step": {step}\b', said),
        )

    def first(line: str) -> None:
        shell.run(line)
        began_at(0)

    def searched(line: str) -> None:
        _promise(shell, line, '"checkpoint"')
        shell.run(trained)  # what README says of a second time
        began_at(200)

    def entered(line: str) -> None:
        shell.until("lightloom get jobs", lambda said: re.search(r"shell +running", said))
        inside = Program(*shlex.split(line)[1:], environment=shell.environment)
        inside.type("echo $((40 + 2))\r")
        inside.until("42")
        inside.type("exit\r")
        assert inside.end() == 0

    broken = "lightloom submit -n 2 --name broken -- python3 -c 'import nothing'"
    promised: dict[str, Callable[[str], None]] = {
        "lightloom testbed up": lambda line: _promise(shell, line, "http://"),
        "python examples/make_images.py /run/lightloom/rack/volumes/images": lambda line: _promise(
            shell, line, "images"
        ),
        trained: first,
        "lightloom get volumes": lambda line: _promise(shell, line, "images", "results"),
        "lightloom logs torch-volume --search checkpoint": searched,
        broken: lambda line: _promise(shell, line),
        "lightloom describe job broken": lambda line: _promise(
            shell, line, "failed", "rank", "No module named"
        ),
        "lightloom submit -n 1 --name shell -- sleep 600": lambda line: _promise(shell, line),
        "lightloom exec -it shell -- sh": entered,
        "lightloom usage --by job": lambda line: _promise(shell, line, "torch-volume", "shell"),
    }
    followed(shell, block, promised)


def _promise(shell: Shell, line: str, *words: str) -> None:
    shell.until(line, says(*words))
