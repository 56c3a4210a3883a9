from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.mortal import kill_with_children
from testbed.rack import procfs
from testbed.rack.errors import RackError
from testbed.rack.process import Process, ProgramSpec, end_all, quote, spawn, stop, wait_ready

SLEEPER = ("sleep", "600")
MARKER = "/nowhere/unit-test"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = spawn(ProgramSpec("sleeper", SLEEPER, env={"COLOUR": "red"}), tmp_path, MARKER)
    yield process
    stop([process], grace_s=5)


def stubborn(log_dir: Path) -> Process:
    """Return a process that ignores SIGTERM once it has printed a line."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print('deaf', flush=True); time.sleep(600)"
    )
    process = spawn(ProgramSpec("stubborn", (sys.executable, "-c", code)), log_dir, MARKER)
    wait_ready(process, lambda: "deaf" in Path(process.log).read_text(), timeout_s=20)
    return process


def test_stat_is_parsed_with_a_hostile_command_name() -> None:
    numbers = " ".join(str(n) for n in range(5, 60))
    assert procfs.parse_stat(f"42 (a) S 1 (b) R 7 {numbers}") == ("R", 7, 22)


def test_a_started_process_is_alive_marked_and_in_its_own_session(sleeper: Process) -> None:
    assert sleeper.alive()
    deadline = time.monotonic() + 20
    while procfs.environment_value(sleeper.pid, procfs.MARKER) is None:
        assert time.monotonic() < deadline  # during exec a process has no environment
        time.sleep(0.01)
    assert procfs.environment_value(sleeper.pid, procfs.MARKER) == MARKER
    assert procfs.environment_value(sleeper.pid, "COLOUR") == "red"
    assert os.getsid(sleeper.pid) == sleeper.pid


def test_a_reused_pid_is_never_ended(sleeper: Process) -> None:
    other = dataclasses.replace(sleeper, ticks=sleeper.ticks - 1)
    assert not other.alive()
    stop([other], grace_s=0.1)
    assert sleeper.alive()


def test_a_stopped_process_is_gone(sleeper: Process) -> None:
    stop([sleeper], grace_s=5)
    assert not sleeper.alive()
    with pytest.raises(ProcessLookupError):
        os.kill(sleeper.pid, 0)  # reaped, not left as a zombie


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = stubborn(tmp_path)
    end_all([(process.pid, process.ticks)], grace_s=0.2)
    assert not process.alive()


def test_a_process_killed_from_outside_is_not_alive(sleeper: Process) -> None:
    os.kill(sleeper.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not sleeper.alive()  # a zombie counts as gone


def test_the_log_of_a_process_that_dies_immediately_is_quoted(tmp_path: Path) -> None:
    code = "print('first'); print('no such device', flush=True); raise SystemExit(3)"
    with pytest.raises(RackError) as caught:  # on a busy machine it is dead when spawn looks
        process = spawn(ProgramSpec("brief", (sys.executable, "-c", code)), tmp_path, MARKER)
        wait_ready(process, lambda: False, timeout_s=20)
    assert caught.value.code == "failed"
    assert caught.value.object == "process/brief"
    assert "no such device" in caught.value.message
    assert str(tmp_path / "brief.log") in caught.value.hint


def test_a_process_that_is_never_ready_is_a_timeout(sleeper: Process) -> None:
    with pytest.raises(RackError) as caught:
        wait_ready(sleeper, lambda: False, timeout_s=0.1)
    assert caught.value.code == "timeout"


def test_a_program_that_is_not_installed_has_a_hint(tmp_path: Path) -> None:
    with pytest.raises(RackError) as caught:
        spawn(ProgramSpec("x", ("no-such-program-anywhere",)), tmp_path, MARKER)
    assert caught.value.code == "unavailable"
    assert "make setup" in caught.value.hint


def test_only_the_last_lines_of_a_log_are_quoted(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("\n".join(str(n) for n in range(100)))
    assert quote(log, lines=2) == ":\n  | 98\n  | 99"
    assert quote(tmp_path / "absent.log") == ""


def test_own_line_has_this_process_and_its_ancestors() -> None:
    assert {os.getpid(), os.getppid()} <= procfs.own_line()


def test_a_keeper_is_dead_only_when_its_child_is(tmp_path: Path) -> None:
    """The kernel kills the child, like a controller, and the child takes a while to end."""
    code = (
        "import ctypes, os, signal, sys, time\n"
        "keeper = os.getpid()\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), os._exit(0)))\n"
        "    ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
        "    print('born', flush=True)\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    keeper = spawn(ProgramSpec("keeper", (sys.executable, "-c", code)), tmp_path, MARKER)
    wait_ready(keeper, lambda: "born" in Path(keeper.log).read_text(), timeout_s=60)
    (child,) = procfs.children(keeper.pid)
    kill_with_children(keeper.pid)
    assert procfs.start_ticks(child) is None
    assert not keeper.alive()
    os.waitpid(keeper.pid, 0)
