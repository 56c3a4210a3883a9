"""Volumes under an engine that maps the users of containers (``userns-remap``)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from protos import agent_pb2 as pb
from tests.integration.agent_parts import PrivateEngine, private_engine
from tests.integration.test_agent_volumes import UID, VolumeRig, imagenet, scratch, volume_rig

pytestmark = pytest.mark.root

BASE = 200_000
"""What user 0 of a container is outside it."""
MAP = "while read -r line; do echo $line; done </proc/self/uid_map"


@pytest.fixture(scope="module")
def mapping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateEngine]:
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
