"""Unpacks an image to a folder, for programs that run without a container engine."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import cast

import docker
import requests
import structlog

from testbed.engine import LABEL, EngineInfo
from testbed.image.build import CACHE, locked
from testbed.image.errors import ImageError

ENVIRONMENT = "image-env"
"""File in the unpacked root: the image's environment as lines of shell."""

_PREFIX = "unpacked-"
_TIMEOUT_S = 900

_log = structlog.get_logger("testbed.image")


def ensure_unpacked(engine: EngineInfo, tag: str, cache: Path = CACHE) -> Path:
    """Return the root file system of an image; unpack it if it is missing, and remove older ones.

    It takes 1.5 GB and half a minute for the trainer's. Call it only while no other program uses
    an unpacked image. Raises ImageError.
    """
    root = cache / f"{_PREFIX}{tag.replace(':', '-')}"
    with locked(cache / "unpacked.lock"):
        if root.is_dir():
            return root
        for old in cache.glob(f"{_PREFIX}*"):
            shutil.rmtree(old, ignore_errors=True)
        _log.info("unpacking image", tag=tag)
        try:
            with tempfile.TemporaryDirectory(dir=cache, prefix="unpacking-") as scratch:
                made = Path(scratch) / "root"
                made.mkdir()
                _export(engine, tag, made)
                made.rename(root)
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise ImageError(
                f"the image {tag} could not be unpacked: {error}",
                f"check the Docker Engine, and the free space of {cache}",
            ) from error
    return root


def _export(engine: EngineInfo, tag: str, root: Path) -> None:
    with closing(docker.DockerClient(engine.host_url, timeout=_TIMEOUT_S)) as client:
        container = client.containers.create(
            tag, ["true"], network_mode="none", labels={LABEL: "image"}
        )
        try:
            _unpack(cast("Iterable[bytes]", container.export()), root)  # its stub has str
        finally:
            container.remove(force=True)
        given = client.images.get(tag).attrs["Config"]["Env"] or []
    (root / ENVIRONMENT).write_text(environment_lines(given), encoding="utf-8")


def environment_lines(given: Iterable[str]) -> str:
    """Return an image's ``NAME=value`` texts as lines of shell that export them."""
    pairs = (text.partition("=") for text in given)
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, _, value in pairs)


def _unpack(stream: Iterable[bytes], root: Path) -> None:
    command = ["tar", "--extract", "--numeric-owner", "--directory", str(root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as tar:
        if tar.stdin is None:
            raise OSError("tar has no input")
        for chunk in stream:
            tar.stdin.write(chunk)
    if tar.returncode:
        raise OSError(f"tar ended with {tar.returncode}")
