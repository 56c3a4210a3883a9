"""Racks with names: each in a lane of its own, with its API at a port of the machine's."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from base.addresses import split_address
from sitefile import load_site
from testbed.engine import DockerEngineError
from testbed.image.errors import ImageError
from testbed.lanes import clone, manage
from testbed.lanes.errors import LaneError
from testbed.lanes.record import RackLane
from testbed.rack import preflight, procfs
from testbed.rack.slurm.root import ensure_root
from testbed.rack.up import KEPT_LOGS, RUN_DIR
from testbed.setup import image
from testbed.token import VARIABLE, token_file

_PROGRAM = "import sys; from console.cli.main import main; sys.exit(main())"


@dataclass(slots=True, frozen=True)
class NamedRack:
    """A lane, and the rack in it as far as it is up."""

    name: str
    state: str
    """``empty``, ``starting``, ``up`` or ``degraded``, as in ``RackStatus``."""
    site: str
    url: str
    """Where the machine reaches its controller, empty if it does not."""
    token_file: str
    """The admin's token, as the machine sees the file."""
    started_at: float
    keeper: int


def prepare(
    *,
    slurm: bool,
    images: Iterable[str] = image.DEFAULT,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Make what a rack needs and a lane cannot fetch. Raises LaneError or RackError."""
    progress("container images (built if missing)")
    try:
        image.ensure([image.BUILDERS[name] for name in images], private=True)
    except (DockerEngineError, ImageError) as error:
        raise LaneError("unavailable", str(error), object="image", hint=error.hint) from error
    if slurm:
        progress("Slurm's packages (unpacked if missing)")
        ensure_root()


def up(
    name: str, site: Path, words: Sequence[str], *, slurm: bool, progress: Callable[[str], None]
) -> int:
    """Make lane ``name`` and run ``lightloom testbed up`` with ``words`` in it.

    Return its exit code; unless that is 0, the lane is gone and the rack's logs are in KEPT_LOGS.
    Raises LaneError, RackError or SiteFileError.
    """
    preflight.need_root()
    _, port = split_address(load_site(site).api_listen)
    prepare(slurm=slurm, progress=progress)
    progress(f"lane {name}")
    manage.create(name, ports=[port])
    code = 1
    try:
        code = run(name, ["testbed", "up", "--site", str(site.absolute()), *words])
    finally:
        if code != 0:
            _keep_logs(name)
            manage.end(name)
    return code


def run(name: str, words: Sequence[str]) -> int:
    """Run ``lightloom`` with ``words`` in lane ``name``; return its exit code."""
    manage.find(name)
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    argv = manage.command(name, [sys.executable, "-c", _PROGRAM, *words])
    return subprocess.run(argv, env=environment, check=False).returncode


def everyone() -> tuple[NamedRack, ...]:
    """Return the lanes and their racks by name; remove lanes whose keeper has died, if root."""
    if os.geteuid() == 0:
        manage.sweep()
    return tuple(_seen(lane) for lane in manage.everyone())


def _seen(lane: RackLane) -> NamedRack:
    """Read a lane from outside, by the root folder of its first process."""
    root = Path(f"/proc/{lane.first}/root")
    try:
        text = (root / str(RUN_DIR).lstrip("/") / "rack.json").read_text(encoding="utf-8")
        record = json.loads(text)
        _, port = split_address(urlsplit(record["url"]).netloc)
        state = str(record["phase"])
        if state == "up" and not _whole(root, record):
            state = "degraded"
        outer = lane.ports.get(port)
        url = f"http://127.0.0.1:{outer}" if outer else ""
        token = f"{root}{token_file(RUN_DIR)}"
        started_at = float(record["started_at"])
        return NamedRack(lane.name, state, record["site"], url, token, started_at, lane.keeper)
    except (OSError, ValueError, KeyError, TypeError):
        return NamedRack(lane.name, "empty", "", "", "", lane.made_at, lane.keeper)


def _whole(root: Path, record: dict[str, object]) -> bool:
    processes = record["processes"]
    if record.get("lost") or not isinstance(processes, list):
        return False
    return all(_alive(root, int(one["pid"]), int(one["ticks"])) for one in processes)


def _alive(root: Path, pid: int, ticks: int) -> bool:
    try:
        stat = (root / "proc" / str(pid) / "stat").read_text(encoding="utf-8")
        state, _, started = procfs.parse_stat(stat)
    except (OSError, ValueError, IndexError):
        return False
    return started == ticks and state not in ("Z", "X", "x")


def _keep_logs(name: str) -> None:
    """Put the logs of a rack that failed where its error message points."""
    kept = clone.library(name) / KEPT_LOGS.name
    with contextlib.suppress(OSError, shutil.Error):
        if kept.is_dir():
            shutil.rmtree(KEPT_LOGS, ignore_errors=True)
            shutil.copytree(kept, KEPT_LOGS)
