"""The machine: reads what is installed on it, and performs the steps of a plan.

``root`` is the folder of the installed machine, ``/`` for this one. Files are written beside their
place and renamed, so that an interruption leaves the old or the new one, and a repetition of the
same verb continues.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from console.cli.errors import CliError
from console.cli.install.values import (
    ROOT_USER,
    File,
    InstalledFolder,
    Machine,
    Part,
    PathStatus,
    StateDirectory,
    Step,
    StepAction,
    SystemAccount,
    SystemdUnit,
)

_TOOL_S = 60
_MOST_FILES = 10_000
"""Files below a folder of secrets; more are a mistake, and are not walked."""
_FOLDER_MODE = 0o750
_MOST_LINKS = 40
_MOST_LINE = 256
_MOST_PROGRAM_FILES = 500_000
_RUN = stat.S_IROTH | stat.S_IXOTH
_HOMES = ("/home", "/root", "/run/user")
_SYSTEMD = Path("/run/systemd/system")
_THIS_MACHINE = Path("/")
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")
"""How the kernel writes spaces and the like there (proc_pid_mountinfo(5))."""
_PACKAGES = {"userdel": "passwd", "umount": "mount"}
"""Debian's packages of programs that are not of systemd."""


def place(root: Path, path: str) -> Path:
    """Return where ``path`` of the installed machine is on this one."""
    return root / path.removeprefix("/")


def program_folder(root: Path, scripts: Path) -> str:
    """Return the folder ``scripts`` of this program as the installed machine names it.

    CliError for one in a home directory, which is closed to the controller's account.
    """
    inside = Path("/") / scripts.relative_to(root if scripts.is_relative_to(root) else "/")
    if any(inside.is_relative_to(home) for home in _HOMES):
        raise CliError(
            "invalid",
            f"{inside} is in a home directory, where a unit cannot run it",
            object=str(inside),
            hint="install the wheel in an environment of its own, and run its command:"
            " python3 -m venv /opt/lightloom",
        )
    return str(inside)


def check_program(root: Path, bin_dir: str, account: str) -> None:
    """Raise CliError unless an account, which may not exist yet, can run this program.

    It needs the interpreter wherever links lead to it, the environment, and Python's own library.
    """
    uid, gid = _accounts(root).get(account, (-1, -1))
    reader = _Reader(root, account, uid, gid)
    program = f"{bin_dir}/lightloom"
    reader.reach(program)
    interpreter = reader.reach(_interpreter(place(root, program)) or f"{bin_dir}/python3")
    environment = Path(bin_dir).parent
    if place(root, f"{environment}/pyvenv.cfg").exists():
        reader.walk(environment)
    if interpreter is not None:
        library = place(root, str(interpreter.parent.parent)) / "lib"
        for found in sorted(library.glob("python3*")):
            reader.walk(interpreter.parent.parent / "lib" / found.name)


def _interpreter(program: Path) -> str:
    """Return the interpreter in the first line of a script; empty without one."""
    try:
        with program.open("rb") as file:
            line = file.readline(_MOST_LINE)
    except OSError:
        return ""
    words = line.removeprefix(b"#!").split() if line.startswith(b"#!/") else []
    return os.fsdecode(words[0]) if words and b"python" in words[0] else ""


