"""Runs in a guest of ``testbed.storage``: the agent's volumes on the file systems of its kernel.

Usage: ``python -m tests.integration.storage_guest CASE``; prints one JSON document. The guest has
no Docker, so a child process with the rank's user takes the place of a rank.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentlink.ranks import RankKey, RankSpec
from agentlink.values import NicSpec, Scope, VolumeMount
from container_mgr.users import RankUser
from container_mgr.values import AgentError
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.volumes import Volumes

MIB = 2**20
QUOTA = 4 * MIB
USER = RankUser(5001, 5001)
DISK = 400 * MIB
"""XFS takes no less than 300 MB."""


def sh(command: str) -> str:
    """Run a shell command with the libraries of the guest's packages; return its output."""
    environment = {**os.environ, "LD_LIBRARY_PATH": os.environ["LL_LIBRARIES"]}
    return subprocess.run(
        ["/bin/sh", "-ec", command],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        env=environment,
    ).stdout


def spec(mount: VolumeMount) -> RankSpec:
    """Return a rank with one volume."""
    return RankSpec(
        key=RankKey("red", 0, 1),
        endpoint="gpu0",
        image="image",
        command=(),
        nic=NicSpec("e0", "10.0.0.1", 24, "02:00:00:00:00:01"),
        volumes=(mount,),
    )


def write_as(user: RankUser, path: Path, size: int) -> int:
    """Write a file as another user; return the error's number, 0 when it worked."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.setgroups([])
        os.setgid(user.gid)
        os.setuid(user.uid)
        with path.open("wb") as file:
            for _ in range(size // MIB):
                file.write(bytes(MIB))
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        os._exit(error.errno or 255)
    os._exit(0)


async def quotas(filesystem: str, options: str) -> dict[str, Any]:
    """Two owners on a disk of their own: the first writes until its quota, the second goes on."""
    sh(
        f"truncate -s {DISK} /tmp/disk; mkdir -p /srv/scratch;"
        f" mkfs.{filesystem} -q {options} /tmp/disk; mount -o loop,prjquota /tmp/disk /srv/scratch"
    )
    volumes = Volumes({"scratch": Offer("scratch", Path("/srv/scratch"), True, True)})
    sources = {}
    for owner in ("red", "blue"):
        mount = VolumeMount("scratch", "/scratch", False, Scope.JOB, owner, QUOTA)
        (bound,) = await volumes.bind(spec(mount), USER)
        sources[owner] = Path(bound.source)
    full = write_as(USER, sources["red"] / "big", 2 * QUOTA)
    (facts,) = await volumes.facts(())
    return {
        "kernel_quota": facts.status.kernel_quota,
        "full": errno.errorcode.get(full, str(full)),
        "red_bytes": (sources["red"] / "big").stat().st_size,
        "blue": write_as(USER, sources["blue"] / "small", QUOTA // 2),
    }


async def nfs(export: str) -> dict[str, Any]:
    """A volume on an NFS server of the guest's kernel, that then dies."""
    sh(
        "mkdir -p /var/lib/nfs/sm /var/lib/nfs/v4recovery /srv/nfs/data /mnt/data;"
        " touch /srv/nfs/data/images /var/lib/nfs/etab /var/lib/nfs/rmtab;"
        " mount -t nfsd nfsd /proc/fs/nfsd;"
        " echo 10 >/proc/fs/nfsd/nfsv4leasetime;"
        # It fails for want of /etc/exports, after it has exported this one.
        f" exportfs -o rw,insecure,fsid=0,no_subtree_check,{export} 127.0.0.1:/srv/nfs || true;"
        " rpc.mountd -N 3 >/dev/null; rpc.nfsd -N 3 -V 4 2; echo Y >/proc/fs/nfsd/v4_end_grace"
    )
    offers = {
        name: Offer(name, Path("/mnt/data"), name == "results", True)
        for name in ("images", "results")
    }
    volumes = {name: Volumes({name: offer}) for name, offer in offers.items()}
    shared = VolumeMount("images", "/data", read_only=True)
    owned = VolumeMount("results", "/results", False, Scope.PROJECT, "vision")
    found: dict[str, Any] = {"unmounted": await outcome(volumes["images"], shared)}
    sh(
        "mount -i -t nfs4 -o addr=127.0.0.1,clientaddr=127.0.0.1,vers=4.2,hard"
        " 127.0.0.1:/data /mnt/data"
    )
    (facts,) = await volumes["images"].facts(())
    found["filesystem"] = facts.status.filesystem
    found["images"] = await outcome(volumes["images"], shared)
    found["results"] = await outcome(volumes["results"], owned)
    sh("echo 0 >/proc/fs/nfsd/threads; echo 3 >/proc/sys/vm/drop_caches")

    found["dead"] = await outcome(volumes["images"], shared)
    found["again"] = await outcome(volumes["images"], shared)

    sh("echo 2 >/proc/fs/nfsd/threads; echo Y >/proc/fs/nfsd/v4_end_grace")
    until = time.monotonic() + 100
    while (back := await outcome(volumes["images"], shared)) != found["images"]:
        if time.monotonic() > until:
            break
        await asyncio.sleep(0.5)
    return found | {"back": back}


async def outcome(volumes: Volumes, mount: VolumeMount) -> str:
    """Bind a volume; return its source, or the code and message of the refusal."""
    try:
        (bound,) = await volumes.bind(spec(mount), USER)
    except AgentError as error:
        return f"{error.code}: {error.message}; {error.hint}"
    return bound.source


CASES: Mapping[str, Any] = {
    "ext4": lambda: quotas("ext4", "-O quota,project"),
    "xfs": lambda: quotas("xfs", ""),
    "nfs": lambda: nfs("no_root_squash"),
    "nfs-squash": lambda: nfs("root_squash"),
}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(CASES[sys.argv[1]]())), flush=True)
    os._exit(0)  # threads may wait for a dead file server
