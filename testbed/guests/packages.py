"""Fetches Debian packages with the host's own apt and unpacks them, without installing them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.guests.errors import GuestError

META_KERNEL = "linux-image-amd64"
"""Debian's own kernel: unlike the cloud kernel it has rdma_rxe."""
QEMU, QEMU_PACKAGE = "qemu-system-x86_64", "qemu-system-x86"
APT_TIMEOUT_S = 900
_LOCK_WAIT = ("-o", "DPkg::Lock::Timeout=300")


def refresh() -> None:
    """Update apt's package lists."""
    _apt("update", "-qq")


def install_qemu() -> None:
    """Install QEMU on this machine."""
    _apt("install", "-qq", "-y", "--no-install-recommends", *_LOCK_WAIT, QEMU_PACKAGE)


def names(tools: Sequence[str]) -> tuple[str, ...]:
    """Return the packages of a guest with ``tools``, including the current kernel's."""
    listed = _call(["apt-cache", "show", "--no-all-versions", META_KERNEL], META_KERNEL)
    found = re.search(r"^Depends:.*?\b(linux-image-\d\S*)", listed, re.MULTILINE)
    if found is None:
        raise GuestError(
            f"apt has no package {META_KERNEL}",
            "guests need Debian's packages: run this on Debian, after `apt-get update`",
        )
    return (found[1], "busybox-static", *tools)


def files(packages: Sequence[str]) -> tuple[str, ...]:
    """Return the packages' file names, which contain their versions."""
    listed = _call(["apt-get", "download", "--print-uris", *packages], "apt-get")
    return tuple(sorted(line.split(" ")[1] for line in listed.splitlines() if " " in line))


def unpack(packages: Sequence[str], into: Path) -> None:
    """Download the packages and unpack them all below ``into``."""
    debs = into / "debs"
    debs.mkdir(parents=True)
    # apt downloads as its own user if that user may write; the folder is the caller's.
    _call(
        ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *packages], "apt-get", debs
    )
    for deb in sorted(debs.glob("*.deb")):
        _call(["dpkg-deb", "-x", str(deb), str(into)], deb.name)


def _apt(*arguments: str) -> None:
    _call(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *arguments], "apt-get")


def _call(command: list[str], what: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=APT_TIMEOUT_S, check=False, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GuestError(f"{what}: {error}", "guests need apt and dpkg") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise GuestError(
            f"{what}: {' '.join(last)}", "check that this machine can install packages"
        )
    return done.stdout
