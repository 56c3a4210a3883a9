"""The root file system of Slurm's programs: Debian's packages of a newer release, made once."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import structlog

from testbed.image.base import newer_debian
from testbed.image.build import CACHE, locked
from testbed.image.errors import ImageError
from testbed.rack.errors import RackError

PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "slurmrestd", "slurm-wlm-jwt-plugin"),
    *("curl", "python3-minimal", "iproute2"),
)
FOLDERS = ("lightloom/image", "srv", "etc/slurm")
EMPTY = ("srv/gpu0", "etc/hosts")
"""Files that something is mounted on, or that stand in for devices."""
_TIMEOUT_S = 1200

_log = structlog.get_logger("testbed.rack.slurm")


def ensure_root(cache: Path = CACHE) -> Path:
    """Return the root file system; make it if it is missing, which takes half a minute.

    Raises RackError(unavailable) when Debian's packages cannot be had.
    """
    try:
        release = newer_debian()
    except ImageError as error:
        raise _unavailable(str(error), error.hint) from error
    key = hashlib.sha256(
        "\n".join((release.name, *PACKAGES, *FOLDERS, *EMPTY)).encode()
    ).hexdigest()[:12]
    root = cache / f"slurm-{release.name}-{key}"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "slurm.lock"):
        if root.is_dir():
            return root
        with tempfile.TemporaryDirectory(dir=cache, prefix="slurm-new-") as scratch:
            made = Path(scratch) / "root"
            listing = Path(scratch) / "sources.list"
            listing.write_text("\n".join(release.sources) + "\n", encoding="utf-8")
            _bootstrap(release.name, made, listing)
            for folder in FOLDERS:
                (made / folder).mkdir(parents=True, exist_ok=True)
            for name in EMPTY:
                (made / name).touch()
            made.rename(root)
    return root


def _bootstrap(release: str, root: Path, listing: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        raise _unavailable("mmdebstrap is not installed", "apt-get install mmdebstrap")
    command = [
        *("mmdebstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"),
        *("--aptopt", 'Acquire::Retries "5"', "--format=directory"),
        *(release, str(root), str(listing)),
    ]
    _log.info("unpacking Slurm", release=release)
    try:
        subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdout=sys.stderr)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise _unavailable(
            "Slurm's packages could not be unpacked",
            "check that this machine can install packages: `apt-get update`",
        ) from error


def _unavailable(message: str, hint: str) -> RackError:
    return RackError("unavailable", message, object="slurm", hint=hint)
