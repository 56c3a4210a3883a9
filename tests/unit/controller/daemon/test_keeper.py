"""The controller's parent: what a crash of the controller leaves standing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from controller.daemon import keeper
from controller.daemon.pulse import BEAT, CLOSED, OPEN, READY
from testbed.rack import procfs
from tests.parts.openflow.fake_switch import message
from tests.parts.openflow.tls import Trust, shows
from tests.unit.controller.daemon.started import site_file, start

PATIENCE_S = 30.0
HELLO, FEATURES_REQUEST, ECHO_REQUEST, ECHO_REPLY, PORT_STATUS = 0, 5, 2, 3, 12


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
        head = exactly(switch, 8)
        exactly(switch, int.from_bytes(head[2:4]) - 8)
        found.append(head[1])
    return found


def exactly(switch: socket.socket, count: int) -> bytes:
    heard = b""
    while len(heard) < count:
        more = switch.recv(count - len(heard))
        assert more, "the connection has ended"
        heard += more
    return heard


def test_a_crash_breaks_no_connection_and_a_successor_takes_over(tmp_path: Path) -> None:
    process = start(site_file(tmp_path), tmp_path / "state")
    try:
        listening = ready(process)
        first = child_of(process)
        host, port = listening["openflow"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as switch:
            switch.send(message(HELLO, 1))
            kinds = kinds_until(switch, FEATURES_REQUEST)
            assert kinds[0] == HELLO
            # It may have asked whether anybody is there, where the switch was slow to say hello.
            assert set(kinds) <= {HELLO, FEATURES_REQUEST, ECHO_REQUEST}
            assert kinds.count(HELLO) == 1
            os.kill(first, signal.SIGKILL)
            again = kinds_until(switch, FEATURES_REQUEST)
            assert HELLO not in again  # the same conversation goes on, with another controller
        assert ready(process) == listening
        token = (tmp_path / "state" / "admin.token").read_text().strip()
        answer = httpx.get(
            f"http://{listening['api']}/api/v1/health",
            headers={"Authorization": f"Bearer {token}"},
            timeout=PATIENCE_S,
            trust_env=False,
        )
        assert answer.status_code == 200
        successor = child_of(process)
        assert successor != first
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "controller_died" in err
    assert not alive(successor)


def test_a_crash_breaks_no_tls_session(tmp_path: Path) -> None:
    """TLS ends in the parent: its state could not be handed to the successor."""
    trust = Trust(tmp_path / "trust")
    site = site_file(tmp_path)
    site.write_text(site.read_text().replace(", tls: false", ""))
    process = start(site, tmp_path / "state", "--openflow-tls", str(trust.controller))
    try:
        listening = ready(process)
        host, port = listening["openflow"].rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        with shows(trust.switch("as0")).wrap_socket(plain) as switch:
            switch.send(message(HELLO, 1))
            assert kinds_until(switch, FEATURES_REQUEST)[0] == HELLO
            os.kill(child_of(process), signal.SIGKILL)
            assert HELLO not in kinds_until(switch, FEATURES_REQUEST)
        ready(process)
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "controller_died" in err


def test_a_site_with_tls_does_not_start_without_a_certificate(tmp_path: Path) -> None:
    site = site_file(tmp_path)
    site.write_text(site.read_text().replace(", tls: false", ""))
    process = start(site, tmp_path / "state")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (1, "")
    assert "aggregator/as0" in err
    assert "--openflow-tls" in err


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


def test_one_that_dies_early_again_and_again_is_started_less_and_less_often() -> None:
    pauses = [keeper.pause_s(n, moving=False) for n in range(9)]
    assert pauses == [0, 0, 1, 2, 4, 8, 16, 30, 30]
    assert keeper.pause_s(10**6, moving=False) == 30


def test_while_a_transaction_is_open_the_next_one_starts_within_a_second() -> None:
    pauses = [keeper.pause_s(n, moving=True) for n in (0, 1, 2, 3, 9, 10**6)]
    assert pauses == [0, 0, 1, 1, 1, 1]


KEEPER = """
import os, signal, socket, sys, time
from pathlib import Path
from controller.daemon import keeper
{injected}
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sys.exit(keeper.keep(listener, serve, load))
"""

TOLD_TOO_EARLY = """
mask = signal.pthread_sigmask
def late(how, signals):
    if how == signal.SIG_BLOCK:
        os.kill(os.getpid(), signal.SIGTERM)
    return mask(how, signals)
