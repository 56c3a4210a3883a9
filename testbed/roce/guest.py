"""Runs a QEMU guest in place of a container: software emulation (TCG), no disk, a soft-RoCE NIC.

QEMU runs inside the container's network namespace and creates its tap there, so that the tap ends
with it; its environment has the rack's marker, so that ``lightloom testbed down`` ends it even if
the command that started it has died.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.rack import record
from testbed.rack.layout import MTU
from testbed.rack.process import Process, Program, end_all, spawn, wait_ready
from testbed.roce import splice
from testbed.roce.errors import RoceError
from testbed.roce.parts import MODULES, Parts

BOOT_TIMEOUT_S = 120.0
"""Time limit for software emulation on a loaded machine; some 5 s are usual."""
START_TIMEOUT_S = 60.0
MEMORY_MIB = 256
GRACE_S = 2.0
QEMU = "qemu-system-x86_64"
_READY = b"ll-ready\n"
_DONE = b"ll-done "


@dataclass(slots=True, frozen=True)
class Address:
    """The guest's addresses on the data network, taken from its endpoint."""

    ip: str
    prefix_len: int
    mac: str


class Guest:
    """A running guest. Methods raise RoceError."""

    def __init__(self, name: str, netns: str, process: Process, control: socket.socket) -> None:
        self.name = name
        self.netns = netns
        self._process = process
        self._control = control
        self._unread = b""

    @classmethod
    def start(cls, name: str, netns: str, address: Address, parts: Parts, run_dir: Path) -> Guest:
        """Boot a guest in ``netns`` and join it to the NIC there; :meth:`await_boot` comes next."""
        if shutil.which(QEMU) is None:
            raise RoceError(
                f"{QEMU} is not installed", "make roce, or apt-get install qemu-system-x86"
            )
        path = run_dir / f"{name}.sock"
        logs = record.logs(run_dir)
        argv = command_line(name, address, parts, path, logs / f"{name}-console.log")
        process = spawn(Program(name, argv, netns=netns), logs, str(run_dir))
        try:
            control = connected(process, path)
            splice.join(netns)
        except BaseException:
            end_all([(process.pid, process.ticks)], grace_s=GRACE_S)
            raise
        return cls(name, netns, process, control)

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
        """End the guest and return the NIC to its container."""
        with contextlib.suppress(Exception):  # its namespace may be gone with its job
            splice.part(self.netns)
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

    def _silent(self, message: str) -> RoceError:
        console = Path(self._process.log).with_name(f"{self.name}-console.log")
        return RoceError(f"guest {self.name} {message}", f"see {console}")


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
    name: str, address: Address, parts: Parts, control: Path, console: Path
) -> tuple[str, ...]:
    """Return QEMU's command line; ``control`` is the socket for guest commands."""
    kernel = (
        f"console=ttyS0 quiet panic=-1 LL_IP={address.ip}/{address.prefix_len} "
        f"LL_MTU={MTU} LL_MODULES={','.join(MODULES)}"
    )
    return (
        *(QEMU, "-name", name, "-machine", "pc,accel=tcg", "-cpu", "max", "-smp", "1"),
        *("-m", str(MEMORY_MIB), "-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none", "-kernel", str(parts.kernel), "-initrd", str(parts.initramfs)),
        *("-append", kernel, "-serial", f"file:{console}"),
        *("-serial", f"unix:{control},server=on,wait=off"),
        *("-netdev", f"tap,id=fiber,ifname={splice.TAP},script=no,downscript=no"),
        *("-device", f"virtio-net-pci,netdev=fiber,mac={address.mac},romfile="),
    )
