"""The wheel on a fresh Debian with systemd: installed, started, upgraded and removed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build_wheel import wheel
from tests.integration.agent_parts import PrivateEngine
from tests.integration.debian import (
    LENT,
    LIGHTLOOM,
    PYTHON,
    Debian,
    booted,
    libraries,
    unpack,
)

pytestmark = pytest.mark.root

PATIENCE_S = 60.0
WHEELS, ENGINE = "/opt/wheels", "/opt/engine"
CONTROLLER, AGENT = "lightloom-controller", "lightloom-agent"
CONTROLLER_UNIT = f"/etc/systemd/system/{CONTROLLER}.service"
STATE = "/var/lib/lightloom/controller"
MEMORY = "/var/lib/lightloom/checkpoints/red.0123abcd/gpu0"
"""Where an agent mounts a job's checkpoints in memory."""
OLD = "0.0.1"
EXPOSURE = {CONTROLLER: 2.0, AGENT: 6.0}
"""The most that `systemd-analyze security` may find, of 10. An agent needs what it has."""
SITE_PACKAGES = "import site; print(site.getsitepackages()[0])"
CLAIM = f"""
import asyncio
from pathlib import Path
from controller.daemon.compose import make_driver
from ocs_driver.base import CircuitRequest
from sitefile.model import SwitchCable

async def main():
    url = "polatis+scpi://admin@127.0.0.1:5025?ports=2x2x8"
    driver = make_driver(SwitchCable("ocs0", url, None), Path("{STATE}"))
    await driver.connect()
    await driver.apply([], [CircuitRequest("1.1.1", "2.1.1")])
    await driver.close()

asyncio.run(main())
"""
MOVE = """
import asyncio, sys
from container_mgr.hardware.nic import Nics
from container_mgr.kernel import inside
from container_mgr.values import NicSpec

def bind(pid):
    assert inside.has(pid, "/etc", "passwd")
    nics.bind(NicSpec("e-gpu0", "10.9.0.1", 24, "02:00:00:00:00:01"), "ll-c-red-0-1", pid)
    nics.announce(NicSpec("e-gpu0", "10.9.0.1", 24, "02:00:00:00:00:01"), "ll-c-red-0-1")

def release(pid):
    assert nics.namespaces() == {"ll-c-red-0-1": "e-gpu0"}
    nics.release("ll-c-red-0-1")
    assert nics.present("e-gpu0")

nics = Nics("srv0", None)
asyncio.run(asyncio.to_thread(globals()[sys.argv[1]], int(sys.argv[2])))
"""


def wait(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout in ``new``, and one of an older version in ``old``."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, version in (("new", ""), ("old", OLD)):
        (folder / name).mkdir()
        wheel(folder / name, version)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("debian"))


@pytest.fixture
def machine(wheels: Path, root: Path) -> Iterator[Debian]:
    with booted(root, [(wheels, WHEELS)]) as debian:
        make_environment(debian)
        yield debian


def make_environment(machine: Debian) -> None:
    """Make an environment of Python in the machine, with lent libraries and without lightloom."""
    minor = ".".join(map(str, sys.version_info[:2]))
    if machine.read("python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])") != minor:
        pytest.skip(f"the libraries here are for Python {minor}, the distribution has another")
    machine.run("python3", "-m", "venv", "/opt/lightloom")
    machine.write(f"/opt/lightloom/lib/python{minor}/site-packages/lent.pth", f"{LENT}\n")


def pip_install(machine: Debian, which: str = "new") -> None:
    pip = "/opt/lightloom/bin/pip install --no-index --no-deps"
    machine.run("sh", "-c", f"{pip} {WHEELS}/{which}/*.whl")


def told(machine: Debian, *arguments: str) -> dict[str, Any]:
    """Run ``lightloom`` with ``-o json``."""
    found = json.loads(machine.read(LIGHTLOOM, *arguments, "-o", "json"))
    assert isinstance(found, dict)
    return found


