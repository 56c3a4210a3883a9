"""The secrets of jobs: files ``PROJECT/NAME`` in the site's directory, read when a job starts.

A value goes from its file into the call that starts the ranks, and nowhere else.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from base.pools import Pool
from container_mgr.ranks.policy import MAX_ENV_VALUE_BYTES, MAX_SECRETS_BYTES
from controller.base.errors import ServiceError
from sitefile import names

MAX_LISTED = 10_000
"""Secrets that one answer lists."""
READ_TIMEOUT_S = 5.0

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A FIFO would block without O_NONBLOCK.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PRIVATE = "root or the controller's user owns it, with mode 0600 (a file) or 0700 (a directory)"
_Found = TypeVar("_Found")


class SecretFolder:
    """The site's secret directory. Every call takes a few seconds at most."""

    def __init__(self, directory: Path | None) -> None:
        """Without a ``directory``, no job has secrets."""
        self._directory = directory
        self._pool = Pool("secrets", 2)

    async def check(self, project: str, secrets: Iterable[str]) -> None:
        """Refuse (ServiceError) secrets of a project that are absent or not well kept."""
        wanted = sorted(set(secrets))
        if wanted:
            directory = self._given(f"secret/{project}/{wanted[0]}")
            await self._run(lambda: _check(directory, project, wanted))

    async def values(self, project: str, secrets: Mapping[str, str]) -> dict[str, str]:
        """Return the present values of a job's secret variables; ``secrets`` names them.

        ServiceError when one of them is absent, not well kept, too long or not a text.
        """
        if not secrets:
            return {}
        directory = self._given(f"project/{project}")
        wanted = sorted(set(secrets.values()))
        found = await self._run(lambda: {name: _value(directory, project, name) for name in wanted})
        total = sum(len(found[name].encode()) for name in secrets.values())
        if total > MAX_SECRETS_BYTES:
            raise ServiceError(
                "invalid",
                f"the job's secrets have {total} bytes together, the limit is {MAX_SECRETS_BYTES}",
                object=f"project/{project}",
                hint="put long values into one file of the image, encrypted, and its key here",
            )
        return {variable: found[name] for variable, name in secrets.items()}

    async def names(self) -> list[tuple[str, str]]:
        """Return project and name of the secrets, sorted; empty without a directory.

        ServiceError when the directory cannot be read.
        """
        directory = self._directory
        return [] if directory is None else await self._run(lambda: _listed(directory))

    def _given(self, what: str) -> Path:
        if self._directory is None:
            raise ServiceError(
                "invalid",
                "the site has no secrets",
                object=what,
                hint="an operator gives the site file a section `secrets: {directory: ...}`",
            )
        return self._directory

    async def _run(self, read: Callable[[], _Found]) -> _Found:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._pool.run(read)
        except TimeoutError:
            raise ServiceError(
                "unavailable",
                f"the secret directory did not answer in {READ_TIMEOUT_S:g} s",
                object="secrets",
                hint="check the disk of the controller's machine",
            ) from None


def _check(directory: Path, project: str, wanted: Iterable[str]) -> None:
    for name in wanted:
        with _opened(directory, project, name):
            pass


def _value(directory: Path, project: str, name: str) -> str:
    with _opened(directory, project, name) as file:
        data = os.read(file, MAX_ENV_VALUE_BYTES + 2)
    data = data.removesuffix(b"\n")
    what = f"secret/{project}/{name}"
    if len(data) > MAX_ENV_VALUE_BYTES:
        fix = f"a secret has at most {MAX_ENV_VALUE_BYTES} bytes"
        raise ServiceError("invalid", f"secret {name} is too long", object=what, hint=fix)
    try:
        value = data.decode()
    except UnicodeDecodeError:
        value = "\0"
    if "\0" in value:
        fix = "encode it, for example with base64"
        raise ServiceError("invalid", f"secret {name} is not a text", object=what, hint=fix)
    return value


def _listed(directory: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    try:
        with os.scandir(directory) as projects:
            for project in projects:
                if re.fullmatch(names.PROJECT, project.name) and project.is_dir(
                    follow_symlinks=False
                ):
                    found += _of_project(project)
                if len(found) >= MAX_LISTED:
                    break
    except OSError as error:
        raise ServiceError(
            "failed",
            f"the secret directory cannot be read: {error.strerror}",
            object="secrets",
            hint="see secrets.directory of the site file",
        ) from None
    return sorted(found[:MAX_LISTED])


def _of_project(project: os.DirEntry[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    with os.scandir(project.path) as files:
        for file in files:
            if re.fullmatch(names.SECRET_NAME, file.name) and file.is_file(follow_symlinks=False):
                found.append((project.name, file.name))
            if len(found) >= MAX_LISTED:
                break
    return found


@contextmanager
def _opened(directory: Path, project: str, name: str) -> Iterator[int]:
    """Open a secret's file below its project's folder, without following a link.

    ServiceError when it is absent, or another account could have written or read it.
    """
    what = f"secret/{project}/{name}"
    opened: list[int] = []
    try:
        opened.append(os.open(directory, _DIRECTORY))
        _require_private(os.fstat(opened[-1]), 0o022, what, "the secret directory")
        opened.append(os.open(project, _DIRECTORY, dir_fd=opened[-1]))
        _require_private(os.fstat(opened[-1]), 0o022, what, f"the project's folder {project}")
        opened.append(os.open(name, _FILE, dir_fd=opened[-1]))
        facts = os.fstat(opened[-1])
        if not stat.S_ISREG(facts.st_mode):
            fix = "put the value into a plain file"
            raise ServiceError("invalid", f"{name} is not a file", object=what, hint=fix)
        _require_private(facts, 0o077, what, name)
        yield opened[-1]
    except OSError as error:
        raise _refusal(error, what, project, name) from None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _require_private(facts: os.stat_result, forbidden: int, what: str, path: str) -> None:
    if facts.st_uid not in (0, os.geteuid()):
        text = f"{path} belongs to another user"
    elif facts.st_mode & forbidden:
        text = f"{path} is open to other users"
    else:
        return
    raise ServiceError("invalid", text, object=what, hint=_PRIVATE)


def _refusal(error: OSError, what: str, project: str, name: str) -> ServiceError:
    if error.errno == errno.ENOENT:
        return ServiceError(
            "invalid",
            f"project {project} has no secret {name}",
            object=what,
            hint=f"an operator puts it into {project}/{name} of the site's secret directory,"
            " mode 0600",
        )
    if error.errno in (errno.ELOOP, errno.ENOTDIR):
        text, fix = "it is behind a symbolic link", "put a plain file into a plain directory"
    else:
        text, fix = f"it cannot be read: {error.strerror}", _PRIVATE
    return ServiceError("invalid", f"secret {name}: {text}", object=what, hint=fix)