signal.pthread_sigmask = late
serve, load = (lambda listener, pulse: time.sleep(3600)), (lambda: None)
"""

TOLD_TOO_LATE = """
wait = os.waitpid
def late(pid, options):
    waited = wait(pid, options)
    os.kill(os.getpid(), signal.SIGTERM)
    return waited
os.waitpid = late
serve, load = (lambda listener, pulse: 0), (lambda: None)
"""

RESTS = """
keeper.pause_s = lambda early_deaths, *, moving: 3.0
first = Path("first")
load = lambda: None
def serve(listener, pulse):
    if first.exists():
        print("successor", flush=True)
        return 0
    first.touch()
    switch, _ = listener.accept()
    switch.sendall(bytes.fromhex("0400000800000001"))
    assert switch.recv(8)
    assert switch.recv(8)  # anything more is the end
    os.kill(os.getpid(), signal.SIGKILL)
"""


DIES = """
first = Path("first")
def serve(listener, pulse):
    if first.exists():
        print("successor", flush=True)
        return 0
    first.touch()
    {death}
load = lambda: None
"""

SILENT = """
from controller.daemon.pulse import BEAT
keeper.SIGN_S, keeper.SILENT_CHECKS, keeper.ABORT_CHECKS = 0.1, 20, 20
first = Path("first")
def serve(listener, pulse):
    if first.exists():
        print("successor", flush=True)
        return 0
    first.touch()
    pulse(BEAT)
    {hang}
load = lambda: None
"""


PAUSES = """
lives = {lives}
keeper.pause_s = lambda early, moving: print("pause", early, moving, flush=True) or 0.0
def serve(listener, pulse):
    life = len(list(Path(".").glob("life-*")))
    Path(f"life-{{life}}").touch()
    if life == len(lives):
        return 0
    for sign in lives[life]:
        pulse(bytes([sign]))
    os.abort()
