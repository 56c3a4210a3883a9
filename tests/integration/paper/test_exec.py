"""On the rack: commands in ranks through the command line, as people use it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from testbed.demo.api import Controller
from testbed.rack import RackStatus
from tests.integration import waiting
from tests.integration.racks import controller_of

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

CLI = [sys.executable, "-c", "import sys; from console.cli.main import main; sys.exit(main())"]
LIMIT_S = 90.0
until = partial(waiting.until, limit_s=LIMIT_S)
STORM_BYTES = 48 * 2**20
SPARE_BYTES = 32 * 2**20


@dataclass
class Site:
    """A rack with one job, red, of two ranks."""

    controller: Controller
    env: dict[str, str]
    pids: list[int]

    def run(
        self, *words: str, code: int = 0, given: bytes = b"", token: str = ""
    ) -> tuple[bytes, bytes]:
        """Run the command line; return its output and its errors."""
        env = {**self.env, **({"LIGHTLOOM_TOKEN": token} if token else {})}
        done = subprocess.run(
            [*CLI, *words], input=given, capture_output=True, timeout=LIMIT_S, check=False, env=env
        )
        assert done.returncode == code, (words, done.returncode, done.stdout[-500:], done.stderr)
        return done.stdout, done.stderr


@pytest.fixture(scope="module")
def site(paper: RackStatus) -> Iterator[Site]:
    with controller_of(paper) as made:
        job = {"name": "red", "count": 2, "command": ["sleep", "3600"]}
        made.post("/jobs", job)
        until(lambda: made.get("/jobs/red")["state"] == "running")
        env = {**os.environ, "LIGHTLOOM_URL": paper.url}
        pids = [p.pid for p in paper.parts if p.name.startswith(("agent", "controller"))]
        yield Site(made, env, pids)


def runs(word: str) -> bool:
    """Whether a process of a command has ``word`` in its command line."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if not entry.name.isdecimal() or word.encode() not in (entry / "cmdline").read_bytes():
                continue
            if b"/ll-exec-" in (entry / "cgroup").read_bytes():
                return True
    return False


def _number() -> str:
    """Return a number of seconds that no other process sleeps."""
    return str(10**9 + uuid.uuid4().int % 10**9)


def resident(pids: list[int]) -> int:
    """Return the memory of processes and their children, in bytes."""
    parents: dict[int, int] = {}
    pages: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)], pages[int(entry.name)] = int(stat[1]), int(stat[21])
    wanted = {pid for pid in parents if pid in pids or parents[pid] in pids}
    return sum(pages[pid] for pid in wanted) * os.sysconf("SC_PAGESIZE")


def test_output_exit_code_and_input(site: Site) -> None:
    script = "echo out; echo err >&2; exit 42"
    assert site.run("exec", "red", "--", "sh", "-c", script, code=42) == (b"out\n", b"err\n")
    shown, _ = site.run("exec", "red", "--rank", "1", "--", "cat", "/etc/hostname")
    assert shown == b"red-1\n"
    sent = os.urandom(300_000)
    assert site.run("exec", "-i", "red", "--", "cat", given=sent)[0] == sent
    assert site.run("exec", "red", "--", "cat", given=b"not passed on")[0] == b""
    _, why = site.run("exec", "red", "--rank", "7", "--", "true", code=5)
    assert b"has ranks 0 to 1" in why
    shown, _ = site.run("exec", "red", "--", "no-such-program", code=126)
    assert b"no-such-program" in shown
    _, why = site.run("exec", "red", "--idle-timeout", "1s", "--", "sleep", "60", code=124)
    assert b"no input and no output for 1 s" in why


def test_a_command_has_the_ranks_rights_only(site: Site) -> None:
    shown, _ = site.run("exec", "red", "--", "cat", "/proc/self/status")
    lines = shown.decode().splitlines()
    assert "CapEff:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines
    assert "Seccomp:\t2" in lines


