"""Builds the trainer image once and names it by its content.

The tag is a hash of all inputs, so an existing tag is never stale and a second call costs
one lookup. The build itself has no network access: wheels are downloaded on this machine
with its own pip configuration and pinned by hash.
"""

from __future__ import annotations

import ast
import fcntl
import hashlib
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import docker
import requests
import structlog

from testbed.engine import EngineInfo
from testbed.image.base import ensure_base, python_version
from testbed.image.errors import ImageError

REPOSITORY = "ll-trainer"
CACHE = Path("/var/lib/lightloom")

_HERE = Path(__file__).parent
ROOT = _HERE.parent.parent
_DOCKERFILE = _HERE / "Dockerfile"
_REQUIREMENTS = _HERE / "requirements.txt"
_ENTRIES = (
    Path("testbed/trainer.py"),
    Path("examples/tf_vgg16.py"),
    Path("examples/keras_backup.py"),
)
_BUILD_TIMEOUT_S = 900
_DOWNLOAD_TIMEOUT_S = 1800
_LONGEST_HOLDER = 200
"""Characters of what a holder of a lock wrote that are shown."""
_RETRIES = "10"
"""Retries of one request to the package index, with increasing pauses."""

_log = structlog.get_logger("testbed.image")


def ensure_image(engine: EngineInfo, cache: Path = CACHE) -> str:
    """Return the trainer image's tag; build the image if ``engine`` lacks it.

    The first build takes about two minutes, a build after a change of the trainer only
    seconds, because the engine's build cache has the layers below. Raises ImageError.
    """
    sources = trainer_sources(ROOT, *_ENTRIES)
    tag = image_tag([_DOCKERFILE, _REQUIREMENTS, *(ROOT / source for source in sources)])
    try:
        with (
            closing(docker.DockerClient(engine.host_url, timeout=_BUILD_TIMEOUT_S)) as client,
            lacking(client, tag, cache) as missing,
        ):
            if missing:
                base = ensure_base(client, engine.host_url, cache)
                _build(client, base, cache, tag, sources)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise ImageError(f"the engine refused: {error}", "check the Docker Engine") from error
    return tag


def image_tag(files: Iterable[Path], repository: str = REPOSITORY) -> str:
    """Return an image tag that depends on the names and bytes of the input files."""
    digest = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.name}\0{len(data)}\0".encode())
        digest.update(data)
    return f"{repository}:{digest.hexdigest()[:12]}"


def trainer_sources(root: Path, *entries: Path) -> tuple[Path, ...]:
    """Return the entry files and all repository files that they import, transitively, sorted."""
    found: set[Path] = set()
    todo = list(entries)
    while todo:
        path = todo.pop()
        if path in found or not (root / path).is_file():
            continue
        found.add(path)
        todo.extend(parent / "__init__.py" for parent in path.parents if parent != Path())
        for module in _imports((root / path).read_text(encoding="utf-8")):
            base = Path(*module.split("."))
            todo.extend([base.with_suffix(".py"), base / "__init__.py"])
    return tuple(sorted(found))


def _imports(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _build(
    client: docker.DockerClient, base: str, cache: Path, tag: str, sources: Iterable[Path]
) -> None:
    wheels = _ensure_wheels(cache, python_version(client, base))
    _log.info("building image", tag=tag, base=base)
    files = {"Dockerfile": _DOCKERFILE, "requirements.txt": _REQUIREMENTS, "wheels": wheels}
    files |= {f"lightloom/{source}": ROOT / source for source in sources}
    build(client, cache, tag, base, files)
    _log.info("image built", tag=tag)


def build(
    client: docker.DockerClient, cache: Path, tag: str, base: str, files: Mapping[str, Path]
) -> None:
    """Build ``tag`` on ``base`` without network; ``files`` is the context. Raises ImageError."""
    with tempfile.TemporaryFile(dir=cache) as context:
        with tarfile.open(fileobj=context, mode="w") as tar:
            for name, path in files.items():
                tar.add(path, name)
        context.seek(0)
        stream = client.api.build(
            fileobj=context,
            custom_context=True,
            tag=tag,
            buildargs={"BASE": base},
            labels={"lightloom.content": tag.partition(":")[2]},
            network_mode="none",
            rm=True,
            forcerm=True,
            decode=True,
        )
        for message in stream:
            if "error" in message:
                raise ImageError(message["error"].strip(), "see the build's output above")
            sys.stderr.write(message.get("stream", ""))


def _ensure_wheels(cache: Path, python: str) -> Path:
    """Return a directory with every wheel of the requirements for Python ``python`` (``3.11``)."""
    digest = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]
    target = cache / "wheels" / f"{digest}-py{python}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    _log.info("downloading wheels", into=str(target), python=python)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        partial = Path(scratch) / "wheels"
        command = [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
            *("--retries", _RETRIES, "--python-version", python, "--require-hashes"),
            *("--requirement", str(_REQUIREMENTS), "--dest", str(partial)),
        ]
        try:
            subprocess.run(command, check=True, timeout=_DOWNLOAD_TIMEOUT_S, stdout=sys.stderr)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise ImageError(
                "the trainer's wheels could not be downloaded",
                "check this machine's pip configuration: `pip config list`",
            ) from error
        partial.rename(target)
    return target


@contextmanager
def lacking(client: docker.DockerClient, tag: str, cache: Path) -> Iterator[bool]:
    """Return whether the engine lacks an image; then no other process builds one meanwhile."""
    if client.images.list(name=tag):
        yield False
        return
    with locked(cache / "image.lock"):
        yield not client.images.list(name=tag)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Allow one builder at a time on this machine; report which one it waits for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            _log.warning("waiting for another build", by=handle.read(_LONGEST_HOLDER))
            fcntl.flock(handle, fcntl.LOCK_EX)
        handle.truncate(0)
        handle.write(f"process {os.getpid()}, since {time.ctime()}: {shlex.join(sys.argv)}")
        handle.flush()
        yield
