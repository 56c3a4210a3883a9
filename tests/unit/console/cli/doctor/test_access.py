"""Reading a machine ends in time, and with a bounded size."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from console.cli.doctor import access
from console.cli.doctor.access import MachineAccess, ask_engine, fsync_s, in_time, run
from console.cli.doctor.finding import CheckedRole, Duty
from console.cli.doctor.rows import examine_role


def test_a_programs_output() -> None:
    assert run(["sh", "-c", "echo x"]) == "x\n"
    assert run(["sh", "-c", "exit 3"]) is None
    assert run(["ll-no-such-program"]) is None


def test_a_program_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "TIMEOUT_S", 0.2)
    begun = time.monotonic()
    assert run(["sleep", "30"]) is None
    assert run(["yes"]) is None
    assert run(["sh", "-c", "exec >&-; exec sleep 30"]) is None
    assert time.monotonic() - begun < 5


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_BYTES", 10)
    (tmp_path / "long").write_text("x" * 100)
    os.mkfifo(tmp_path / "fifo")
    machine = MachineAccess(root=tmp_path)
    assert machine.text("/long") == "x" * 10
    assert machine.text("fifo") == machine.text("none") == ""
    assert machine.names("none") == []


def test_calls_that_are_too_slow() -> None:
    stay = threading.Event()
    first, second, third = in_time([lambda: 1, lambda: int("x"), stay.wait], 0.1)
    stay.set()
    assert first == 1
    assert isinstance(second, ValueError)
    assert isinstance(third, TimeoutError)


def test_a_slow_machine_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stay = threading.Event()

    def slow(_: object) -> str | None:
        stay.wait(20)
        return None

    monkeypatch.setattr("console.cli.doctor.rows.READ_TIMEOUT_S", 0.2)
    found = examine_role(MachineAccess(root=tmp_path, run=slow), Duty(CheckedRole.AGENT))
    stay.set()
    states = {result.name: result.state for result in found}
    assert states["MIG"] == states["clock"] == "unknown"


def answer(place: Path, data: bytes) -> threading.Thread:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(place))
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        with server, connection:
            connection.recv(1000)
            connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


def test_the_engine_is_asked_at_its_socket(tmp_path: Path) -> None:
    thread = answer(tmp_path / "s", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    assert ask_engine(tmp_path / "s", "/version") == b"{}"
    thread.join()


@pytest.mark.parametrize("data", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 500 No\r\n\r\n"])
def test_what_is_not_an_engine(tmp_path: Path, data: bytes) -> None:
    answer(tmp_path / "s", data)
    with pytest.raises(OSError):
        ask_engine(tmp_path / "s", "/version")


def test_an_fsync_leaves_nothing(tmp_path: Path) -> None:
    try:
        assert fsync_s(tmp_path) >= 0
    except OSError:
        pytest.skip("this file system has no unnamed files")
    assert list(tmp_path.iterdir()) == []
