"""Provides a Docker Engine for the rack: the host's if it responds, else a private one.

The private engine keeps images in a data root that outlives the rack, so that the
trainer image is built once. It has no bridge, no iptables rules and no forwarding, so the
host's network does not change. All its other state is in the rack's run directory, by which
:meth:`DockerEngine.stop` finds its processes even after dockerd itself was killed: containerd and
its shims have the run directory's path in their command lines, container processes have
their container's id in ``/proc/PID/cgroup``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import docker
import requests
import structlog

from testbed import processes

LABEL = "lightloom.job"
"""Marks all containers of the rack; other containers of the host's engine are not touched."""
HOST_SOCKET = Path("/var/run/docker.sock")
DATA_ROOT = Path("/var/lib/lightloom/docker")
BUILD_DIR = Path("/run/lightloom-images")
"""Folder of the private engine while it only builds images."""

_START_TIMEOUT_S = 180.0
"""Time limit for the start of dockerd, which is slow on a slow disk with cold caches."""
_SLOW_S = 30.0
"""Time that a running dockerd has to respond before it counts as stuck and is ended."""
_STOP_TIMEOUT_S = 30.0
_API_TIMEOUT_S = 60
_PING_TIMEOUT_S = 10
"""Ping timeout of a busy engine; an absent one refuses the connection immediately."""

_log = structlog.get_logger("testbed.engine")


class DockerEngineError(Exception):
    """No Docker Engine is usable; ``hint`` is how to fix it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(slots=True, frozen=True)
class EngineInfo:
    """The engine's address, and whether it is private to the rack."""

    host_url: str
    private: bool


def host_engine() -> EngineInfo | None:
    """Return the machine's own engine if it answers."""
    if HOST_SOCKET.exists() and _answers(_url(HOST_SOCKET)):
        return EngineInfo(_url(HOST_SOCKET), private=False)
    return None


