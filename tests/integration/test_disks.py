"""On the rack: the controller's own disk is full, frozen, or fails to synchronise.

The state directory lies on an ext4 of its own, in a file on a small tmpfs: a full ext4 refuses
writes, a frozen one (fsfreeze) keeps them waiting, and a full tmpfs below makes every fsync fail.
Each time the controller goes on by itself once the disk does; what it acknowledged is there after
a restart, and what it refused never was.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import testbed
from testbed import ring
from testbed.mortal import Mortal
from testbed.rack import down, up

pytestmark = [pytest.mark.root, pytest.mark.timeout(900)]

PAPER = Path(testbed.__file__).parent / "sites" / "paper.yaml"
FROZEN_S = 13.0
"""Longer than any of the controller's time-outs for one write."""
TRIES = 150
"""Submits until a full disk must have refused one: the write-ahead log uses its space again."""


class OwnDisk:
    """An ext4 without a journal in a file on a tmpfs, mounted at ``at``."""

    def __init__(self, folder: Path) -> None:
        self.below, self.at = folder / "below", folder / "disk"
        self._filler = self.at / "filler"

    def mount(self) -> None:
        for folder in (self.below, self.at):
            folder.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", "size=96m", "ll-disk", str(self.below))
        image = self.below / "image"
        with image.open("wb") as file:
            file.truncate(80 * 2**20)
        _run("mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0", str(image))
        _run("mount", "-o", "loop,errors=continue", str(image), str(self.at))

    def unmount(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _run("fsfreeze", "-u", str(self.at))
        for folder in (self.at, self.below):
            with contextlib.suppress(subprocess.CalledProcessError):
                _run("umount", str(folder))

    def fill(self) -> None:
        _fill(self._filler)

    def fail(self) -> None:
        """Leave no room below: what the ext4 hands down is refused."""
        _fill(self.below / "filler")

    def freeze(self) -> None:
        _run("fsfreeze", "-f", str(self.at))

    def thaw(self) -> None:
        _run("fsfreeze", "-u", str(self.at))

    def mend(self) -> None:
        self._filler.unlink(missing_ok=True)
        (self.below / "filler").unlink(missing_ok=True)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (2**20, 4096, 512):
            with contextlib.suppress(OSError):
                while file.write(os.urandom(size)):
                    pass
        os.fsync(file.fileno())


class Rack:
    """A rack whose controller lives on a disk of its own, and what its users were told."""

    def __init__(self, mortal: Mortal, disk: OwnDisk) -> None:
        self.mortal, self.disk = mortal, disk
        self.there: set[str] = set()
        self.refused: set[str] = set()

    def submit(self, name: str, **fields: object) -> bool:
        """Submit a job that has to wait; return whether it was acknowledged.

        An answer that leaves open what was done says so: then the object is looked at.
        """
        body = {"name": name, "count": 6, "command": ["true"], **fields}
        answer = self.mortal.http.post("/jobs", json=body)
        there = answer.is_success or (
            "the change was made" in answer.text and self.state(name) != "none"
        )
        (self.there if there else self.refused).add(name)
        return answer.is_success

    def state(self, name: str) -> str:
        answer = self.mortal.http.get(f"/jobs/{name}")
        return str(answer.json()["state"]) if answer.is_success else "none"

    def well(self) -> None:
        self.mortal.until(self.mortal.whole)

    def names(self) -> set[str]:
        return {job["name"] for job in self.mortal.get("/jobs", limit=1000)["items"]}

    def check(self) -> None:
        """What was acknowledged is there, and what was refused is not."""
        names = self.names()
        assert self.there <= names
        assert not self.refused & names

    def clear(self) -> None:
        """Take the waiting jobs away, so that projects' limits are not in the way."""
        for name in sorted(self.there & self.names()):
            if self.state(name) == "pending":
                self.mortal.http.post(f"/jobs/{name}/cancel").raise_for_status()


@pytest.fixture
def rack() -> Iterator[Rack]:
    run_dir = Path(f"/run/lightloom/test-{os.getpid()}")
    disk = OwnDisk(Path(f"/run/ll-disks-{os.getpid()}"))
    try:
        disk.mount()
        status = up(PAPER, run_dir, progress=lambda _: None)
        mortal = Mortal(status, run_dir, "--state-dir", str(disk.at / "controller"))
        shutil.copytree(run_dir / "controller", disk.at / "controller")
        try:
            mortal.start()
            yield Rack(mortal, disk)
        finally:
            disk.mend()
            mortal.stop()
    finally:
        down(run_dir, progress=lambda _: None)
        disk.unmount()
        shutil.rmtree(disk.at.parent, ignore_errors=True)


def test_a_controller_survives_its_disk(rack: Rack) -> None:
    mortal, disk = rack.mortal, rack.disk
    mortal.post("/jobs", ring.request("red", ["gpu0", "gpu2"]))
    for name, endpoint in (("blue", "gpu1"), ("green", "gpu3")):
        mortal.post("/jobs", ring.request(name, [endpoint]))
    mortal.until(lambda: all(rack.state(job) == "running" for job in ("red", "blue", "green")))

    # --- full -----------------------------------------------------------------------------
    disk.fill()
    padding = {"USER_X": "y" * 3000}
    assert not all(rack.submit(f"full-{n}", env=padding) for n in range(TRIES))
    cancel = mortal.http.post("/jobs/blue/cancel")
    assert mortal.get("/health")["status"] == "degraded"
    disk.mend()
    rack.well()
    if cancel.is_error and "its end is not written" not in cancel.text:
        assert rack.state("blue") == "running", "what was refused was not done"
        mortal.http.post("/jobs/blue/cancel").raise_for_status()
    mortal.until(lambda: rack.state("blue") == "cancelled")
    rack.check()
    assert rack.submit("after-full")
    rack.clear()

    # --- frozen ---------------------------------------------------------------------------
    disk.freeze()
    thaw = threading.Timer(FROZEN_S, disk.thaw)
    thaw.start()
    began = time.monotonic()
    late = [threading.Thread(target=rack.submit, args=(f"frozen-{n}",)) for n in range(3)]
    for thread in late:
        thread.start()
    while thaw.is_alive():
        with contextlib.suppress(httpx.TimeoutException):
            assert mortal.http.get("/health", timeout=5).is_success, "the loop goes on"
        time.sleep(0.5)
    assert time.monotonic() - began >= FROZEN_S
    for thread in late:
        thread.join()
    rack.well()
    rack.check()
    assert rack.submit("after-frozen"), "no restart is needed"
    rack.clear()

    # --- every fsync fails ----------------------------------------------------------------
    disk.fail()
    assert not all(rack.submit(f"failing-{n}", env=padding) for n in range(TRIES))
    disk.mend()
    rack.well()
    rack.check()
    assert rack.submit("after-failing")
    rack.clear()

    # --- what a restart finds -------------------------------------------------------------
    before = {name: rack.state(name) for name in rack.names()}
    mortal.kill()
    mortal.start()
    rack.check()
    assert {name: rack.state(name) for name in rack.names()} == before
    assert (before["red"], before["blue"], before["green"]) == ("running", "cancelled", "running")