class Terminal:
    """The command line at a terminal of its own."""

    def __init__(self, site: Site, *words: str) -> None:
        self._master, slave = os.openpty()
        self.before = termios.tcgetattr(slave)
        self.resize(33, 77)
        self.process = subprocess.Popen(
            [*CLI, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=site.env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self._slave = slave
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self._master, data)

    def shows(self, text: bytes) -> None:
        """Read until the terminal has shown ``text``."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 1.0)[0]:
                self.seen += os.read(self._master, 65536)

    def restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def shell(site: Site) -> Iterator[Terminal]:
    terminal = Terminal(site, "exec", "-it", "red", "--", "sh")
    try:
        terminal.shows(b"$ ")
        yield terminal
    finally:
        terminal.close()


def test_a_shell_has_a_terminal_of_the_same_size_and_gets_ctrl_c(shell: Terminal) -> None:
    # Not Python: it swallows a Ctrl-C that comes while it ends, and the loop goes on.
    shell.type(b"while stty size; do sleep 0.2; done\r")
    shell.shows(b"33 77\r\n")
    assert not shell.restored()
    shell.resize(44, 88)
    shell.shows(b"44 88\r\n")
    shell.type(b"\x03")
    word = _number()
    shell.type(f"sleep {word}\r".encode())
    until(lambda: runs(word))
    shell.type(b"\x03")
    until(lambda: not runs(word))
    shell.type(b"\x10echo control-p\r")  # the engine's detach key
    shell.type(b"exit 5\r")
    assert shell.process.wait(timeout=LIMIT_S) == 5
    assert shell.restored()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_and_the_command_ends_when_the_caller_is_ended(
    shell: Terminal, signum: signal.Signals
) -> None:
    word = _number()
    shell.type(f"sleep {word}\r".encode())
    until(lambda: runs(word))
    shell.process.send_signal(signum)
    assert shell.process.wait(timeout=LIMIT_S) == 128 + signum
    assert shell.restored()
    until(lambda: not runs(word))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_command_ends_with_its_caller(site: Site, signum: signal.Signals) -> None:
    word = uuid.uuid4().hex
    script = "trap '' HUP; while :; do sleep 0.1; done"
    command = [*CLI, "exec", "red", "--", "sh", "-c", script, word]
    with subprocess.Popen(command, env=site.env) as caller:
        until(lambda: runs(word))
        caller.send_signal(signum)
        assert caller.wait(timeout=LIMIT_S) == (130 if signum is signal.SIGINT else -signum)
    until(lambda: not runs(word))


def test_a_command_that_clears_its_environment_ends_and_gives_its_place_back(site: Site) -> None:
    words = [_number() for _ in range(9)]  # more than a rank has places
    for word in words:
        script = f"setsid env -i sleep {word} & env -i sh -c 'sleep {word} &' & exit 3"
        site.run("exec", "red", "--", "sh", "-c", script, code=3)
    until(lambda: not any(runs(word) for word in words))


def test_a_frozen_job_is_refused_and_its_commands_freeze_and_go_on(site: Site) -> None:
    word = uuid.uuid4().hex
    ticks = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; sleep 0.1; done"
    command = [*CLI, "exec", "red", "--idle-timeout", "10s", "--", "sh", "-c", ticks, word]
    with subprocess.Popen(command, env=site.env, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"1\n"
        site.run("pause", "red")
        _, why = site.run("exec", "red", "--", "true", code=6)
        assert b"paused" in why
        assert b"lightloom resume red" in why
        time.sleep(12)  # longer than the idle time-out, which a freeze does not count for
        assert caller.poll() is None
        site.run("resume", "red")
        rest, _ = caller.communicate(timeout=LIMIT_S)
        assert rest.split()[-1] == b"40"
        assert caller.returncode == 0


def test_another_projects_job_does_not_exist_and_the_trail_names_every_command(site: Site) -> None:
    site.run("project", "create", "other")
    made, _ = site.run("token", "create", "eve", "--project", "other", "-o", "json")
    token = json.loads(made)["token"]
    _, why = site.run("exec", "red", "--", "cat", "/stolen", code=5, token=token)
    assert b"job red does not exist" in why
    site.run("exec", "red", "--", "sh", "-c", "echo recorded; exit 9", code=9)
    shown, _ = site.run("audit", "show", "-o", "json")
    records = json.loads(shown)["items"]
    stolen = next(r for r in records if "cat /stolen" in r["detail"])
    assert (stolen["actor"], stolen["outcome"]) == ("eve", 404)
    began = next(r for r in records if "echo recorded" in r["detail"])
    assert (began["action"], began["outcome"], began["object"]) == ("prepare_exec", 201, "red")

    def ended() -> bool:
        shown, _ = site.run("audit", "show", "-o", "json")
        ident = began["detail"].partition(":")[0]
        return any(f"{ident}: exit code 9 " in r["detail"] for r in json.loads(shown)["items"])

    until(ended)


def test_a_storm_of_output_waits_for_its_reader(site: Site) -> None:
    word = uuid.uuid4().hex
    command = [*CLI, "exec", "red", "--", "sh", "-c", "while :; do echo $0$0$0$0; done", word]
    before = resident(site.pids)
    with subprocess.Popen(command, env=site.env, stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        left = STORM_BYTES
        while left > 0:
            left -= len(caller.stdout.read(2**20))
        assert resident(site.pids) - before < SPARE_BYTES
        caller.stdout.close()
        assert caller.wait(timeout=LIMIT_S) == 141
    until(lambda: not runs(word))
