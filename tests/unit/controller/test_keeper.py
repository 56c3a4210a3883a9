"""The controller's parent: what a crash of the controller leaves standing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from controller import keeper
from testbed.rack import procfs
from tests.unit.controller.test_daemon import site_file, start
from tests.unit.openflow.fakeswitch import message

PATIENCE_S = 30.0
HELLO, FEATURES_REQUEST, ECHO_REQUEST, ECHO_REPLY = 0, 5, 2, 3


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def child_of(process: subprocess.Popen[str]) -> int:
    """The controller itself."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


def alive(pid: int) -> bool:
    return procfs.start_ticks(pid) is not None


def ready(process: subprocess.Popen[str]) -> dict[str, str]:
    assert process.stdout is not None
    found: dict[str, str] = json.loads(process.stdout.readline())
    return found


def kinds_until(switch: socket.socket, wanted: int) -> list[int]:
    """The kinds of messages that the switch gets, up to the first of kind ``wanted``."""
    found: list[int] = []
    while wanted not in found:
        head = switch.recv(8, socket.MSG_WAITALL)
        assert len(head) == 8, "the connection has ended"
        switch.recv(int.from_bytes(head[2:4]) - 8, socket.MSG_WAITALL)
        found.append(head[1])
    return found


def test_a_crash_breaks_no_connection_and_an_heir_takes_over(tmp_path: Path) -> None:
    process = start(site_file(tmp_path), tmp_path / "state")
    try:
        listening = ready(process)
        first = child_of(process)
        host, port = listening["openflow"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as switch:
            switch.send(message(HELLO, 1))
            kinds = kinds_until(switch, FEATURES_REQUEST)
            assert kinds == [HELLO, FEATURES_REQUEST]
            os.kill(first, signal.SIGKILL)
            again = kinds_until(switch, FEATURES_REQUEST)
            assert HELLO not in again  # the same conversation goes on, with somebody else
        assert ready(process) == listening
        token = (tmp_path / "state" / "admin.token").read_text().strip()
        answer = httpx.get(
            f"http://{listening['api']}/api/v1/health",
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE_S,
            trust_env=False,
        )
        assert answer.status_code == 200
        heir = child_of(process)
        assert heir != first
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "controller_died" in err
    assert not alive(heir)


def test_the_controller_does_not_outlive_its_parent(tmp_path: Path) -> None:
    site, state = site_file(tmp_path), tmp_path / "state"
    process = start(site, state)
    ready(process)
    child = child_of(process)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    until(lambda: not alive(child))
    again = start(site, state)
    ready(again)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0


def test_without_a_parent_it_is_one_process(tmp_path: Path) -> None:
    process = start(site_file(tmp_path), tmp_path / "state", "--no-keeper")
    ready(process)
    assert Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() == ""
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGKILL


def test_one_that_dies_again_and_again_is_started_less_and_less_often() -> None:
    assert [keeper.pause_s(n) for n in range(1, 9)] == [0, 1, 2, 4, 8, 16, 30, 30]
