"""Volumes on file systems that this machine's kernel may lack, in a guest with Debian's kernel.

Project quotas of ext4 and XFS, and NFS by the kernel's own server and client. Emulated is the
machine (QEMU), nothing of the storage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.guests.machine import GuestMachine
from testbed.guests.parts import GuestFiles, install
from testbed.storage.guest import LIBRARIES, PROJECT, RECIPE, start
from tests.integration.storage_guest import MIB, QUOTA

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

CASE_S = 240.0
"""Longest time of one case: some 10 s are usual, but the processor is emulated."""


@pytest.fixture(scope="module")
def boot() -> GuestFiles:
    """QEMU and what it boots."""
    return install(RECIPE)


@pytest.fixture
def guest(boot: GuestFiles, tmp_path: Path) -> Iterator[GuestMachine]:
    machine = start(f"ll-storage-{os.getpid()}", boot, tmp_path)
    try:
        machine.await_boot()
        yield machine
    finally:
        machine.close()


def case(guest: GuestMachine, name: str) -> dict[str, Any]:
    """Run a case of ``storage_guest`` in the guest; return its document."""
    status, output = guest.run(
        f"cd {PROJECT} && LL_LIBRARIES={LIBRARIES} PYTHONPATH={PROJECT} PYTHONDONTWRITEBYTECODE=1"
        f" .venv/bin/python -m tests.integration.storage_guest {name} 2>&1",
        timeout_s=CASE_S,
    )
    assert status == 0, output
    document: dict[str, Any] = json.loads(output.splitlines()[-1])
    return document


@pytest.mark.parametrize("filesystem", ["ext4", "xfs"])
def test_the_kernel_stops_a_job_at_its_quota_and_no_other(
    guest: GuestMachine, filesystem: str
) -> None:
    seen = case(guest, filesystem)
    assert seen["kernel_quota"]
    assert seen["full"] in ("EDQUOT", "ENOSPC")  # XFS says ENOSPC for projects
    assert QUOTA - MIB <= seen["red_bytes"] <= QUOTA
    assert seen["blue"] == 0


def test_an_nfs_volume_is_used_only_while_its_server_is_up(guest: GuestMachine) -> None:
    seen = case(guest, "nfs")
    # The empty directory below is not mistaken for the data set.
    assert seen["unmounted"].startswith("unavailable: nothing is mounted at volume images")
    assert seen["filesystem"] == "nfs4"
    assert seen["images"] == "/mnt/data"
    assert seen["results"] == "/mnt/data/projects/vision"
    # A dead server holds up one thread, and no call beyond its time-out.
    assert seen["dead"].startswith("unavailable: volume images does not answer")
    assert seen["again"] == seen["dead"]
    assert seen["back"] == seen["images"]


def test_an_nfs_server_that_maps_root_is_named_with_the_fix(guest: GuestMachine) -> None:
    seen = case(guest, "nfs-squash")
    assert seen["images"] == "/mnt/data"
    assert seen["results"].startswith("unavailable: volume results")
    assert "no_root_squash" in seen["results"]
