"""Provides the base image: from a registry if one responds, else from the host's distribution."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import docker
import requests
import structlog

from testbed.engine import LABEL
from testbed.image.errors import ImageError

REGISTRY_BASE = "python:3.11-slim-bookworm"

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
    bootstrap(client, cache, local, _PACKAGES)
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


def bootstrap(client: docker.DockerClient, cache: Path, tag: str, packages: str) -> None:
    """Make ``tag`` with mmdebstrap from the host's own distribution. Raises ImageError."""
    sources = distribution_sources()
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        listing, root = Path(scratch) / "sources.list", Path(scratch) / "root.tar"
        listing.write_text("\n".join(sources) + "\n", encoding="utf-8")
        _log.info("bootstrapping base image", tag=tag)
        command = [
            *("mmdebstrap", "--variant=minbase", f"--include={packages}"),
            *("--aptopt", 'Acquire::Retries "5"'),
            *(codename(), str(root), str(listing)),
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
        raise ImageError("apt knows no index of the distribution", "apt-get update")
    return sources