class _Reader:
    """An account that reads files of the installed machine, by their owner, group and mode."""

    def __init__(self, root: Path, account: str, uid: int, gid: int) -> None:
        self._root = root
        self._account = account
        self._uid = uid
        self._gid = gid

    def reach(self, path: str) -> Path | None:
        """Follow a path and its links to a file that can be read and run; None without one."""
        found: list[tuple[Path, os.stat_result]] = []
        at, left, links = Path("/"), list(Path(path).parts[1:]), 0
        while left:
            name = left.pop(0)
            at = at.parent if name == ".." else at / name
            try:
                status = place(self._root, str(at)).lstat()
            except FileNotFoundError:
                return None
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    return None
                target = place(self._root, str(at)).readlink()
                at = Path("/") if target.is_absolute() else at.parent
                left = [*target.parts[target.is_absolute() :], *left]
            else:
                found.append((at, status))
        for at, status in found:
            if any(at.is_relative_to(home) for home in _HOMES):
                raise self._closed(at, "is in a home directory", path)
            needed = stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else _RUN
            self._require(at, status, needed, path)
        return at

    def walk(self, folder: Path) -> None:
        """Check all files below a folder. Bytecode need not be readable, links are left alone."""
        count = 0
        for at, folders, names in os.walk(place(self._root, str(folder))):
            folders[:] = [name for name in folders if name != "__pycache__"]
            count += len(names)
            if count > _MOST_PROGRAM_FILES:
                raise CliError("conflict", f"more than {count} files", object=str(folder))
            inside = folder / Path(at).relative_to(place(self._root, str(folder)))
            self._require(inside, Path(at).lstat(), _RUN, str(folder))
            for name in names:
                status = (Path(at) / name).lstat()
                if stat.S_ISREG(status.st_mode):
                    self._require(inside / name, status, stat.S_IROTH, str(folder))

    def _require(self, path: Path, status: os.stat_result, needed: int, asked: str) -> None:
        shift = 6 if status.st_uid == self._uid else 3 if status.st_gid == self._gid else 0
        if (status.st_mode >> shift) & needed != needed:
            why = f"cannot be used by the account {self._account}"
            raise self._closed(
                path, f"{why}: its mode is {stat.S_IMODE(status.st_mode):04o}", asked
            )

    def _closed(self, path: Path, why: str, asked: str) -> CliError:
        needs = "" if str(path) == asked else f"; {asked} needs it"
        return CliError(
            "invalid",
            f"{path} {why}{needs}",
            object=str(path),
            hint="umask 022, then /usr/bin/python3 -m venv /opt/lightloom, and install there again;"
            " or chmod -R go+rX what is closed",
        )


def read_machine(root: Path, parts: Sequence[Part]) -> Machine:
    """Read what the machine has of these parts. CliError when something cannot be read."""
    accounts = _accounts(root)
    seen: dict[str, PathStatus] = {}
    matches: dict[str, tuple[str, ...]] = {}
    for part in parts:
        if isinstance(part, SystemAccount | SystemdUnit):
            continue
        try:
            if isinstance(part, StateDirectory):
                matches[part.path] = _matches(root, part.path)
            elif (found := _seen(place(root, part.path), part, accounts)) is not None:
                seen[part.path] = found
        except OSError as error:
            raise _failed(part.path, error) from error
    systemd = root == _THIS_MACHINE and _SYSTEMD.is_dir()
    units = [part.name for part in parts if isinstance(part, SystemdUnit)] if systemd else []
    return Machine(seen, accounts, systemd, frozenset(filter(_is_outdated, units)), matches)


def _is_outdated(unit: str) -> bool:
    return _tool("systemctl", "show", "-p", "NeedDaemonReload", "--value", unit) == "yes"


def _seen(
    path: Path, part: File | InstalledFolder, accounts: dict[str, tuple[int, int]]
) -> PathStatus | None:
    try:
        # A file of the site may be a link to where the site keeps it.
        status = path.stat() if isinstance(part, File) and not part.ours else path.lstat()
    except FileNotFoundError:
        return None
    wanted, kind = (stat.S_ISREG, "file") if isinstance(part, File) else (stat.S_ISDIR, "folder")
    if not wanted(status.st_mode):
        raise CliError("conflict", f"{path} is not a {kind}", object=part.path, hint="move it away")
    mode = stat.S_IMODE(status.st_mode)
    if isinstance(part, File):
        return PathStatus(mode, status.st_uid, status.st_gid, path.read_bytes())
    strangers: tuple[str, ...] = ()
    if part.readers is not None:
        uid, gid = accounts.get(part.readers, (-1, -1))
        strangers = tuple(str(p.relative_to(path)) for p, _ in _strangers(path, uid, gid))
    entries = tuple(sorted(entry.name for entry in path.iterdir()))
    return PathStatus(mode, status.st_uid, status.st_gid, None, strangers, entries)