def changes(document: dict[str, Any]) -> dict[str, str]:
    """Return the action by name of all that was changed."""
    same = ("unchanged", "kept")
    return {s["name"]: s["action"] for s in document["steps"] if s["action"] not in same}


def files(machine: Debian) -> set[str]:
    """Return all paths where an installation could leave something."""
    found = machine.read(
        *("find", "/etc", "/usr/local", "/var/lib", "-not", "-path", "/var/lib/systemd/*"),
        *("-not", "-name", "*-", "-not", "-name", ".pwd.lock"),  # of the files of accounts
    )
    return set(found.splitlines())


def active(machine: Debian, unit: str) -> bool:
    return machine.run("systemctl", "is-active", unit, check=False).stdout.strip() == "active"


def edit_site(machine: Debian, old: str, new: str) -> None:
    machine.run("sed", "-i", f"s#{old}#{new}#", "/etc/lightloom/site.yaml")


def copy_keys(machine: Debian, role: str, name: str, *folders: str) -> None:
    """Issue certificates of an own authority each, and copy them as root does."""
    for folder in folders:
        authority, issued = f"/root/ca-{folder}", f"/root/{folder}"
        machine.run(LIGHTLOOM, "pki", "init", "--dir", authority)
        who = [role, name] if name else [role]
        machine.run(LIGHTLOOM, "pki", "issue", *who, "--dir", authority, "--out", issued)
        machine.run("sh", "-c", f"cp {issued}/*.pem /etc/lightloom/{folder}/")


def install_controller(machine: Debian) -> None:
    """Install a controller, with the keys and the password that the site file names."""
    told(machine, "install", "controller")
    copy_keys(machine, "controller", "", "controller-tls", "openflow-tls")
    machine.run("sh", "-c", "umask 077; echo secret >/etc/lightloom/passwords/ocs0")
    given = changes(told(machine, "install", "controller"))
    assert set(given.values()) == {"corrected"}  # root's copies are given to the account


def run_as(machine: Debian, unit: str, program: str) -> None:
    """Run a program once with all settings of a unit. It must succeed."""
    text = machine.read("cat", f"/etc/systemd/system/{unit}.service")
    kept = [ln for ln in text.splitlines() if not ln.startswith(("ExecStart=", "Type=", "Restart"))]
    kept.insert(kept.index("[Service]") + 1, f"Type=oneshot\nExecStart={program}")
    machine.write("/etc/systemd/system/probe.service", "\n".join(kept))
    machine.run("systemctl", "daemon-reload")
    done = machine.run("systemctl", "start", "probe", check=False)
    assert done.returncode == 0, machine.log("probe")


def endpoints(machine: Debian) -> list[str]:
    """Ask the controller as its first admin."""
    token = machine.read("cat", f"{STATE}/admin.token")
    listed = json.loads(machine.read(LIGHTLOOM, "--token", token, "get", "endpoints", "-o", "json"))
    return [item["name"] for item in listed["items"]]


def user_of(machine: Debian, unit: str) -> str:
    pid = machine.read("systemctl", "show", "-p", "MainPID", "--value", unit)
    return machine.read("stat", "-c", "%U", f"/proc/{pid}")