load = lambda: None
"""


def keeping(injected: str, directory: Path, **more: str) -> subprocess.Popen[str]:
    """A keeper without a controller."""
    return subprocess.Popen(
        [sys.executable, "-c", KEEPER.format(injected=injected)],
        stdout=subprocess.PIPE,
        stderr=(directory / "stderr").open("w"),
        text=True,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[4]), **more},
    )


@pytest.mark.parametrize(
    "death",
    [
        "raise RuntimeError('uncaught')",  # Python's status for it is 1
        "sys.exit(1)",
        "sys.exit(2)",
        "sys.exit('a reason')",
        "sys.exit(0)",
        "os._exit(120)",
        "os.abort()",
    ],
)
def test_every_end_that_is_not_meant_is_followed_by_a_successor(tmp_path: Path, death: str) -> None:
    process = keeping(DIES.replace("{death}", death), tmp_path)
    try:
        lines = process.stdout
        assert lines is not None
        assert lines.readline().strip().isdecimal()
        assert [line for line in lines if "controller_died" not in line] == ["successor\n"]
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("status", [1, 2])
def test_a_first_controller_that_refuses_to_start_ends_the_parent(
    tmp_path: Path, status: int
) -> None:
    refuse = f"serve, load = (lambda listener, pulse: {status}), (lambda: None)"
    process = keeping(refuse, tmp_path)
    try:
        assert process.wait(PATIENCE_S) == status
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_a_successor_that_refuses_to_start_is_followed_by_another(tmp_path: Path) -> None:
    """The disk may be full for a while; the switches' connections stay meanwhile."""
    lives = """
from controller.daemon.pulse import READY
keeper.SIGN_S = 0.05
def serve(listener, pulse):
    lives = len(list(Path(".").glob("life-*")))
    Path(f"life-{lives}").touch()
    if lives == 0:
        pulse(READY)
        while True:  # until the parent has seen it
            time.sleep(0.2)
            if Path("seen").exists():
                os.abort()
    return 1 if lives == 1 else 0
load = lambda: None
tell = keeper.notify
keeper.notify = lambda sign: Path("seen").touch() if sign == READY else None
"""
    process = keeping(lives, tmp_path)
    try:
        assert process.wait(PATIENCE_S) == 0
        assert len(list(tmp_path.glob("life-*"))) == 3
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("lives", "pauses"),
    [
        ([READY] * 7, ["0 False"] * 7),  # killed while it served: no crash loop
        ([b""] * 3, ["1 False", "2 False", "3 False"]),
        ([b"", b"", READY, b""], ["1 False", "2 False", "0 False", "1 False"]),
        # What a child told outlives it, until a later one tells otherwise.
        (
            [OPEN, b"", CLOSED + READY + OPEN, BEAT, CLOSED],
            ["1 True", "2 True", "0 True", "1 True", "2 False"],
        ),
        ([READY + OPEN + CLOSED, b""], ["0 False", "1 False"]),
    ],
)
def test_what_the_pause_before_the_next_start_depends_on(
    tmp_path: Path, lives: list[bytes], pauses: list[str]
) -> None:
    process = keeping(PAUSES.format(lives=lives), tmp_path)
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        asked = [line.removeprefix("pause ") for line in out.splitlines() if "pause " in line]
        assert asked == pauses
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("hang", "shown"),
    [
        ("time.sleep(3600)", "Current thread"),  # SIGABRT shows where
        ("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGABRT]); time.sleep(3600)", "SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "SIGKILL"),
    ],
)
def test_one_whose_loop_is_silent_is_killed_and_followed(
    tmp_path: Path, hang: str, shown: str
) -> None:
    process = keeping(SILENT.replace("{hang}", hang), tmp_path)
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert "successor" in out
        assert "controller_hangs" in out
        assert shown in out + (tmp_path / "stderr").read_text()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_one_that_is_told_to_end_is_not_killed_for_its_silence(tmp_path: Path) -> None:
    slow = """
from controller.daemon.pulse import BEAT
keeper.SIGN_S, keeper.SILENT_CHECKS, keeper.ABORT_CHECKS = 0.05, 40, 5
def serve(listener, pulse):
    pulse(BEAT)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    os.kill(os.getppid(), signal.SIGTERM)
    while not told:
        time.sleep(0.001)
        pulse(BEAT)
    time.sleep(4)
    return 0
load = lambda: None
"""
    process = keeping(slow, tmp_path)
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, "controller_hangs" in out) == (0, False)
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_the_thread_that_loads_takes_no_signal_from_the_one_that_forks(tmp_path: Path) -> None:
    blocked = """
def load():
    print("blocked", sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
def serve(listener, pulse):
    print("in a child", sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
    return 0
"""
    process = keeping(blocked, tmp_path)
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert "blocked [<Signals.SIGINT: 2>, <Signals.SIGTERM: 15>]" in out
        assert "in a child []" in out
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("mode", [(), ("--no-keeper",)])
def test_the_service_manager_hears_that_it_serves_and_that_it_lives(
    tmp_path: Path, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        process = start(site_file(tmp_path), tmp_path / "state", *mode)
        try:
            heard = [manager.recv(64)]
            while b"READY=1" not in heard or heard[-1] != b"WATCHDOG=1":
                heard.append(manager.recv(64))
            assert set(heard) == {b"READY=1", b"WATCHDOG=1"}
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_no_sign_is_sent_for_a_child_that_nothing_ends() -> None:
    """systemd then does what the parent cannot."""
    watch = keeper._Watch()
    assert watch.check(b"") is None
    assert watch.check(b".") is None
    due = [watch.check(b"") for _ in range(keeper.SILENT_CHECKS + keeper.ABORT_CHECKS)]
    assert [s for s in due if s] == [signal.SIGABRT, signal.SIGKILL]
    assert not watch.stuck
    for _ in range(keeper.STUCK_CHECKS):
        watch.check(b"")
    assert watch.stuck


def test_the_unit_starts_again_without_end_and_has_a_watchdog() -> None:
    text = (
        Path(__file__).parents[4] / "console/deploy/systemd/lightloom-controller.service"
    ).read_text()
    unit = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] != "#")
    assert unit["StartLimitIntervalSec"] == "0"
    assert unit["Type"] == "notify"
    assert int(unit["WatchdogSec"]) > keeper.SIGN_S * (
        keeper.SILENT_CHECKS + keeper.ABORT_CHECKS + keeper.STUCK_CHECKS
    )


@pytest.mark.parametrize("injected", [TOLD_TOO_EARLY, TOLD_TOO_LATE])
def test_it_ends_when_told_to_in_the_moment_of_a_start_or_of_an_end(
    tmp_path: Path, injected: str
) -> None:
    process = keeping(injected, tmp_path)
    try:
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def test_it_answers_for_a_controller_that_died_until_the_next_one_starts(tmp_path: Path) -> None:
    process = keeping(RESTS, tmp_path)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as switch:
            switch.sendall(message(HELLO, 7))
            assert kinds_until(switch, HELLO) == [HELLO]
            switch.sendall(message(PORT_STATUS, 8))
            while "controller_died" not in (line := process.stdout.readline()):
                assert line
            switch.sendall(message(ECHO_REQUEST, 9))
            assert kinds_until(switch, ECHO_REPLY) == [ECHO_REPLY]
            assert process.stdout.readline() == "successor\n"
            assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
