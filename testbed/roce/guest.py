"""Runs a QEMU guest with a soft-RoCE NIC in place of a container.

QEMU runs inside the container's network namespace and creates its tap there, so that the tap ends
with it.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from testbed.guests import parts
from testbed.guests.errors import GuestError
from testbed.guests.machine import GuestMachine, command_line
from testbed.guests.parts import LIBRARIES, GuestFiles, Recipe, one
from testbed.rack import record
from testbed.rack.layout import MTU
from testbed.roce import splice

MEMORY_MIB = 256
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("failover", "net_failover", "virtio_net", "udp_tunnel", "ip6_udp_tunnel", "configfs"),
    "crc32_generic",  # without it: "rdma_rxe: failed to add eth0"
    *("ib_core", "ib_uverbs", "rdma_rxe", "ib_cm", "iw_cm", "rdma_cm", "rdma_ucm"),
)
"""Kernel modules in dependency order."""
_TOOLS = (
    *("perftest", "ibverbs-providers", "libibverbs1", "librdmacm1"),
    *("libibumad3", "libnl-3-200", "libnl-route-3-200", "libpci3"),
)
_PROVIDERS = "libibverbs/librxe-*.so"


@dataclass(slots=True, frozen=True)
class GuestAddress:
    """The guest's addresses on the data network, which are its endpoint's."""

    ip: str
    prefix_len: int
    mac: str


class Guest:
    """A running guest in a container's network namespace. Methods raise GuestError."""

    def __init__(self, netns: str, machine: GuestMachine) -> None:
        self.netns = netns
        self._machine = machine

    @classmethod
    def start(
        cls, name: str, netns: str, address: GuestAddress, boot: GuestFiles, run_dir: Path
    ) -> Guest:
        """Boot a guest in ``netns`` and join it to the NIC there; :meth:`await_boot` comes next."""
        control, logs = run_dir / f"{name}.sock", record.logs(run_dir)
        argv = nic_command_line(name, address, boot, control, logs / f"{name}-console.log")
        machine = GuestMachine.start(name, argv, control, logs=logs, mark=str(run_dir), netns=netns)
        try:
            splice.join(netns)
        except BaseException:
            machine.close()
            raise
        return cls(netns, machine)

    @property
    def pid(self) -> int:
        """Return QEMU's process id."""
        return self._machine.pid

    def await_boot(self) -> None:
        """Wait until the guest accepts commands."""
        self._machine.await_boot()

    def run(self, command: str, *, timeout_s: float) -> tuple[int, str]:
        """Run a shell command in the guest; return its exit status and its output."""
        return self._machine.run(command, timeout_s=timeout_s)

    def close(self) -> None:
        """End the guest and return the NIC to its container."""
        with contextlib.suppress(Exception):  # its namespace may be gone with its job
            splice.part(self.netns)
        self._machine.close()


def nic_command_line(
    name: str, address: GuestAddress, boot: GuestFiles, control: Path, console: Path
) -> tuple[str, ...]:
    """Return QEMU's command line with a NIC; ``control`` is the socket for guest commands."""
    variables = (
        f"LL_IP={address.ip}/{address.prefix_len} LL_MTU={MTU} LL_MODULES={','.join(MODULES)}"
    )
    return (
        *command_line(
            name,
            boot,
            memory_mib=MEMORY_MIB,
            variables=variables,
            control=control,
            console=console,
        ),
        *("-netdev", f"tap,id=fiber,ifname={splice.TAP},script=no,downscript=no"),
        *("-device", f"virtio-net-pci,netdev=fiber,mac={address.mac},romfile="),
    )


def _fill(root: Path, tree: Path) -> None:
    """Add perftest, the rdma tool, the soft-RoCE provider and their libraries."""
    rdma = shutil.which("rdma")
    if rdma is None:
        raise GuestError("this machine lacks the rdma tool", "apt-get install iproute2")
    programs = [one(root, "usr/bin/ib_write_bw"), Path(rdma)]
    for program in programs:
        shutil.copy(program, tree / "usr/bin")
    provider = one(root, f"{LIBRARIES}/{_PROVIDERS}")
    (tree / LIBRARIES / "libibverbs").mkdir()
    (tree / "etc/libibverbs.d").mkdir(parents=True)
    shutil.copy(provider, tree / LIBRARIES / "libibverbs")
    shutil.copy(one(root, "etc/libibverbs.d/rxe.driver"), tree / "etc/libibverbs.d")
    for library in parts.needed(root, [*programs, provider]):
        shutil.copy(library, tree / LIBRARIES / library.name)


RECIPE = Recipe("roce", _TOOLS, MODULES, Path(__file__).with_name("init.sh"), _fill)