def test_a_controller_is_installed_upgraded_and_removed(machine: Debian) -> None:
    before = files(machine)
    pip_install(machine, "old")
    assert machine.read(LIGHTLOOM, "--version") == f"lightloom {OLD}"
    planned = told(machine, "install", "controller", "--dry-run")
    assert planned["changed"] > 10
    assert files(machine) == before
    install_controller(machine)
    assert changes(told(machine, "install", "controller")) == {}
    machine.run("systemctl", "enable", "--now", CONTROLLER)  # returns when it is ready
    assert user_of(machine, CONTROLLER) == "lightloom"
    assert endpoints(machine) == ["gpu0", "gpu1"]

    # An upgrade replaces what is lightloom's, and keeps what is the site's.
    token = machine.read("cat", f"{STATE}/admin.token")
    machine.run("sed", "-i", "s/^RestartSec=.*/RestartSec=5s/", CONTROLLER_UNIT)
    edit_site(machine, "^name: example", "name: ours")
    pip_install(machine)
    assert machine.read(LIGHTLOOM, "--version") != f"lightloom {OLD}"
    assert changes(told(machine, "install", "controller")) == {
        CONTROLLER_UNIT: "replaced",
        f"{CONTROLLER}.service": "reloaded",
    }
    machine.run("touch", CONTROLLER_UNIT)  # as if systemd had not been told of the new one
    again = changes(told(machine, "install", "controller"))
    assert again == {f"{CONTROLLER}.service": "reloaded"}
    machine.run("systemctl", "restart", CONTROLLER)
    assert machine.read("cat", f"{STATE}/admin.token") == token
    assert endpoints(machine) == ["gpu0", "gpu1"]

    # A removal keeps what the site and its jobs wrote, a purge leaves nothing.
    gone = changes(told(machine, "uninstall", "controller"))
    assert gone[CONTROLLER_UNIT] == "removed"
    assert not active(machine, CONTROLLER)
    assert "name: ours" in machine.read("cat", "/etc/lightloom/site.yaml")
    told(machine, "install", "controller")
    machine.run("systemctl", "start", CONTROLLER)
    assert machine.read("cat", f"{STATE}/admin.token") == token
    told(machine, "uninstall", "controller", "--purge", "--yes")
    assert files(machine) == before
    assert machine.run("id", "lightloom", check=False).returncode != 0
    assert told(machine, "uninstall", "controller", "--purge", "--yes")["steps"] == []


def test_the_units_are_correct_and_closed(machine: Debian) -> None:
    pip_install(machine)
    told(machine, "install", "controller")
    told(machine, "install", "agent", "--server", "srv0")
    for name, most in EXPOSURE.items():
        unit = f"/etc/systemd/system/{name}.service"
        machine.run("systemd-analyze", "verify", "--man=no", unit)
        threshold = f"--threshold={most * 10:.0f}"
        machine.run("systemd-analyze", "security", "--offline=true", threshold, unit)


def test_a_controller_claims_circuits_and_takes_over_what_root_wrote(machine: Debian) -> None:
    pip_install(machine)
    install_controller(machine)
    machine.run("mkdir", "-p", f"{STATE}/ocs")  # of a controller that ran as root
    emulator = f"{PYTHON} -m testbed.ocs_emulator --personality polatis-48xCC"
    listening = "--listen=polatis-scpi=127.0.0.1:5025"
    machine.run("systemd-run", "-q", "--unit=ocs", *emulator.split(), listening)
    wait(lambda: "listening" in machine.log("ocs"))
    machine.write("/opt/claim.py", CLAIM)
    run_as(machine, CONTROLLER, f"{PYTHON} /opt/claim.py")
    ledger = machine.read("find", f"{STATE}/ocs", "-name", "*.json", "-user", "lightloom")
    assert "lightloom" in machine.read("cat", ledger)


def test_an_agent_is_installed_and_finds_its_ranks_after_a_restart(
    wheels: Path, root: Path, private: PrivateEngine
) -> None:
    engine = Path(private.info.host_url.removeprefix("unix://")).parent
    with booted(root, [(wheels, WHEELS), (engine, ENGINE)]) as machine:
        make_environment(machine)
        before = files(machine)
        pip_install(machine)
        told(machine, "install", "agent", "--server", "srv0")
        copy_keys(machine, "agent", "srv0", "tls")
        options = f"--server srv0 --docker-host unix://{ENGINE}/docker.sock"
        machine.write("/etc/lightloom/agent.env", f"LIGHTLOOM_AGENT_OPTIONS={options}\n")
        assert changes(told(machine, "install", "agent")) == {}
        machine.run("systemctl", "enable", "--now", AGENT)
        wait(lambda: "listening" in machine.log(AGENT))
        machine.run("touch", "/run/lightloom/agent-srv0/of-a-rank")
        machine.run("systemctl", "restart", AGENT)
        wait(lambda: machine.log(AGENT).count('"event": "listening", "address"') == 2)
        machine.run("test", "-e", "/run/lightloom/agent-srv0/of-a-rank")
        machine.run("mkdir", "-p", MEMORY)
        machine.run("mount", "-t", "tmpfs", "ll-checkpoints", MEMORY)
        machine.run("touch", f"{MEMORY}/live")
        told(machine, "uninstall", "agent", "--purge", "--yes")
        assert files(machine) == before
        assert machine.run("ls", "/run/lightloom").stdout == ""
        assert "ll-checkpoints" not in machine.read("cat", "/proc/mounts")
        assert told(machine, "uninstall", "agent", "--purge", "--yes")["steps"] == []


