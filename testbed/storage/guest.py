"""Runs a QEMU guest with the kernel parts of storage that this machine's kernel may lack.

The guest has Debian's kernel: project quotas of ext4 and XFS, an NFS server and an NFS client. It
sees this machine's files read-only and the checkout at ``PROJECT``, so the project's own code runs
in it unchanged; only /tmp, /run, /srv, /mnt and /var/lib are writable, and empty. Loop devices give
it disks.
"""

from __future__ import annotations

from pathlib import Path

import testbed
from testbed.guests.machine import GuestMachine, command_line
from testbed.guests.parts import GuestFiles, Recipe

MEMORY_MIB = 768
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("9pnet", "9pnet_virtio", "netfs", "fscache", "9p"),
)
"""Kernel modules in dependency order; the others are loaded from the packages."""
_TOOLS = (
    *("e2fsprogs", "libinih1", "liburcu8", "libwrap0", "nfs-common", "nfs-kernel-server"),
    *("quota", "xfsprogs"),
)
_INIT = Path(__file__).with_name("init.sh")
RECIPE = Recipe("storage", _TOOLS, MODULES, _INIT, keeps_root=True)
PROJECT = "/run/project"
"""Where the guest has the checkout, with its virtual environment."""
LIBRARIES = "/run/tools/usr/lib/x86_64-linux-gnu:/run/tools/lib/x86_64-linux-gnu"
"""For LD_LIBRARY_PATH of the packages' own programs."""


def start(name: str, boot: GuestFiles, run_dir: Path) -> GuestMachine:
    """Start a guest; its logs and socket are below ``run_dir``. Raises GuestError."""
    run_dir.mkdir(parents=True, exist_ok=True)
    control, console = run_dir / f"{name}.sock", run_dir / f"{name}-console.log"
    variables = f"LL_MODULES={','.join(MODULES)}"
    argv = command_line(
        name, boot, memory_mib=MEMORY_MIB, variables=variables, control=control, console=console
    )
    checkout = Path(testbed.__file__).resolve().parents[1]
    for tag, path in (("host", Path("/")), ("tools", boot.root), ("project", checkout)):
        options = "security_model=none,readonly=on,multidevs=remap"
        argv += ("-virtfs", f"local,path={path},mount_tag={tag},{options}")
    return GuestMachine.start(name, argv, control, logs=run_dir, mark=str(run_dir))
