"""Builds the command lines and certificates of the rack's daemons from the site file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import testbed
from base.addresses import join_address
from ocs_driver import OcsAddress, OcsError
from pki import Authority
from sitefile import CabledSite, EmulatedVolume, Emulation, Server, SwitchCable
from testbed.rack import gpus
from testbed.rack.errors import RackError
from testbed.rack.layout import FABRIC_NETNS, OCS_NETNS, PREFIX, server_netns
from testbed.rack.process import ProgramSpec
from testbed.rack.slurm import config


@dataclass(slots=True, frozen=True)
class Player:
    """Emulator settings for a device: personality, and front ends from the URL's port on."""

    personality: str
    front_ends: tuple[str, ...]


PLAYERS: Mapping[str, Player] = {
    "calient+tl1": Player("calient-s320", ("calient-tl1-raw", "calient-tl1-prompt")),
    "glimmerglass+tl1": Player("glimmerglass-48", ("glimmerglass-tl1",)),
    "polatis+netconf": Player("polatis-48xCC", ("polatis-netconf",)),
    "polatis+scpi": Player("polatis-48xCC", ("polatis-scpi",)),
    "polatis+tl1": Player("polatis-48xCC", ("polatis-tl1",)),
}
"""Emulator settings by the scheme of a switch's URL."""
CONTROLLER = "controller.tls"
"""Directory of the controller's certificate for agents; no server can have this name."""
CONTROLLER_OPENFLOW, AGGREGATORS = "controller.openflow", "aggregators.openflow"
"""Directories of the controller's certificate for aggregators, and of the aggregators'."""
DEFAULT_PASSWORD = "lightloom"  # noqa: S105 - default of an emulator on loopback
_PORTS = 65536
CGROUP = f"{PREFIX}rack"
"""Parent control group of all containers."""
PACKAGE_ROOT = Path(testbed.__file__).resolve().parents[1]