def test_an_image_of_a_machine_is_installed_from_outside(wheels: Path, root: Path) -> None:
    """No systemd runs below ``--root``, and its accounts are not those of this machine."""
    before = {str(path) for path in (root / "etc").rglob("*")}
    environment = root / "opt/lightloom"
    (new,) = (wheels / "new").glob("*.whl")

    def run(*command: str | Path) -> str:
        env = {"PATH": os.environ["PATH"]}  # without a path to the checkout
        done = subprocess.run(
            command, check=True, timeout=PATIENCE_S, capture_output=True, text=True, env=env
        )
        return done.stdout

    def verb(*words: str) -> dict[str, str]:
        lightloom = environment / "bin/lightloom"
        return changes(json.loads(run(lightloom, *words, "--root", root, "-o", "json")))

    try:
        run(sys.executable, "-m", "venv", environment)
        home = Path(run(environment / "bin/python", "-c", SITE_PACKAGES).strip())
        (home / "lent.pth").write_text(f"{libraries()}\n")
        run(environment / "bin/pip", "install", "--no-index", "--no-deps", new)
        assert verb("install", "controller")["lightloom"] == "created"
        assert verb("install", "controller") == {}
        unit = (root / CONTROLLER_UNIT.removeprefix("/")).read_text()
        assert "ExecStart=/opt/lightloom/bin/lightloom controller" in unit
        (line,) = [ln for ln in (root / "etc/passwd").read_text().splitlines() if "lightloom" in ln]
        keys = (root / "etc/lightloom/controller-tls").stat()
        assert keys.st_gid == int(line.split(":")[3])
        assert "lightloom" not in Path("/etc/passwd").read_text()
        verb("uninstall", "controller", "--purge", "--yes")
        left = {str(path) for path in (root / "etc").rglob("*")} - before
        assert {path for path in left if not path.endswith(("-", ".pwd.lock"))} == set()
    finally:
        shutil.rmtree(environment)


def test_a_nic_that_an_agent_moved_outlives_it(machine: Debian) -> None:
    """The mount that keeps the container's namespace must be one of the machine."""
    pip_install(machine)
    told(machine, "install", "agent", "--server", "srv0")
    machine.run("systemd-run", "-q", "-p", "PrivateNetwork=yes", "-p", "User=daemon",
                "--unit=container", "sleep", "infinity")  # fmt: skip
    pid = machine.read("systemctl", "show", "-p", "MainPID", "--value", "container")
    machine.run(*["ip", "link", "add", "e-gpu0", "type", "veth", "peer", "name", "e-far"])
    machine.run(*["ip", "link", "set", "e-far", "up"])
    machine.write("/opt/move.py", MOVE)
    run_as(machine, AGENT, f"{PYTHON} /opt/move.py bind {pid}")
    assert "10.9.0.1/24" in machine.read(*["ip", "-n", "ll-c-red-0-1", "-br", "address"])
    run_as(machine, AGENT, f"{PYTHON} /opt/move.py release {pid}")
    assert "ll-c-red-0-1" not in machine.read("ip", "netns")
