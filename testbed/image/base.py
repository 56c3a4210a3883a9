"""Provides the base image: from a registry if one responds, else from the host's distribution."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import docker
import requests
import structlog

from testbed.engine import LABEL
from testbed.image.errors import ImageError

REGISTRY_BASE = "python:3.11-slim-bookworm"

NEWER_DEBIAN = "trixie"
"""Has what the host's own release is too old for, such as PyTorch with ``async_save``."""
DEBIAN_MIRROR = "http://deb.debian.org/debian"

_DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGES = "python3,python3-venv,iproute2,iputils-ping,ethtool,libstdc++6,libgomp1,ca-certificates"
_PULL_TIMEOUT_S = 15
_BOOTSTRAP_TIMEOUT_S = 1200
_ADMIN_TIMEOUT_S = 30

_log = structlog.get_logger("testbed.image")


def ensure_base(client: docker.DockerClient, url: str, cache: Path) -> str:
    """Return the tag of a base image with Python; make it if the engine at ``url`` lacks one."""
    local = f"ll-base:{codename()}"
    for tag in (REGISTRY_BASE, local):
        if client.images.list(name=tag):
            return tag
    if _pull(url, REGISTRY_BASE):
        return REGISTRY_BASE
    bootstrap(client, cache, local, _PACKAGES, own_release())
    return local


def python_version(client: docker.DockerClient, base: str) -> str:
    """Return the minor version of ``base``'s python3, such as ``3.11``."""
    output = client.containers.run(
        base,
        ["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        network_mode="none",
        remove=True,
        name=f"ll-python-version-{os.getpid()}",
        labels={LABEL: "image"},
    )
    return str(output.decode().strip())


def codename() -> str:
    """Return the host distribution's release, such as ``bookworm``."""
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "")


def _pull(url: str, tag: str) -> bool:
    """Pull ``tag``; return False when no registry responds within the timeout."""
    try:
        with closing(docker.DockerClient(url, timeout=_PULL_TIMEOUT_S)) as impatient:
            _log.info("pulling base image", tag=tag)
            impatient.images.pull(tag)
    except (docker.errors.DockerException, requests.RequestException) as error:
        _log.info("no registry responds, using the host's distribution", reason=str(error)[:200])
        return False
    return True


@dataclass(slots=True, frozen=True)
class Release:
    """A release of a distribution, and where its packages are: apt's one-line entries."""

    name: str
    sources: tuple[str, ...]


def bootstrap(
    client: docker.DockerClient, cache: Path, tag: str, packages: str, release: Release
) -> None:
    """Make ``tag`` with mmdebstrap from a release. Raises ImageError."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        listing, root = Path(scratch) / "sources.list", Path(scratch) / "root.tar"
        listing.write_text("\n".join(release.sources) + "\n", encoding="utf-8")
        _log.info("bootstrapping base image", tag=tag)
        command = [
            *("mmdebstrap", "--variant=minbase", f"--include={packages}"),
            *("--aptopt", 'Acquire::Retries "5"'),
            *(release.name, str(root), str(listing)),
        ]
        try:
            subprocess.run(command, check=True, timeout=_BOOTSTRAP_TIMEOUT_S, stdout=sys.stderr)
        except FileNotFoundError:
            raise ImageError("mmdebstrap is not installed", "apt-get install mmdebstrap") from None
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise ImageError(
                "the base image could not be bootstrapped",
                "check that this machine can install packages: `apt-get update`",
            ) from error
        repository, _, version = tag.partition(":")
        client.api.import_image(str(root), repository=repository, tag=version)


def own_release() -> Release:
    """Return the host's own. Raises ImageError."""
    return Release(codename(), distribution_sources())


def newer_debian() -> Release:
    """Return :data:`NEWER_DEBIAN`, by this host's mirror if it is a Debian. Raises ImageError."""
    mirror = DEBIAN_MIRROR
    if platform.freedesktop_os_release().get("ID", "").lower() == "debian":
        named = f" {codename()} main"
        main = next((s for s in distribution_sources() if s.endswith(named)), "")
        mirror = main.removeprefix("deb ").removesuffix(named) or mirror
    entry = f"deb [signed-by={_DEBIAN_KEYS}] {mirror} {NEWER_DEBIAN} main"
    return Release(NEWER_DEBIAN, (entry,))


def distribution_sources() -> tuple[str, ...]:
    """Return the host's apt sources of its own distribution, as one-line entries."""
    origin = platform.freedesktop_os_release().get("ID", "").lower()
    command = [
        *("apt-get", "indextargets"),
        *("--format", "$(ORIGIN)|deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"),
    ]
    try:
        listed = subprocess.run(
            command, check=True, timeout=_ADMIN_TIMEOUT_S, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ImageError(
            "apt's sources could not be read", "run this on Debian or Ubuntu"
        ) from error
    entries = (line.partition("|") for line in listed.splitlines())
    sources = tuple(dict.fromkeys(e for o, _, e in entries if o.lower() == origin))
    if not sources:
        raise ImageError("apt has no index of the distribution", "apt-get update")
    return sources