def passwords(site: CabledSite, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold the switches' passwords, with a default where unset."""
    names = [s.password.env for s in site.switches if s.password and s.password.env]
    return {name: environment.get(name) or DEFAULT_PASSWORD for name in names}


def python_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which a daemon runs this process's code, with unbuffered output."""
    path = environment.get("PYTHONPATH")
    return {
        "PYTHONPATH": f"{PACKAGE_ROOT}:{path}" if path else str(PACKAGE_ROOT),
        "PYTHONUNBUFFERED": "1",
    }


def tls_directory(run_dir: Path, who: str) -> Path:
    """Return the certificate directory of a server's agent or of the controller."""
    return run_dir / "tls" / who


def make_certificates(run_dir: Path, site: CabledSite) -> None:
    """Create the rack's two authorities, and a certificate for every daemon that needs one.

    Switches trust a separate authority: they do not check names, so with a common authority any
    agent's certificate could impersonate their controller.
    """
    now = datetime.now(UTC)
    authority = Authority.create(tls_directory(run_dir, "ca"), site.name, now=now)
    for server in site.servers:
        authority.issue_agent(server.name, tls_directory(run_dir, server.name), now=now)
    authority.issue_controller(tls_directory(run_dir, CONTROLLER), now=now)
    switches = Authority.create(tls_directory(run_dir, "ca.openflow"), site.name, now=now)
    switches.issue_controller(tls_directory(run_dir, CONTROLLER_OPENFLOW), now=now)
    names = [cable.name for cable in site.aggregators]
    switches.issue_aggregators(names, tls_directory(run_dir, AGGREGATORS), now=now)


def links_file(run_dir: Path, switch: str) -> Path:
    """Return the file that maps a switch's ports to links."""
    return run_dir / f"{switch}-links.json"


def switch_addresses(switch: SwitchCable) -> list[tuple[str, int]]:
    """Return the addresses of an emulated ``switch``. Raises RackError(invalid) if unsupported."""
    return [(host, port) for _, host, port in _front_ends(switch, *_player(switch))]


def _player(switch: SwitchCable) -> tuple[Player, OcsAddress]:
    """Return the emulator settings of a switch and its URL. Raises RackError(invalid)."""
    what = f"switch/{switch.name}"
    try:
        address = OcsAddress.parse(switch.url)
    except OcsError as error:
        raise RackError("invalid", str(error), object=what, hint="see docs/ocs.md") from None
    player = PLAYERS.get(address.scheme)
    if player is None or address.port is None:
        raise RackError(
            "invalid",
            f"no emulator supports {address}",
            object=what,
            hint=f"write SCHEME://user@127.0.0.1:PORT with one of {', '.join(PLAYERS)}",
        )
    return player, address


def _front_ends(
    switch: SwitchCable, player: Player, address: OcsAddress
) -> list[tuple[str, str, int]]:
    """Return name, host and port of each front end."""
    first = address.port
    if first is None or first + len(player.front_ends) > _PORTS:
        raise RackError(
            "invalid",
            f"fewer than {len(player.front_ends)} ports from {address} on",
            object=f"switch/{switch.name}",
            hint="choose a lower port",
        )
    return [(name, address.host, first + n) for n, name in enumerate(player.front_ends)]


def emulator(
    run_dir: Path, switch: SwitchCable, emulation: Emulation, env: Mapping[str, str]
) -> ProgramSpec:
    """Return the emulator of ``switch``, with a unique serial number."""
    player, address = _player(switch)
    listen = ",".join(
        f"{n}={join_address(host, port)}" for n, host, port in _front_ends(switch, player, address)
    )
    grid = address.options.get("ports")
    password = switch.password.env if switch.password else None
    return ProgramSpec(
        switch.name,
        (
            *(sys.executable, "-m", "testbed.ocs_emulator"),
            *("--personality", address.options.get("personality", player.personality)),
            *("--listen", listen, "--serial", f"LL-{switch.name}"),
            *("--netns", OCS_NETNS, "--links", str(links_file(run_dir, switch.name))),
            *(("--port-grid", grid) if grid else ()),
            *("--mirror-time", f"{emulation.mirror_time_s:g}"),
            *("--bulk-time", f"{emulation.bulk_time_s:g}"),
            *("--link-up-time", f"{emulation.link_up_s:g}"),
            *(("--password-env", password) if password else ()),
        ),
        env=env,
    )


def agent(
    run_dir: Path, site: CabledSite, server: Server, docker_host: str, env: Mapping[str, str]
) -> ProgramSpec:
    """Return the agent of ``server``."""
    served = [
        {
            "name": e.name,
            "nic": e.nic,
            "gpu_uuid": e.gpu_uuid,
            "emulated": e.emulated,
            "attach": e.attach,
            "stand_in": gpus.uuid(e.name) if e.emulated else "",
        }
        for e in site.endpoints
        if e.server == server.name
    ]
    return ProgramSpec(
        f"agent-{server.name}",
        (
            *(sys.executable, "-m", "container_mgr"),
            *("--server", server.name, "--listen", server.agent),
            *("--nic-netns", server_netns(server.name), "--docker-host", docker_host),
            *("--endpoints", json.dumps(served)),
            *("--state-dir", str(run_dir / f"agent-{server.name}"), "--cgroup", CGROUP),
            *("--tls", str(tls_directory(run_dir, server.name))),
            *("--nvml-library", str(gpus.library(run_dir))),
            *chain.from_iterable(site.logs.options().items()),
            *_observing(site, [str(endpoint["name"]) for endpoint in served]),
            *_volume_options(run_dir, site.emulation),
        ),
        env=env,
    )


def _observing(site: CabledSite, endpoints: Sequence[str]) -> Iterator[str]:
    """Yield the options for an agent to freeze the jobs of the rack's other engine."""
    if site.engine is None:
        return
    nodes = site.engine.nodes_with(endpoints)
    yield from ("--observe", site.engine.kind, "--observe-nodes", ",".join(nodes))
    yield from ("--observe-below", config.CGROUP)


def volume_directory(run_dir: Path, name: str, volume: EmulatedVolume) -> Path:
    """Return the directory of a volume: the site file's, or one below ``run_dir``."""
    return Path(volume.path) if volume.path else run_dir / "volumes" / name


def _volume_options(run_dir: Path, emulation: Emulation | None) -> Iterator[str]:
    for name, volume in emulation.volumes.items() if emulation else ():
        path, mode = volume_directory(run_dir, name, volume), "rw" if volume.writable else "ro"
        yield from ("--volume", f"{name}={path}:{mode}")


def controller(run_dir: Path, site_path: Path, image: str, env: Mapping[str, str]) -> ProgramSpec:
    """Return the controller; it listens for OpenFlow in the namespace of the bridges.

    Its ledgers of switches that cannot store owners are removed with the rack.
    """
    env = {**env, "LIGHTLOOM_OCS_STATE_DIR": str(run_dir / "controller" / "ocs")}
    return ProgramSpec(
        "controller",
        (
            *(sys.executable, "-m", "controller"),
            *("--site", str(site_path), "--state-dir", str(run_dir / "controller")),
            *("--openflow-netns", FABRIC_NETNS, "--image", image),
            *("--agent-tls", str(tls_directory(run_dir, CONTROLLER))),
            *("--openflow-tls", str(tls_directory(run_dir, CONTROLLER_OPENFLOW))),
        ),
        env=env,
    )


def listening(log: Path) -> bool:
    """Whether a daemon has written its JSON line ``{"event": "listening", …}``."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    for line in lines:
        if line.startswith("{"):
            try:
                if json.loads(line).get("event") == "listening":
                    return True
            except ValueError:
                continue
    return False
