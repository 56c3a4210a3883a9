"""Reading a machine, and steps that need no root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from console.cli.errors import CliError
from console.cli.install import machine
from console.cli.install.values import (
    File,
    InstalledFolder,
    StateDirectory,
    Step,
    StepAction,
    SystemAccount,
)

FILE = File("/etc/lightloom/site.yaml", b"new", 0o640)
KEYS = InstalledFolder("/etc/lightloom/tls", 0o750, "me", readers="me")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc/lightloom/tls").mkdir(parents=True)
    passwd = f"root:x:0:0::/root:/bin/sh\nbad line\nme:x:{os.getuid()}:{os.getgid()}::/:/bin/sh\n"
    (tmp_path / "etc/passwd").write_text(passwd)
    return tmp_path


def test_it_reads_what_is_there(root: Path) -> None:
    (root / "etc/lightloom/tls/key.pem").touch()
    (root / "run/lightloom/agent-srv0").mkdir(parents=True)
    found = machine.read_machine(root, [FILE, KEYS, StateDirectory("/run/lightloom/agent-*")])
    assert set(found.seen) == {KEYS.path}
    assert found.seen[KEYS.path].entries == ("key.pem",)
    assert found.seen[KEYS.path].strangers == ()
    assert found.accounts["me"] == (os.getuid(), os.getgid())
    assert found.matches == {"/run/lightloom/agent-*": ("/run/lightloom/agent-srv0",)}
    assert not found.systemd  # a root below another folder is not run by this machine's


def test_it_names_what_an_account_cannot_read_and_follows_no_link(root: Path) -> None:
    keys = root / "etc/lightloom/tls"
    (keys / "key.pem").touch()
    (keys / "link").symlink_to("/etc/shadow")
    other = InstalledFolder(KEYS.path, KEYS.mode, readers="no-such-group")
    assert machine.read_machine(root, [other]).seen[KEYS.path].strangers == ("key.pem",)


@pytest.mark.parametrize("part", [FILE, InstalledFolder(FILE.path)])
def test_a_path_of_another_kind_is_refused_by_name(
    root: Path, part: File | InstalledFolder
) -> None:
    target = root / "etc/lightloom/site.yaml"
    target.mkdir() if isinstance(part, File) else target.touch()
    with pytest.raises(CliError, match="is not a f") as told:
        machine.read_machine(root, [part])
    assert told.value.code == "conflict"


def test_a_file_of_the_site_may_be_a_link(root: Path) -> None:
    (root / "kept.yaml").write_bytes(b"ours")
    (root / "etc/lightloom/site.yaml").symlink_to(root / "kept.yaml")
    found = machine.read_machine(root, [File(FILE.path, b"", ours=False)])
    assert found.seen[FILE.path].content == b"ours"
    with pytest.raises(CliError):
        machine.read_machine(root, [FILE])


def test_a_file_is_replaced_at_once_and_nothing_is_left_beside_it(root: Path) -> None:
    path = root / "etc/lightloom/site.yaml"
    path.write_bytes(b"old")
    machine.perform(root, [Step(StepAction.REPLACED, FILE, FILE.path)])
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)
    assert sorted(p.name for p in path.parent.iterdir()) == ["site.yaml", "tls"]


def test_a_failed_step_names_its_object_and_a_repetition_continues(root: Path) -> None:
    (root / "etc/systemd").touch()  # where a folder is needed
    unit = File("/etc/systemd/system/x.service", b"[Unit]\n")
    steps = [Step(StepAction.CREATED, f, f.path) for f in (FILE, unit)]
    with pytest.raises(CliError, match="systemd/system") as told:
        machine.perform(root, steps)
    assert "run the same command again" in told.value.hint
    (root / "etc/systemd").unlink()
    machine.perform(root, steps)
    assert (root / "etc/systemd/system/x.service").read_bytes() == b"[Unit]\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_what_is_mounted_in_a_folder_is_unmounted_before_its_removal(root: Path) -> None:
    """Checkpoints in memory are mounts, also on each other; a disk keeps what it has."""
    state = StateDirectory("/var/lib/lightloom/checkpoints")
    folder, disk = machine.place(root, state.path), root / "disk"
    memory = folder / "red.0123abcd" / "gpu 0"
    for path in (memory, folder / "disk", disk):
        path.mkdir(parents=True)
    (disk / "kept").touch()
    for _ in range(2):
        subprocess.run(["mount", "-t", "tmpfs", "ll-test", str(memory)], check=True)
    (memory / "live").mkdir()
    (memory / "live" / "step-1").write_bytes(b"x")
    subprocess.run(["mount", "--bind", str(disk), str(folder / "disk")], check=True)
    beside = root / "var/lib/lightloom/checkpoints-of-others"
    beside.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "ll-test", str(beside)], check=True)
    try:
        with (memory / "live" / "step-1").open():  # a reader ends later
            machine.perform(root, [Step(StepAction.REMOVED, state, state.path)])
        assert not folder.exists()
        assert (disk / "kept").exists()
        assert os.path.ismount(beside)
        assert machine.read_machine(root, [state]).matches == {state.path: ()}
    finally:
        subprocess.run(["umount", str(beside)], check=True)


def test_steps_without_a_change_do_nothing(root: Path) -> None:
    machine.perform(root, [Step(StepAction.KEPT, FILE, FILE.path)])
    assert not (root / "etc/lightloom/site.yaml").exists()


def test_a_missing_tool_is_named_with_its_package(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(root))
    account = SystemAccount("lightloom", "u lightloom -")
    with pytest.raises(CliError, match="systemd-sysusers is not installed") as told:
        machine.perform(root, [Step(StepAction.CREATED, account, account.name)])
    assert told.value.hint == "apt-get install systemd"


@pytest.mark.parametrize(
    ("root", "scripts", "inside"),
    [
        ("/", "/opt/lightloom/bin", "/opt/lightloom/bin"),
        ("/srv/image", "/srv/image/opt/lightloom/bin", "/opt/lightloom/bin"),
        ("/srv/image", "/usr/local/bin", "/usr/local/bin"),
    ],
)
def test_units_name_the_program_as_their_machine_does(root: str, scripts: str, inside: str) -> None:
    assert machine.program_folder(Path(root), Path(scripts)) == inside


@pytest.mark.parametrize("scripts", ["/root/venv/bin", "/home/ann/venv/bin"])
def test_a_program_in_a_home_directory_is_refused(scripts: str) -> None:
    with pytest.raises(CliError, match="home directory") as told:
        machine.program_folder(Path("/"), Path(scripts))
    assert "/opt/lightloom" in told.value.hint


@pytest.fixture
def program(root: Path) -> Path:
    """A virtual environment of an image, and the Python that it links to."""
    for folder in ("opt/lightloom/bin", "opt/lightloom/lib", "usr/bin", "usr/lib/python3.11"):
        (root / folder).mkdir(parents=True)
    (root / "opt/lightloom/pyvenv.cfg").write_text("home = /usr/bin\n")
    (root / "opt/lightloom/lib/code.py").touch()
    (root / "usr/lib/python3.11/os.py").touch()
    (root / "usr/bin/python3.11").touch(0o755)
    (root / "usr/bin/python3").symlink_to("python3.11")
    (root / "opt/lightloom/bin/python3").symlink_to("/usr/bin/python3")
    script = root / "opt/lightloom/bin/lightloom"
    script.write_text("#!/opt/lightloom/bin/python3\n")
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or "bin" in path.parts else 0o644)
    return root


def test_a_program_that_all_may_run_is_accepted(program: Path) -> None:
    machine.check_program(program, "/opt/lightloom/bin", "nobody-yet")
    pycache = program / "opt/lightloom/lib/__pycache__"
    pycache.mkdir(0o700)
    machine.check_program(program, "/opt/lightloom/bin", "nobody-yet")
    machine.check_program(program, "/no/such/bin", "nobody-yet")


@pytest.mark.parametrize(
    ("closed", "mode"),
    [
        ("opt", 0o700),
        ("opt/lightloom", 0o700),
        ("opt/lightloom/bin/lightloom", 0o700),
        ("opt/lightloom/lib", 0o700),
        ("opt/lightloom/lib/code.py", 0o600),
        ("usr/bin", 0o700),
        ("usr/bin/python3.11", 0o700),
        ("usr/lib/python3.11/os.py", 0o600),
    ],
)
def test_what_the_account_cannot_read_is_named(program: Path, closed: str, mode: int) -> None:
    """An environment that was made under umask 077, for example."""
    (program / closed).chmod(mode)
    with pytest.raises(CliError, match="cannot be used by the account someone") as told:
        machine.check_program(program, "/opt/lightloom/bin", "someone")
    assert told.value.object == f"/{closed}"
    assert "umask 022" in told.value.hint
    machine.check_program(program, "/opt/lightloom/bin", "me")  # who owns it


@pytest.mark.parametrize(
    "target", ["/home/user/.pyenv/bin/python3", "../../../home/user/.pyenv/bin/python3"]
)
def test_an_interpreter_in_a_home_directory_is_refused(program: Path, target: str) -> None:
    (program / "home/user/.pyenv/bin").mkdir(parents=True)
    (program / "home/user/.pyenv/bin/python3").touch(0o755)
    link = program / "opt/lightloom/bin/python3"
    link.unlink()
    link.symlink_to(target)
    with pytest.raises(CliError, match="is in a home directory") as told:
        machine.check_program(program, "/opt/lightloom/bin", "me")
    assert told.value.object == "/home"
    assert "/opt/lightloom/bin/python3 needs it" in told.value.message
