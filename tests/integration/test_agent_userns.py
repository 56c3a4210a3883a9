"""Volumes under an engine that maps the users of containers (``userns-remap``)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from controller.devices.agents.messages import rank_message
from protos import agent_pb2 as pb
from tests.integration.agent_parts import PrivateEngine, private_engine
from tests.integration.mounts import unmount
from tests.integration.volume_parts import UID, VolumeRig, imagenet, scratch, volume_rig
from tests.parts.agent.ranks import output, until, when_ended

pytestmark = pytest.mark.root

BASE = 200_000
"""What user 0 of a container is outside it."""
WRITE = (
    "cd $LIGHTLOOM_CHECKPOINT_DIR && mkdir step-10.tmp && echo weights >step-10.tmp/model"
    " && mv step-10.tmp step-10"
)
READ = (
    "cat $LIGHTLOOM_RESTORE_DIR/step-10/model; cd $LIGHTLOOM_CHECKPOINT_DIR; cat step-10/model;"
    " echo more >step-10/model && echo wrote"
)
MAP = "while read -r line; do echo $line; done </proc/self/uid_map"


@pytest.fixture(scope="module")
def propagating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is mounted in the tests' folders reaches the engine, as under systemd."""
    base = str(tmp_path_factory.getbasetemp())
    run = partial(subprocess.run, check=True, timeout=30)
    run(["mount", "--bind", base, base])
    try:
        run(["mount", "--make-shared", base])
        yield
    finally:
        run(["umount", "--lazy", base])


@pytest.fixture(scope="module")
def mapping(tmp_path_factory: pytest.TempPathFactory, propagating: None) -> Iterator[PrivateEngine]:
    """An engine that maps users. It has an /etc of its own: the machine's gets no number ranges."""
    folder, found = tmp_path_factory.mktemp("mapping"), shutil.which("dockerd")
    etc = folder / "etc"
    etc.mkdir()
    (folder / "start").write_text(
        f"mount -t tmpfs ll-etc {etc}; cp -a /etc/. {etc}\n"
        f"echo daemon:{BASE}:65536 | tee {etc}/subuid >{etc}/subgid\n"
        f'mount --bind {etc} /etc\nexec {found} --userns-remap=daemon "$@"\n',
        encoding="ascii",
    )
    wrapper = folder / "dockerd"
    command = f'exec unshare --mount --propagation slave /bin/sh -e {folder}/start "$@"'
    wrapper.write_text(f"#!/bin/sh\n{command}\n", encoding="ascii")
    wrapper.chmod(0o755)
    with private_engine(str(folder)) as one:
        yield one


@pytest_asyncio.fixture
async def rig(mapping: PrivateEngine, tmp_path: Path) -> AsyncIterator[VolumeRig]:
    async with volume_rig(mapping, tmp_path) as one:
        yield one
    unmount(tmp_path)


async def test_a_mapped_rank_owns_its_directory_and_reads_what_all_may_read(rig: VolumeRig) -> None:
    owner = scratch("vision", pb.SCOPE_PROJECT)
    script = f"{MAP}; cat /data/train.txt; echo result >/scratch/result; ls -n /scratch"
    mapped, sample, _, listed = await rig.run(rig.rank(0, script, imagenet(), owner))
    assert mapped.split() == ["0", str(BASE), "65536"]
    assert sample == "sample"
    assert listed.split()[2:4] == [str(UID), str(UID)]
    left = rig.scratch / "projects" / "vision" / "result"
    assert (left.stat().st_uid, left.stat().st_gid) == (BASE + UID, BASE + UID)
    assert left.read_text(encoding="ascii") == "result\n"


async def test_another_projects_user_cannot_read_it_under_a_mapping_either(rig: VolumeRig) -> None:
    await rig.run(rig.rank(0, "echo x >/scratch/x", scratch("vision", pb.SCOPE_PROJECT)))
    await rig.call("Stop", pb.StopRequest(job="red", grace_s=0))
    fault = await rig.fault(
        rig.rank(0, "cat /scratch/x", scratch("vision", pb.SCOPE_PROJECT), uid=UID + 1, epoch=2)
    )
    assert "vision" in fault.message


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_a_mapped_rank_writes_checkpoints_and_resumes_from_them(
    rig: VolumeRig, where: str
) -> None:
    """The live folder is its own, as it is outside the container; the agent reads the parts."""
    asked = pb.RankCheckpoint(
        folder="red.0123abcd",
        ranks=2,
        rule="rename",
        where=where,
        size_bytes=32 << 20,
        key=bytes(32),
    )
    shelf = rig.rig.config.checkpoints_directory / asked.folder / "gpu0"
    peer = rank_message(rig.rig.spec(1, "sleep", "600"))
    rank = rig.rank(0, f"{WRITE}; sleep 600")
    rank.checkpoint.CopyFrom(asked)
    reply = await rig.start(rank, peer)
    assert not reply.faults, reply.faults

    async def held() -> list[str]:
        return [path.name for path in (shelf / "held").glob("10.1")]

    await until(held, bool)
    for path in (shelf / "live" / "files", shelf / "live" / "files" / "step-10" / "model"):
        assert (path.stat().st_uid, path.stat().st_gid) == (BASE + UID, BASE + UID)
    await rig.call("Stop", pb.StopRequest(job="red", grace_s=0))
    rank = rig.rank(0, READ, epoch=2)
    rank.checkpoint.CopyFrom(asked)
    rank.checkpoint.resumed.CopyFrom(pb.StepKey(step=10, epoch=1))
    reply = await rig.start(rank, rank_message(rig.rig.spec(1, "sleep", "600", epoch=2)))
    assert not reply.faults, reply.faults
    await when_ended(rig.rig, 0)
    assert await output(rig.rig, 0) == ["weights", "weights", "wrote"]
    await rig.call("Stop", pb.StopRequest(job="red", grace_s=0))
    reply = await rig.call("ForgetCheckpoints", pb.ForgetCheckpointsRequest(folder=asked.folder))
    assert reply.removed
    assert not shelf.exists()
