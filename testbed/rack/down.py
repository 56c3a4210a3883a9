"""Takes a rack down: whatever state it is in, nothing of it is left."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import docker
import requests

from testbed.engine import HOST_SOCKET, Engine
from testbed.rack import preflight, record, remains
from testbed.rack.errors import RackError
from testbed.rack.layout import PREFIX
from testbed.rack.process import end_all

LABEL = "lightloom.job"
"""Every container of ours carries it; no other container is touched."""
GRACE_S = 5.0
DOCKER_TIMEOUT_S = 20

Progress = Callable[[str], None]


def down(run_dir: Path, *, progress: Progress) -> None:
    """Take down the rack with this run directory, also one that crashed. Idempotent.

    RackError(failed) that names what could not be removed.
    """
    preflight.need_root()
    run_dir = run_dir.absolute()
    with preflight.only_one():
        _check_ours(run_dir)
        take_down(run_dir, progress=progress)


def take_down(run_dir: Path, *, progress: Progress) -> None:
    """Perform :func:`down`; the caller holds the machine's rack."""
    progress("controller and agents")
    _end_recorded(run_dir)
    progress("containers")
    _remove_host_containers()
    Engine(run_dir).stop()
    progress("processes, namespaces and links")
    remains.end_processes(run_dir, grace_s=GRACE_S)
    remains.remove_shim_sockets(run_dir)
    remains.remove_kernel_objects(run_dir)
    shutil.rmtree(run_dir, ignore_errors=True)
    with contextlib.suppress(OSError):
        run_dir.parent.rmdir()  # only when no other rack's folder is in it
    left = remains.find(run_dir)
    if not left.empty:
        raise RackError(
            "failed",
            "could not be removed: " + "; ".join(left.summary()),
            object="rack",
            hint="see what holds them, then run `lightloom testbed down` again",
        )


def _check_ours(run_dir: Path) -> None:
    """Refuse a folder that is no rack's: it would be deleted."""
    if run_dir.exists() and not run_dir.is_dir():
        raise RackError("invalid", f"{run_dir} is not a folder", object=str(run_dir))
    if run_dir.exists() and any(run_dir.iterdir()) and not preflight.is_ours(run_dir):
        raise RackError(
            "invalid",
            f"{run_dir} is not a rack's folder and is left alone",
            object=str(run_dir),
            hint="name the folder that `lightloom testbed up` was given",
        )


def _end_recorded(run_dir: Path) -> None:
    """End the recorded processes in the reverse order of their start, the controller alone."""
    try:
        written = record.load(run_dir)
    except RackError:
        return  # an unreadable record: they are found by their marker instead
    if written is None or not written.processes:
        return
    *others, last = ((p.pid, p.ticks) for p in written.processes)
    end_all([last], grace_s=GRACE_S)
    end_all(others, grace_s=GRACE_S)


def _remove_host_containers() -> None:
    """Remove our containers from the machine's own Docker Engine, when it has one."""
    if not HOST_SOCKET.exists():
        return
    try:
        with closing(
            docker.DockerClient(base_url=f"unix://{HOST_SOCKET}", timeout=DOCKER_TIMEOUT_S)
        ) as client:
            found = client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
            for container in found:
                if not (container.name or "").startswith(PREFIX):
                    continue
                with contextlib.suppress(docker.errors.NotFound):
                    if container.status == "paused":
                        container.unpause()
                    container.remove(force=True)
    except (docker.errors.DockerException, requests.RequestException):
        return  # no engine answers: its containers end with their namespaces
