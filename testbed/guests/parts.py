"""Builds a guest's kernel and initramfs of a few megabytes, cached by content.

The kernel is Debian's. The initramfs has busybox, the modules in load order and what the recipe
adds, without systemd, udev or disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from testbed.guests import packages
from testbed.guests.errors import GuestError
from testbed.image.build import locked

CACHE = Path("/var/lib/lightloom/guests")
LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_CALL_TIMEOUT_S = 120

_log = structlog.get_logger("testbed.guests")


@dataclass(slots=True, frozen=True)
class Recipe:
    """What a kind of guest is made of."""

    name: str
    """The folder of its cache."""
    tools: tuple[str, ...]
    """Debian packages besides the kernel and busybox."""
    modules: tuple[str, ...]
    """Kernel modules of the initramfs in dependency order."""
    init: Path
    """The script that runs as process 1."""
    fill: Callable[[Path, Path], None] = lambda root, tree: None
    """Copies files from the unpacked packages (first) to the initramfs' tree (second)."""
    keeps_root: bool = False
    """Keep the unpacked packages beside the boot files: the guest mounts them."""


@dataclass(slots=True, frozen=True)
class GuestFiles:
    """The two files from which a guest boots, and the packages that it may mount."""

    kernel: Path
    initramfs: Path
    root: Path


def ensure(recipe: Recipe, cache: Path = CACHE) -> GuestFiles:
    """Return the parts of a recipe's guests, built if not cached. Raises GuestError."""
    folder = cache / recipe.name
    folder.mkdir(parents=True, exist_ok=True)
    wanted = packages.names(recipe.tools)
    target = folder / _digest(recipe, packages.files(wanted))
    parts = GuestFiles(target / "vmlinuz", target / "initramfs", target / "root")
    with locked(folder / "lock"):
        if not target.is_dir():
            _log.info("making a guest's kernel and initramfs", into=str(target))
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                made = Path(scratch) / "made"
                made.mkdir()
                root = Path(scratch) / "root"
                packages.unpack(wanted, root)
                _make(recipe, root, Path(scratch) / "tree", made)
                if recipe.keeps_root:
                    shutil.rmtree(root / "debs", ignore_errors=True)
                    root.rename(made / "root")
                for old in (entry for entry in folder.iterdir() if _is_stale(entry, scratch)):
                    shutil.rmtree(old)
                made.rename(target)
    return parts


def install(recipe: Recipe) -> GuestFiles:
    """Install QEMU if it is missing, and build the parts. Idempotent. Raises GuestError."""
    if shutil.which(packages.QEMU) is None:
        packages.refresh()
        packages.install_qemu()
    try:
        return ensure(recipe)
    except GuestError:  # the package lists are missing or outdated
        packages.refresh()
        return ensure(recipe)


def _is_stale(entry: Path, scratch: str) -> bool:
    """Whether this is an earlier kernel and initramfs, which no running guest needs."""
    return entry.is_dir() and str(entry) != scratch


def _digest(recipe: Recipe, files: tuple[str, ...]) -> str:
    digest = hashlib.sha256("\n".join([*files, *recipe.modules]).encode())
    digest.update(recipe.init.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:12]


def _make(recipe: Recipe, root: Path, tree: Path, made: Path) -> None:
    """Copy the guest's files from the unpacked packages to ``tree``, and pack it."""
    for folder in ("bin", "modules", "usr/bin", LIBRARIES):
        (tree / folder).mkdir(parents=True)
    (tree / "lib").symlink_to("usr/lib")
    (tree / "lib64").symlink_to("usr/lib/x86_64-linux-gnu")
    shutil.copy(recipe.init, tree / "init")
    (tree / "init").chmod(0o755)
    shutil.copy(one(root, "bin/busybox"), tree / "bin")
    (tree / "bin/sh").symlink_to("busybox")
    for module in recipe.modules:
        shutil.copy(one(root, f"lib/modules/**/{module}.ko"), tree / "modules")
    recipe.fill(root, tree)
    shutil.copy(one(root, "boot/vmlinuz-*"), made / "vmlinuz")
    _index_modules(root)
    _pack(root, tree, made / "initramfs")


def one(root: Path, pattern: str) -> Path:
    """Return the newest match of a pattern in the unpacked packages. Raises GuestError."""
    found = sorted(root.glob(pattern))
    if not found:
        raise GuestError(f"the packages contain no {pattern}", "run this on Debian 12, amd64")
    return found[-1]


def needed(root: Path, programs: Sequence[Path]) -> list[Path]:
    """Return the libraries of all programs; the packages' own precede the host's."""
    own = [root / "lib/x86_64-linux-gnu", root / LIBRARIES]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, own))}
    found: dict[str, Path] = {}
    for program in programs:
        listed = _call(["ldd", str(program)], env=env)
        found |= {Path(w).name: Path(w) for w in listed.split() if w.startswith("/")}
    return list(found.values())


def _index_modules(root: Path) -> None:
    """Write the kernel's modules.dep, which only the package's own installation would write."""
    version = one(root, "lib/modules/*").name
    _call([str(one(root, "bin/busybox")), "depmod", "-b", str(root), version])


def _pack(root: Path, tree: Path, target: Path) -> None:
    """Write the tree as a compressed newc archive (Documentation/driver-api/early-userspace)."""
    busybox = one(root, "bin/busybox")
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
        raise GuestError(f"{command[0]}: {error}", "check the free space of the cache") from error
    return done.stdout