def _strangers(folder: Path, uid: int, gid: int) -> Iterator[tuple[Path, bool]]:
    """Yield what an account cannot read below a folder of root's, and whether it is a folder.

    Links and devices are left alone. CliError for a folder with too many files.
    """
    count = 0
    for at, folders, names in os.walk(folder):
        count += len(names)
        if count > _MOST_FILES:
            raise CliError("conflict", f"more than {_MOST_FILES} files", object=str(folder))
        for name in folders:
            status = (Path(at) / name).lstat()
            right = (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
            if stat.S_ISDIR(status.st_mode) and right != (_FOLDER_MODE, 0, gid):
                yield Path(at) / name, True
        for name in names:
            status = (Path(at) / name).lstat()
            if stat.S_ISREG(status.st_mode) and (status.st_uid, status.st_gid) != (uid, gid):
                yield Path(at) / name, False


def _accounts(root: Path) -> dict[str, tuple[int, int]]:
    try:
        lines = place(root, "/etc/passwd").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    fields = [line.split(":") for line in lines]
    return {f[0]: (int(f[2]), int(f[3])) for f in fields if len(f) == 7 and f[2].isdecimal()}


def _matches(root: Path, pattern: str) -> tuple[str, ...]:
    found = root.glob(pattern.removeprefix("/"))
    return tuple(sorted(f"/{path.relative_to(root)}" for path in found if not path.is_symlink()))


def perform(root: Path, steps: Sequence[Step]) -> None:
    """Perform the steps in their order. CliError names the one that failed.

    What was done stays; the same verb continues there.
    """
    for step in steps:
        if not step.action.changes:
            continue
        try:
            _perform(root, step)
        except OSError as error:
            raise _failed(step.name, error) from error


def _perform(root: Path, step: Step) -> None:
    part, path = step.part, place(root, step.name)
    match part, step.action:
        case SystemdUnit(), StepAction.RELOADED:
            _tool("systemctl", "daemon-reload")
        case SystemdUnit(), _:
            _stop(root, part)
        case SystemAccount(), StepAction.CREATED:
            _tool("systemd-sysusers", f"--root={root}", "--inline", part.line)
        case SystemAccount(), _:
            _tool("userdel", "--root", str(root), part.name)
        case ((File() | InstalledFolder() | StateDirectory()), StepAction.REMOVED):
            _remove(path)
        case File(), StepAction.CORRECTED:
            os.chown(path, 0, 0, follow_symlinks=False)
            path.chmod(part.mode)
        case File(), _:
            _write(path, part.content, part.mode)
        case InstalledFolder(), _:
            _make(root, path, part)


def _remove(path: Path) -> None:
    """Remove a file or a folder; what is mounted in the folder is unmounted first.

    So what is in memory goes with its mount, and what another disk has stays there.
    """
    if not path.is_dir():
        path.unlink()
        return
    for mount in _mounts_in(path.resolve()):
        # Lazily: containers that run have folders of it, and what is open ends later.
        _tool("umount", "--lazy", mount)
    shutil.rmtree(path)


def _mounts_in(folder: Path) -> list[str]:
    """Return the paths of what is mounted below a folder, the last mounted first."""
    lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    paths = [_ESCAPE.sub(lambda one: chr(int(one[1], 8)), line.split(" ")[4]) for line in lines]
    return [path for path in reversed(paths) if path.startswith(f"{folder}/")]


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise


def _make(root: Path, path: Path, part: InstalledFolder) -> None:
    accounts = _accounts(root) | {ROOT_USER: (0, 0)}
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, 0, accounts[part.group][1], follow_symlinks=False)
    path.chmod(part.mode)
    if part.readers is None:
        return
    uid, gid = accounts[part.readers]
    for below, is_folder in list(_strangers(path, uid, gid)):
        os.chown(below, 0 if is_folder else uid, gid, follow_symlinks=False)
        if is_folder:
            below.chmod(_FOLDER_MODE)


def _stop(root: Path, unit: SystemdUnit) -> None:
    if root != _THIS_MACHINE:
        _tool("systemctl", f"--root={root}", "disable", unit.name)
    elif _SYSTEMD.is_dir():
        _tool("systemctl", "disable", "--now", unit.name)
    else:
        _tool("systemctl", "disable", unit.name)


def _tool(*command: str) -> str:
    """Return what a program of the system prints.

    CliError when it is missing, fails, or takes a minute.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except FileNotFoundError:
        package = _PACKAGES.get(command[0], "systemd")
        raise CliError(
            "unavailable",
            f"{command[0]} is not installed",
            object=command[0],
            hint=f"apt-get install {package}",
        ) from None
    except subprocess.TimeoutExpired:
        raise CliError(
            "timeout", f"no answer within {_TOOL_S} s", object=" ".join(command)
        ) from None
    if done.returncode != 0:
        raise CliError("failed", done.stderr.strip()[-500:], object=" ".join(command))
    return done.stdout.strip()


def _failed(name: str, error: OSError) -> CliError:
    return CliError(
        "failed",
        f"{name}: {error.strerror}",
        object=name,
        hint="correct that, then run the same command again: it continues",
    )
