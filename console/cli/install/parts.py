"""What each role consists of: the files of ``console.deploy``, their places and their owners."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from console.cli.install.values import (
    File,
    InstalledFolder,
    MachineRole,
    Part,
    StateDirectory,
    SystemAccount,
    SystemdUnit,
)

ACCOUNT = "lightloom"
CONFIGURATION = "/etc/lightloom"
SITE_FILE = f"{CONFIGURATION}/site.yaml"
AGENT_OPTIONS = f"{CONFIGURATION}/agent.env"
UNITS = "/etc/systemd/system"
_SHARE = "/usr/local/share/lightloom"
_STATE = "/var/lib/lightloom"
_MONITORING = (
    "prometheus/lightloom.rules.yml",
    "prometheus/prometheus.yml",
    "grafana/lightloom.json",
)
_READ_BY_CONTROLLER = ("controller-tls", "openflow-tls", "passwords", "secrets")


def shipped(name: str) -> bytes:
    """Return a file of ``console.deploy``."""
    return files("console.deploy").joinpath(name).read_bytes()


@dataclass(slots=True, frozen=True)
class Given:
    """What an installation is given; a removal needs none of it."""

    bin_dir: str = "/usr/local/bin"
    """The folder of the program on the installed machine."""
    site: bytes | None = None
    """The site file; an example if None."""
    server: str = ""
    """The name of an agent's server."""


def parts(role: MachineRole, given: Given) -> list[Part]:
    """Return the parts of a role, in the order in which they are made."""
    unit = shipped(f"systemd/{role.unit}").replace(b"@BINDIR@", given.bin_dir.encode())
    site = shipped("examples/site.yaml") if given.site is None else given.site
    common: list[Part] = [InstalledFolder(CONFIGURATION), File(SITE_FILE, site, ours=False)]
    own = _controller() if role is MachineRole.CONTROLLER else _agent(given.server)
    return [*common, *own, File(f"{UNITS}/{role.unit}", unit), SystemdUnit(role.unit)]


def _controller() -> list[Part]:
    environment = shipped("examples/controller.env")
    return [
        SystemAccount(ACCOUNT, f'u {ACCOUNT} - "lightloom controller" {_STATE}/controller'),
        File(f"{CONFIGURATION}/controller.env", environment, 0o600, ours=False),
        *(
            InstalledFolder(f"{CONFIGURATION}/{name}", 0o750, ACCOUNT, readers=ACCOUNT)
            for name in _READ_BY_CONTROLLER
        ),
        InstalledFolder(_SHARE),
        InstalledFolder(f"{_SHARE}/prometheus"),
        InstalledFolder(f"{_SHARE}/grafana"),
        *(File(f"{_SHARE}/{name}", shipped(name)) for name in _MONITORING),
        InstalledFolder(_STATE),
        StateDirectory(f"{_STATE}/controller"),
    ]


def _agent(server: str) -> list[Part]:
    environment = shipped("examples/agent.env").replace(b"@SERVER@", server.encode())
    return [
        File(AGENT_OPTIONS, environment, 0o600, ours=False),
        InstalledFolder(f"{CONFIGURATION}/tls", 0o700),
        InstalledFolder(_STATE),
        StateDirectory(f"{_STATE}/logs"),
        StateDirectory(f"{_STATE}/checkpoints"),
        StateDirectory("/run/lightloom/agent-*"),
    ]
