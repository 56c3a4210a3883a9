"""The set-up script on a machine of which every program is a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path("testbed/setup/setup.sh")
TOOLS = ("ovs-vswitchd", "dockerd", "mmdebstrap", "ip", "tc", "ethtool", "ping", "cc")
MORE = ("prometheus", "promtool", "docker-registry", "chromium", "fio", "curl", "systemd-nspawn")
BASIC = "cat chmod cp cut dirname env find grep ln mkdir rm sha256sum sh sleep sort tail touch tr"
COUNTED = 'n=$(cat "$0.n" 2>/dev/null || echo 0); n=$((n + 1)); echo $n >"$0.n"'


class Machine:
    """A checkout with the script and nothing else, and a PATH of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.root = folder / "bin", folder / "checkout"
        self.venv = folder / "venv"
        self.bin.mkdir()
        (self.root / SCRIPT).parent.mkdir(parents=True)
        shutil.copy(ROOT / SCRIPT, self.root / SCRIPT)
        for name in ("requirements.lock", "setup.cfg"):
            (self.root / name).write_text("")
        for tool in BASIC.split():
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)
        for tool in (*TOOLS, *MORE):
            self.program(tool, "exit 0")
        self.program("id", "echo 0")
        self.program("apt-get", "exit 1")
        # Makes an environment whose python knows pip and, once pip has installed, lightloom.
        self.program(
            "python3",
            'case "$*" in *"-m venv"*) mkdir -p "$4/bin"; cp "$0-in-venv" "$4/bin/python";; esac',
        )
        self.program("python3-in-venv", self.in_venv())
        self.release = folder / "os-release"
        self.release.write_text('PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\n')

    def program(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def in_venv(self, hiccups: int = 0, browser: str = "") -> str:
        return f"""
            case "$*" in
            *requirements.lock*) {COUNTED}; [ $n -gt {hiccups} ];;
            *"-e "*) touch "$(dirname "$0")/lightloom"; chmod 755 "$(dirname "$0")/lightloom";;
            *"playwright install"*) [ -z "{browser}" ] && exit 1
                mkdir -p "$PLAYWRIGHT_BROWSERS_PATH/chromium-1/chrome-linux64"
                echo "{browser}" >"$PLAYWRIGHT_BROWSERS_PATH/chromium-1/chrome-linux64/chrome"
                chmod 755 "$PLAYWRIGHT_BROWSERS_PATH/chromium-1/chrome-linux64/chrome";;
            esac"""

    def ubuntu(self) -> None:
        """Ubuntu knows no package of a browser."""
        self.release.write_text('PRETTY_NAME="Ubuntu 24.04.2 LTS"\nID=ubuntu\nID_LIKE=debian\n')
        (self.bin / "chromium").unlink()

    def set_up(self, pauses: str = "0 0 0") -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": str(self.bin),
            "LIGHTLOOM_VENV": str(self.venv),
            "LIGHTLOOM_PYTHON": "python3",
            "LIGHTLOOM_PAUSES": pauses,
            "LIGHTLOOM_OS_RELEASE": str(self.release),
        }
        return subprocess.run(
            ["/bin/sh", str(self.root / SCRIPT)],
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_complete_machine_does_not_change(machine: Machine) -> None:
    assert (done := machine.set_up()).returncode == 0, done.stderr
    again = machine.set_up()
    assert again.returncode == 0
    assert "packages: all installed" in again.stderr
    assert "is up to date" in again.stderr


def test_downloads_are_retried_after_errors_of_an_index(machine: Machine) -> None:
    machine.program("python3-in-venv", machine.in_venv(hiccups=3))
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("failed, retrying in") == 3


def test_an_unreachable_index_is_named_after_a_bounded_time(machine: Machine) -> None:
    machine.program("python3-in-venv", machine.in_venv(hiccups=99))
    done = machine.set_up()
    assert done.returncode == 1
    assert done.stderr.count("failed, retrying in") == 3
    assert "error: the packages of requirements.lock could not be installed" in done.stderr
    assert "hint:" in done.stderr


def test_an_interrupted_environment_is_created_again(machine: Machine) -> None:
    interrupted = machine.venv / "bin" / "python"
    interrupted.parent.mkdir(parents=True)
    interrupted.write_text('#!/bin/sh\ncase "$*" in *pip*) exit 1;; esac\n')
    interrupted.chmod(0o755)
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "creating" in done.stderr
    assert os.access(machine.venv / "bin" / "lightloom", os.X_OK)


def test_without_a_browser_package_it_installs_playwrights(machine: Machine) -> None:
    machine.ubuntu()
    machine.program("python3-in-venv", machine.in_venv(browser="fetched"))
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "packages: all installed" in done.stderr
    assert (machine.venv / "bin" / "chromium").read_text() == "fetched\n"
    again = machine.set_up()
    assert "fetching" not in again.stderr


def test_without_any_browser_the_rest_is_set_up(machine: Machine) -> None:
    machine.ubuntu()
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "browser: not available" in done.stderr
    assert done.stderr.rstrip().endswith("setup: done")
