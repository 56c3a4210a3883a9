"""A worker's process is clean, ends when it shall, and its death is an error that says so."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import sleep

import pytest

from base.processes import Worker, WorkerError
from tests.parts.tasks import Clock, Fail, Hang, Leave, Look, Refuse, Stray, worker

pytestmark = pytest.mark.real_time

LIMIT_S = 60.0


def always() -> None:
    """Every result is wanted."""


@pytest.fixture
def ours() -> Iterator[Worker]:
    """A worker, which is closed at the end."""
    found = worker()
    yield found
    found.close()


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """A thread that can wait for a task."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def written(file: Path) -> int:
    """Return the process id in a file, once there is one."""
    for _ in range(int(LIMIT_S / 0.01)):
        if file.exists():
            return int(file.read_text(encoding="ascii"))
        sleep(0.01)
    raise TimeoutError(str(file))


def gone(process: int) -> bool:
    """Whether a process has ended, or is only waited for; looks until the limit."""
    for _ in range(int(LIMIT_S / 0.01)):
        try:
            status = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
        except OSError:
            return True
        if status.rpartition(")")[2].split()[0] == "Z":
            return True
        sleep(0.01)
    return False


def hanging(
    ours: Worker, beside: ThreadPoolExecutor, file: Path, wanted: Callable[[], object] = always
) -> tuple[Future[None], int]:
    """Begin a task that never ends; return its future and its process."""
    future = beside.submit(ours.perform, Hang(str(file)), wanted)
    return future, written(file)


def test_it_inherits_no_socket_and_no_secret(ours: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", "secret")
    with socket.socket() as listening, Path("/dev/zero").open("rb") as device:
        listening.set_inheritable(True)
        os.set_inheritable(device.fileno(), True)
        seen = ours.perform(Look(), always)
    kinds = {name.partition(":")[0] for name in seen.files}
    assert kinds == {"pipe", "/dev/null"}
    assert "LIGHTLOOM_OCS_PASSWORD" not in seen.environment
    assert seen.environment <= {
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "PATH",
        "PYTHONHASHSEED",
        "PYTHONPATH",
    }
    assert seen.niceness > os.nice(0)


def test_it_is_kept_for_the_next_task(ours: Worker) -> None:
    assert ours.pid is None
    first = ours.perform(Look(), always).process
    assert ours.perform(Look(), always).process == first == ours.pid != os.getpid()


def test_errors_are_raised_as_there(ours: Worker) -> None:
    with pytest.raises(ValueError, match="not at True"):
        ours.perform(Refuse(), always)
    with pytest.raises(WorkerError, match="failed: KeyError: 'nothing'"):
        ours.perform(Fail(), always)
    assert ours.perform(Look(), always).process == ours.pid


def test_what_is_no_value_passes_neither_way(ours: Worker) -> None:
    before = ours.perform(Look(), always).process

    def local(clock: Clock) -> None:
        raise AssertionError("it must not be called")

    with pytest.raises(WorkerError, match="got no task: function cannot be sent"):
        ours.perform(local, always)
    with pytest.raises(WorkerError, match=r"wrong answer: .* is not a value of"):
        ours.perform(Stray(), always)
    assert gone(before)
    assert ours.perform(Look(), always).process != before


@pytest.mark.parametrize("status", [0, 3])
def test_one_that_leaves_in_the_middle_is_replaced(ours: Worker, status: int) -> None:
    before = ours.perform(Look(), always).process
    with pytest.raises(WorkerError, match=f"ended with status {status}"):
        ours.perform(Leave(status), always)
    assert ours.perform(Look(), always).process != before


def test_one_that_is_killed_in_the_middle_is_replaced(
    ours: Worker, beside: ThreadPoolExecutor, tmp_path: Path
) -> None:
    future, process = hanging(ours, beside, tmp_path / "begun")
    os.kill(process, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"was killed \(SIGKILL\)"):
        future.result(LIMIT_S)
    assert ours.perform(Look(), always).process != process


def test_one_that_is_killed_between_two_tasks_is_replaced(ours: Worker) -> None:
    before = ours.perform(Look(), always).process
    os.kill(before, signal.SIGKILL)
    assert gone(before)
    assert ours.perform(Look(), always).process != before


class UnwantedError(Exception):
    """Nobody wants the result."""


def test_stop_ends_what_is_under_way(
    ours: Worker, beside: ThreadPoolExecutor, tmp_path: Path
) -> None:
    left = threading.Event()

    def wanted() -> None:
        if left.is_set():
            raise UnwantedError

    future, process = hanging(ours, beside, tmp_path / "begun", wanted)
    left.set()
    ours.stop()
    with pytest.raises(UnwantedError):
        future.result(LIMIT_S)
    assert gone(process)
    with pytest.raises(UnwantedError):
        ours.perform(Look(), wanted)


def test_close_ends_what_is_under_way_and_starts_no_other(
    ours: Worker, beside: ThreadPoolExecutor, tmp_path: Path
) -> None:
    future, process = hanging(ours, beside, tmp_path / "begun")
    ours.close()
    assert gone(process)
    with pytest.raises(WorkerError, match="was ended with the program that needs it"):
        future.result(LIMIT_S)
    with pytest.raises(WorkerError, match="is closed"):
        ours.perform(Look(), always)
    assert ours.pid is None


PARENT = """
import sys
from tests.parts.tasks import Hang, worker
worker().perform(Hang(sys.argv[1]), lambda: None)
"""


def test_it_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "begun"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(file)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as parent:
        process = written(file)
        parent.kill()
    assert gone(process)
