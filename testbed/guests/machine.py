"""Runs a QEMU guest (software emulation, no disk) and commands in it, over its second serial port.

The process has the rack's marker in its environment, so that ``lightloom testbed down`` ends it
even if the command that started it has died.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from testbed.guests.errors import GuestError
from testbed.guests.packages import QEMU, QEMU_PACKAGE
from testbed.guests.parts import GuestFiles
from testbed.rack.process import Process, ProgramSpec, end_all, spawn, wait_ready

BOOT_TIMEOUT_S = 120.0
"""Time limit for software emulation on a loaded machine; some 5 s are usual."""
START_TIMEOUT_S = 60.0
GRACE_S = 2.0
_READY = b"ll-ready\n"
_DONE = b"ll-done "


class GuestMachine:
    """A running guest. Methods raise GuestError."""

    def __init__(self, name: str, process: Process, control: socket.socket) -> None:
        self.name = name
        self._process = process
        self._control = control
        self._unread = b""

    @classmethod
    def start(
        cls,
        name: str,
        argv: Sequence[str],
        control: Path,
        *,
        logs: Path,
        mark: str,
        netns: str | None = None,
    ) -> GuestMachine:
        """Start a guest with a command line of :func:`command_line`; :meth:`await_boot` is next.

        ``mark`` is the run directory whose ``testbed down`` also ends the guest.
        """
        if shutil.which(QEMU) is None:
            raise GuestError(f"{QEMU} is not installed", f"apt-get install {QEMU_PACKAGE}")
        process = spawn(ProgramSpec(name, tuple(argv), netns=netns), logs, mark)
        try:
            return cls(name, process, connected(process, control))
        except BaseException:
            end_all([(process.pid, process.ticks)], grace_s=GRACE_S)
            raise

    @property
    def pid(self) -> int:
        """Return QEMU's process id."""
        return self._process.pid

    def await_boot(self) -> None:
        """Wait until the guest accepts commands."""
        self._read_until(_READY, time.monotonic() + BOOT_TIMEOUT_S, "boot")

    def run(self, command: str, *, timeout_s: float) -> tuple[int, str]:
        """Run a shell command in the guest; return its exit status and its output."""
        deadline = time.monotonic() + timeout_s
        try:
            self._control.sendall(command.encode() + b"\n")
        except OSError as error:
            raise self._silent(f"is gone: {error}") from error
        output = self._read_until(_DONE, deadline, command)
        status = self._read_until(b"\n", deadline, command)
        return int(status), output.decode(errors="replace").replace("\r\n", "\n")

    def close(self) -> None:
        """End the guest."""
        self._control.close()
        end_all([(self._process.pid, self._process.ticks)], grace_s=GRACE_S)

    def _read_until(self, mark: bytes, deadline: float, what: str) -> bytes:
        while mark not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._silent(f"did not finish in time: {what}")
            self._control.settimeout(left)
            try:
                data = self._control.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise self._silent(f"is gone: {error}") from error
            if not data:
                raise self._silent("has ended")
            self._unread += data
        found, _, self._unread = self._unread.partition(mark)
        return found

    def _silent(self, message: str) -> GuestError:
        console = Path(self._process.log).with_name(f"{self.name}-console.log")
        return GuestError(f"guest {self.name} {message}", f"see {console}")


def connected(process: Process, path: Path) -> socket.socket:
    """Return a connection to the socket that ``process`` opens. Raises RackError otherwise.

    The socket's file exists a moment before the socket accepts connections.
    """
    found: list[socket.socket] = []

    def connects() -> bool:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            caller.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            caller.close()
            return False
        found.append(caller)
        return True

    wait_ready(process, connects, timeout_s=START_TIMEOUT_S)
    return found[0]


def command_line(
    name: str, parts: GuestFiles, *, memory_mib: int, variables: str, control: Path, console: Path
) -> tuple[str, ...]:
    """Return QEMU's command line without devices.

    ``variables`` go to process 1 as its environment (NAME=VALUE ...); ``control`` is the socket for
    commands.
    """
    return (
        *(QEMU, "-name", name, "-machine", "pc,accel=tcg", "-cpu", "max", "-smp", "1"),
        *("-m", str(memory_mib), "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-kernel", str(parts.kernel), "-initrd", str(parts.initramfs)),
        *("-append", f"console=ttyS0 quiet panic=-1 {variables}", "-serial", f"file:{console}"),
        *("-serial", f"unix:{control},server=on,wait=off"),
    )
