"""The verb ``exec`` against a controller that repeats its input; the rack has a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any, cast

import pytest

from console.cli.ask.client import ControllerClient
from console.cli.verbs.execs import _Feeder
from controller.base.errors import ServiceError
from controller.devices.engine import ExecEnd, RankState
from tests.parts.api.desks import answer
from tests.parts.api.repeater import Repeater
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run

CLI = [sys.executable, "-c", "import sys; from console.cli.main import main; sys.exit(main())"]


def ran(url: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own, with a pipe as stdin."""
    env = {**os.environ, "LIGHTLOOM_URL": url}
    return subprocess.run(
        [*CLI, *words], input=given, capture_output=True, check=False, timeout=90, env=env
    )


@pytest.fixture
def repeater(rack: Rack) -> Repeater:
    """What runs in ranks."""
    return Repeater(rack.engine)


def test_input_output_and_exit_code(url: str, repeater: Repeater) -> None:
    sent = bytes(range(256)) * 800
    done = ran(url, "exec", "-i", "job/red", "--rank", "1", "--", "cat", "-n", given=sent)
    assert done.stdout == sent
    assert done.stderr == b"no more\n"
    assert done.returncode == 3
    (start,) = repeater.begun
    assert (start.job, start.rank, list(start.command)) == ("red", 1, ["cat", "-n"])
    assert (start.window, start.terminal) == (None, False)


def test_without_i_there_is_no_input(url: str, repeater: Repeater) -> None:
    limits = ("--idle-timeout", "2m", "--time-limit", "1h")
    done = ran(url, "exec", *limits, "red", "--", "cat", given=b"not passed on")
    assert done.stdout == b""
    assert done.returncode == 3
    (start,) = repeater.begun
    assert (start.idle_s, start.total_s) == (120, 3600)


def test_a_terminal_is_needed_for_t(run: Run, rack: Rack) -> None:
    refused = run("exec", "-t", "red", "--", "sh")
    assert refused.code == 2
    assert "-t needs a terminal" in refused.err
    assert rack.engine.execs == []


@pytest.mark.parametrize(("code", "exit_code"), [("conflict", 6), ("not_found", 5)])
def test_refusals_have_their_exit_codes(run: Run, rack: Rack, code: Any, exit_code: int) -> None:
    answer(rack.desks.jobs, exec=ServiceError(code, "no", hint="resume it first"))
    refused = run("exec", "red", "--", "true")
    assert refused.code == exit_code
    assert "resume it first" in refused.err


def test_a_command_of_a_job_that_was_paused_has_the_exit_code_of_conflicts(
    run: Run, rack: Rack
) -> None:
    rack.engine.set_all("red", RankState.PAUSED)
    refused = run("exec", "red", "--", "true")
    assert refused.code == 6
    assert "it is frozen" in refused.err


def test_a_limit_has_the_exit_code_of_time_outs(run: Run, repeater: Repeater) -> None:
    repeater.end = ExecEnd(None, "it ran for 5 s, its time limit")
    ended = run("exec", "red", "--", "sleep", "9")
    assert ended.code == 124
    assert "it ran for 5 s" in ended.err


def test_a_reader_that_leaves_is_no_error_message(url: str, repeater: Repeater) -> None:
    env = {**os.environ, "LIGHTLOOM_URL": url}
    pipe = subprocess.PIPE
    command = [*CLI, "exec", "-i", "red", "--", "cat"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, errors = process.communicate(b"some output\n", timeout=90)
    assert process.returncode == 141
    assert errors == b""
    assert repeater.begun


class Closing:
    """A client whose request is under way when it is closed."""

    def __init__(self) -> None:
        self.asked, self.closed = threading.Event(), threading.Event()

    def post(self, path: str, body: dict[str, Any]) -> None:
        self.asked.set()
        assert self.closed.wait(60)
        raise ValueError("I/O operation on closed file")


def test_a_client_that_closes_during_a_request_is_no_error_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr("console.cli.show.terminal.size", lambda: (24, 80))
    client = Closing()
    feeder = _Feeder(cast(ControllerClient, client), "/jobs/red/exec/1/input", stdin=False)
    feeder.start()
    feeder.resized()
    assert client.asked.wait(60)
    feeder.stop()
    client.closed.set()
    feeder._thread.join(60)
    assert raised == []
