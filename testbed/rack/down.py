"""Takes a rack down completely, from any state."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import docker
import requests
from docker.models.containers import Container

from base import clock
from testbed import processes as kernel_view
from testbed.engine import HOST_SOCKET, LABEL, DockerEngine
from testbed.rack import locks, preflight, record, remains
from testbed.rack.errors import RackError
from testbed.rack.layout import PREFIX
from testbed.rack.process import end_all

GRACE_S = 5.0
DOCKER_TIMEOUT_S = 60
GOING_S = 60.0
"""Time limit for a container that another process is removing."""
LOOK_S = 0.2

Progress = Callable[[str], None]


def down(run_dir: Path, *, progress: Progress) -> None:
    """Take down the rack with this run directory, also after a crash. Idempotent.

    Raises RackError(failed) with the names of the objects that remain.
    """
    preflight.need_root()
    run_dir = run_dir.absolute()
    with locks.RACK.held():
        _check_ours(run_dir)
        take_down(run_dir, progress=progress)


def take_down(run_dir: Path, *, progress: Progress) -> None:
    """Perform :func:`down`; the caller holds the rack lock of the machine."""
    kernel_view.await_named()  # processes that a killed `up` has just started
    progress("controller and agents")
    _end_recorded(run_dir)
    progress("containers")
    containers = _remove_host_containers()
    engine = DockerEngine(run_dir)
    if engine.made:
        with locks.STORE.held(wait_s=locks.BUILD_S, progress=progress):
            engine.stop()
    progress("processes, namespaces and links")
    remains.end_processes(run_dir, grace_s=GRACE_S)
    remains.remove_kernel_objects(run_dir)
    _remove_folder(run_dir)
    with contextlib.suppress(OSError):
        run_dir.parent.rmdir()  # succeeds only without folders of other racks
    left = dataclasses.replace(remains.find(run_dir), containers=containers)
    if not left.empty:
        raise RackError(
            "failed",
            "could not be removed: " + "; ".join(left.summary()),
            object="rack",
            hint="check what uses them, then run `lightloom testbed down` again",
        )


def _check_ours(run_dir: Path) -> None:
    """Refuse a folder that does not belong to a rack, because it would be deleted."""
    if run_dir.exists() and not run_dir.is_dir():
        raise RackError("invalid", f"{run_dir} is not a folder", object=str(run_dir))
    if run_dir.exists() and any(run_dir.iterdir()) and not preflight.is_ours(run_dir):
        raise RackError(
            "invalid",
            f"{run_dir} is not a rack's folder and was not changed",
            object=str(run_dir),
            hint="give the folder that `lightloom testbed up` used",
        )


def _end_recorded(run_dir: Path) -> None:
    """End the recorded processes in reverse start order, the controller alone."""
    try:
        written = record.load(run_dir)
    except RackError:
        return  # unreadable record: the processes are found by their marker
    if written is None or not written.processes:
        return
    *others, last = ((p.pid, p.ticks) for p in written.processes)
    end_all([last], grace_s=GRACE_S)
    end_all(others, grace_s=GRACE_S)


def _remove_folder(run_dir: Path) -> None:
    """Remove the run directory, its record last, which identifies a partly removed one."""
    with contextlib.suppress(OSError):
        for entry in run_dir.iterdir():
            if entry.name != record.FILE:
                shutil.rmtree(entry, ignore_errors=True)  # fails for files
                with contextlib.suppress(OSError):
                    entry.unlink(missing_ok=True)
    shutil.rmtree(run_dir, ignore_errors=True)


def _remove_host_containers() -> tuple[str, ...]:
    """Remove the rack's containers from the host's Docker Engine; return the remaining ones."""
    if not HOST_SOCKET.exists():
        return ()
    deadline = clock.monotonic() + GOING_S
    try:
        with closing(
            docker.DockerClient(base_url=f"unix://{HOST_SOCKET}", timeout=DOCKER_TIMEOUT_S)
        ) as client:
            while found := _ours(client):
                for container in found:
                    # An agent that has just ended may have started to remove it (409).
                    with contextlib.suppress(docker.errors.APIError):
                        if container.status == "paused":
                            container.unpause()
                        container.remove(force=True)
                if clock.monotonic() > deadline:
                    return tuple(str(container.name) for container in _ours(client))
                clock.sleep(LOOK_S)
    except (docker.errors.DockerException, requests.RequestException):
        pass  # no engine responds: its containers end with their namespaces
    return ()


def _ours(client: docker.DockerClient) -> list[Container]:
    found = client.containers.list(all=True, filters={"label": LABEL}, ignore_removed=True)
    return [container for container in found if (container.name or "").startswith(PREFIX)]