class DockerEngine:
    """The rack's Docker Engine. Methods block; call them from a thread in async code."""

    def __init__(
        self,
        run_dir: Path,
        data_root: Path = DATA_ROOT,
        *,
        prefer_host: bool = True,
        cgroup: str = "ll-rack",
    ) -> None:
        """``cgroup`` is the agents' parent cgroup of all containers; it is removed at the end."""
        self._dir = run_dir / "docker"
        self._data_root = data_root
        self._prefer_host = prefer_host
        self._cgroup = cgroup
        self._exec_root = self._dir / "exec"
        self._socket = self._dir / "docker.sock"
        self._pid_file = self._dir / "dockerd.pid"

    @property
    def log_path(self) -> Path:
        """The log file of the private dockerd."""
        return self._dir / "dockerd.log"

    @property
    def made(self) -> bool:
        """Whether a private engine was started here and its remains are not removed."""
        return self._dir.exists()

    def answering(self) -> EngineInfo | None:
        """Return the private engine if it answers."""
        url = _url(self._socket)
        return EngineInfo(url, private=True) if self._socket.exists() and _answers(url) else None

    def start(self) -> EngineInfo:
        """Return an engine that responds; start the private one if necessary.

        Idempotent. Raises DockerEngineError when dockerd is missing or does not start.
        """
        if self._prefer_host and (host := host_engine()) is not None:
            return host
        url = _url(self._socket)
        slow_until = time.monotonic() + _SLOW_S
        while not (answers := _answers(url)) and self._daemon() and time.monotonic() < slow_until:
            time.sleep(0.1)
        if answers:
            return EngineInfo(url, private=True)
        self._end_everything(())
        # Poll the child and not /proc: between close-on-exec and the end of exec a process has
        # no command line, which takes long on a machine with cold caches.
        daemon = self._launch()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not _answers(url):
            status = daemon.poll()
            if status is not None:
                raise self._not_up(f"dockerd ended with status {status}")
            if time.monotonic() > deadline:
                raise self._not_up(f"dockerd did not answer within {_START_TIMEOUT_S:g} s")
            time.sleep(0.1)
        # A killed engine may have left containers in the data root whose names are needed now.
        _remove_containers(url)
        _log.info("private engine started", socket=str(self._socket))
        return EngineInfo(url, private=True)

    def stop(self) -> None:
        """End the private engine with all its containers; the host's engine continues.

        Idempotent; also works after dockerd was killed. The image store remains.
        """
        containers = self._container_ids()
        if self._socket.exists() and _answers(_url(self._socket)):
            _remove_containers(_url(self._socket))
        self._end_everything(containers)

    def _not_up(self, reason: str) -> DockerEngineError:
        return DockerEngineError(f"{reason}: {self._last_words()}", f"see {self.log_path}")

    def _launch(self) -> subprocess.Popen[bytes]:
        self._dir.mkdir(parents=True, exist_ok=True)
        self._data_root.mkdir(parents=True, exist_ok=True)
        config = self._dir / "daemon.json"
        config.write_text(json.dumps({}), encoding="utf-8")  # the host's daemon.json does not apply
        command = [
            "dockerd",
            *("--config-file", str(config)),
            *("--data-root", str(self._data_root)),
            *("--exec-root", str(self._exec_root)),
            *("--pidfile", str(self._pid_file)),
            *("--host", _url(self._socket)),
            *("--containerd-namespace", "ll-moby"),
            *("--containerd-plugins-namespace", "ll-plugins"),
            *("--exec-opt", "native.cgroupdriver=cgroupfs"),
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
            "--ip-forward=false",
            "--ip-masq=false",
            "--userland-proxy=false",
        ]
        with self.log_path.open("ab") as log:
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise DockerEngineError(
                    "dockerd is not installed and no Docker Engine responds",
                    "install a Docker Engine (Debian: apt-get install docker.io)",
                ) from None

    def _daemon(self) -> list[int]:
        return processes.running("dockerd", self._pid_file)

    def _helpers(self) -> list[int]:
        """The engine's containerd and one shim per container."""
        return processes.running("containerd", self._exec_root)

    def _last_words(self) -> str:
        try:
            lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return "no log"
        return lines[-1] if lines else "empty log"

    def _container_ids(self) -> tuple[str, ...]:
        try:
            return tuple(entry.name for entry in (self._data_root / "containers").iterdir())
        except OSError:
            return ()

    def _end_everything(self, containers: Iterable[str]) -> None:
        ids = {*containers, *self._container_ids()}
        # dockerd first, with SIGTERM: it ends its containerd and closes its databases cleanly.
        _end(self._daemon, signal.SIGTERM, _STOP_TIMEOUT_S)
        if self._daemon():
            _end(self._daemon, signal.SIGKILL, _STOP_TIMEOUT_S)
        members = processes.in_cgroups(ids)
        for pid in members:
            processes.thaw(pid)  # on cgroup v1 a frozen process does not even handle SIGKILL
        _end(lambda: processes.in_cgroups(ids), signal.SIGKILL, _STOP_TIMEOUT_S)
        # Shims stay briefly to report exits; containerd ends first, so that it restarts none.
        _end(self._helpers, signal.SIGTERM, 3.0)
        _end(self._helpers, signal.SIGKILL, _STOP_TIMEOUT_S)
        # dockerd bind-mounts its data root on itself if mounts do not propagate: see this file.
        bound = (self._exec_root / "unmount-on-shutdown").exists()
        processes.unmount_below(
            self._exec_root, self._data_root, itself=self._data_root if bound else None
        )
        self._pid_file.unlink(missing_ok=True)
        self._socket.unlink(missing_ok=True)
        self._remove_shim_sockets()
        # A containerd does not start if it finds the remains of a killed one here.
        shutil.rmtree(self._exec_root, ignore_errors=True)
        processes.remove_cgroups(self._cgroup)

    def _remove_shim_sockets(self) -> None:
        """Remove the sockets that killed container shims left in /run/containerd.

        They are outside the run directory, but each container's bundle inside names its socket.
        """
        for note in self._exec_root.glob("containerd/daemon/*/*/*/address"):
            with contextlib.suppress(OSError):
                address = note.read_text(encoding="utf-8").strip()
                Path(address.removeprefix("unix://")).unlink(missing_ok=True)


def builder_engine() -> DockerEngine:
    """Return the private engine as a builder of images uses it while no rack has it."""
    return DockerEngine(BUILD_DIR, prefer_host=False, cgroup="ll-images")


def _url(socket: Path) -> str:
    return f"unix://{socket}"


def _answers(url: str) -> bool:
    try:
        with closing(docker.DockerClient(base_url=url, timeout=_PING_TIMEOUT_S)) as client:
            return bool(client.ping())
    except (docker.errors.DockerException, requests.RequestException):
        return False


def _remove_containers(url: str) -> None:
    try:
        with closing(docker.DockerClient(base_url=url, timeout=_API_TIMEOUT_S)) as client:
            _remove_all(client)
    except (docker.errors.DockerException, requests.RequestException) as error:
        _log.warning("engine stopped responding", reason=str(error))


def _remove_all(client: docker.DockerClient) -> None:
    for container in client.containers.list(all=True, ignore_removed=True):
        try:
            if container.status == "paused":
                container.unpause()
            container.remove(force=True)
        except docker.errors.APIError as error:
            _log.warning("container not removed", name=container.name, reason=str(error))


def _end(find: Callable[[], list[int]], sig: signal.Signals, within_s: float) -> None:
    """Signal the processes that ``find`` returns until none is left or the time is up."""
    deadline = time.monotonic() + within_s
    signalled: set[int] = set()
    while True:
        pids = find()
        if not pids or time.monotonic() > deadline:
            return
        for pid in pids:
            if pid not in signalled:
                processes.send(pid, sig)
                signalled.add(pid)
        time.sleep(0.05)
