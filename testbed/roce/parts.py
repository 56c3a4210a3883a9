"""Builds the guests' kernel and initramfs of a few megabytes, cached by content.

The kernel is Debian's. The initramfs has busybox, perftest, the rdma tool, their libraries, the
soft-RoCE provider, and the modules in load order, without systemd, udev or disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from testbed.roce import packages
from testbed.roce.errors import RoceError

CACHE = Path("/var/lib/lightloom/roce")
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("failover", "net_failover", "virtio_net", "udp_tunnel", "ip6_udp_tunnel", "configfs"),
    "crc32_generic",  # without it: "rdma_rxe: failed to add eth0"
    *("ib_core", "ib_uverbs", "rdma_rxe", "ib_cm", "iw_cm", "rdma_cm", "rdma_ucm"),
)
"""Kernel modules in dependency order."""

_INIT = Path(__file__).with_name("init.sh")
_PROVIDERS = "libibverbs/librxe-*.so"
_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_CALL_TIMEOUT_S = 120

_log = structlog.get_logger("testbed.roce")


@dataclass(slots=True, frozen=True)
class Parts:
    """The two files from which a guest boots."""

    kernel: Path
    initramfs: Path


def ensure(cache: Path = CACHE) -> Parts:
    """Return the guests' kernel and initramfs, built if not cached. Raises RoceError."""
    cache.mkdir(parents=True, exist_ok=True)
    wanted = packages.names()
    target = cache / _digest(packages.files(wanted))
    parts = Parts(target / "vmlinuz", target / "initramfs")
    with _locked(cache / "lock"):
        if not target.is_dir():
            _log.info("making the guests' kernel and initramfs", into=str(target))
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                packages.unpack(wanted, Path(scratch) / "root")
                _make(Path(scratch) / "root", Path(scratch) / "tree", made)
                for old in (entry for entry in cache.iterdir() if _is_stale(entry, scratch)):
                    shutil.rmtree(old)
                made.rename(target)
    return parts


def _is_stale(entry: Path, scratch: str) -> bool:
    """Whether this is an earlier kernel and initramfs, which no running guest needs."""
    return entry.is_dir() and str(entry) != scratch


def _digest(files: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\n".join([*files, *MODULES]).encode())
    digest.update(_INIT.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:12]


def _make(root: Path, tree: Path, made: Path) -> None:
    """Copy the guest's files from the unpacked packages to ``tree``, and pack it."""
    for folder in ("bin", "modules", "usr/bin", _LIBRARIES, "etc/libibverbs.d"):
        (tree / folder).mkdir(parents=True)
    (tree / "lib").symlink_to("usr/lib")
    (tree / "lib64").symlink_to("usr/lib/x86_64-linux-gnu")
    shutil.copy(_INIT, tree / "init")
    (tree / "init").chmod(0o755)
    shutil.copy(_one(root, "bin/busybox"), tree / "bin")
    (tree / "bin/sh").symlink_to("busybox")
    for module in MODULES:
        shutil.copy(_one(root, f"lib/modules/**/{module}.ko"), tree / "modules")
    rdma = shutil.which("rdma")
    if rdma is None:
        raise RoceError("this machine lacks the rdma tool", "apt-get install iproute2")
    programs = [_one(root, "usr/bin/ib_write_bw"), Path(rdma)]
    for program in programs:
        shutil.copy(program, tree / "usr/bin")
    provider = _one(root, f"{_LIBRARIES}/{_PROVIDERS}")
    (tree / _LIBRARIES / "libibverbs").mkdir()
    shutil.copy(provider, tree / _LIBRARIES / "libibverbs")
    shutil.copy(_one(root, "etc/libibverbs.d/rxe.driver"), tree / "etc/libibverbs.d")
    for library in _needed(root, [*programs, provider]):
        shutil.copy(library, tree / _LIBRARIES / library.name)
    shutil.copy(_one(root, "boot/vmlinuz-*"), made / "vmlinuz")
    _pack(root, tree, made / "initramfs")


def _one(root: Path, pattern: str) -> Path:
    found = sorted(root.glob(pattern))
    if not found:
        raise RoceError(f"the packages contain no {pattern}", "run this on Debian 12, amd64")
    return found[-1]


def _needed(root: Path, programs: list[Path]) -> list[Path]:
    """Return the libraries of all programs; the packages' own precede the host's."""
    own = [root / "lib/x86_64-linux-gnu", root / _LIBRARIES]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, own))}
    found: dict[str, Path] = {}
    for program in programs:
        listed = _call(["ldd", str(program)], env=env)
        found |= {Path(w).name: Path(w) for w in listed.split() if w.startswith("/")}
    return list(found.values())


def _pack(root: Path, tree: Path, target: Path) -> None:
    """Write the tree as a compressed newc archive (Documentation/driver-api/early-userspace)."""
    busybox = _one(root, "bin/busybox")
    command = f"find . | {busybox} cpio -o -H newc | gzip -1 > {target}"
    _call(["sh", "-ec", command], folder=tree)


def _call(
    command: list[str], *, folder: Path | None = None, env: dict[str, str] | None = None
) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_CALL_TIMEOUT_S,
            check=True,
            cwd=folder,
            env=env,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RoceError(f"{command[0]}: {error}", "check the free space of the cache") from error
    return done.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
