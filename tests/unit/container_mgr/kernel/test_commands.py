"""The processes of a command, in cgroups made of plain files."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from container_mgr.kernel.commands import CommandGroup, CommandGroups, waiting
from container_mgr.kernel.freezer import Freezer
from container_mgr.values import Container
from tests.integration.waiting import until
from tests.unit.container_mgr.specs import RUNNING


@dataclass
class Machine(CommandGroups):
    """Cgroups below a directory."""

    proc: Path
    groups: Path
    made: list[CommandGroup] = field(default_factory=list)

    def make(self, container: Container, token: str) -> CommandGroup:
        group = self.groups / f"ll-exec-{token}"
        group.mkdir(parents=True)
        (group / "cgroup.procs").touch()
        self.made.append(CommandGroup(Freezer(1, group), self.proc))
        return self.made[-1]

    def show(self, pid: int, group: str) -> None:
        entry = self.proc / str(pid)
        entry.mkdir(parents=True, exist_ok=True)
        (entry / "cgroup").write_text(f"0::/ll-test/{group}\n")
        if not (entry / "stat").is_symlink():
            (entry / "stat").symlink_to(f"/proc/{pid}/stat")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc", tmp_path / "groups")


@pytest.fixture
def shell(machine: Machine) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(waiting(["sleep", "600"])) as process:
        machine.show(process.pid, RUNNING.id)
        yield process
        process.kill()


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_command_begins_in_its_group(machine: Machine, shell: subprocess.Popen[bytes]) -> None:
    group = until(lambda: machine.begin(RUNNING, "t", shell.pid), bool, limit_s=30.0)
    assert group is not None
    assert (group.freezer.group / "cgroup.procs").read_text() == str(shell.pid)
    until(lambda: command_line(shell.pid), lambda line: line == b"sleep\x00600\x00", limit_s=30.0)


def test_another_containers_process_does_not_begin(
    machine: Machine, shell: subprocess.Popen[bytes]
) -> None:
    machine.show(shell.pid, "c2")
    with pytest.raises(ProcessLookupError):
        machine.begin(RUNNING, "t", shell.pid)
    machine.refuse(RUNNING, shell.pid)
    assert machine.made == []
    assert shell.poll() is None


def test_a_command_that_waits_is_ended(machine: Machine, shell: subprocess.Popen[bytes]) -> None:
    machine.refuse(RUNNING, shell.pid)
    assert shell.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGKILL])
def test_only_processes_of_the_group_get_the_signal(
    machine: Machine, shell: subprocess.Popen[bytes], signum: signal.Signals
) -> None:
    group = machine.make(RUNNING, "t")
    (group.freezer.group / "freezer.state").write_text("THAWED")
    group.add(shell.pid)
    assert not group.end(signum)
    assert shell.poll() is None  # its number was another process's when the list was read
    machine.show(shell.pid, f"{RUNNING.id}/ll-exec-t")
    assert not group.end(signum)
    if signum is signal.SIGHUP:
        shell.send_signal(signal.SIGCONT)
    assert shell.wait(timeout=30) == -signum
    assert (group.freezer.group / "freezer.state").read_text() == "THAWED"


def test_a_group_without_processes_is_removed(machine: Machine) -> None:
    group = machine.make(RUNNING, "t")
    (group.freezer.group / "cgroup.procs").unlink()  # as the kernel does with the directory
    assert group.end(signal.SIGHUP)
    assert group.end(signal.SIGHUP)
    assert not group.freezer.group.exists()
