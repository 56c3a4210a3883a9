"""Volumes and users of ranks on a real engine, and attempts to get out of them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from container_mgr.ranks import quotas
from container_mgr.users import DEFAULT_ID
from container_mgr.volumes.offers import Offer
from protos import agent_pb2 as pb
from tests.integration.agent_parts import PrivateEngine
from tests.integration.mounts import loop_volume, mounted
from tests.integration.tiny_image import tiny_image_tar
from tests.integration.volume_parts import UID, VolumeRig, imagenet, scratch, volume_rig
from tests.parts.agent.ranks import until, when_ended

pytestmark = pytest.mark.root

OTHER = UID + 1
"""The user of another project."""
HOSTILE = "ll-hostile:test"
QUOTA = 1 << 20


@pytest_asyncio.fixture
async def rig(private: PrivateEngine, tmp_path: Path) -> AsyncIterator[VolumeRig]:
    async with volume_rig(private, tmp_path) as one:
        yield one


IDS = "while read -r line; do case $line in [UG]id:*|Groups:*) echo $line;; esac; done"


async def test_a_rank_reads_a_volume_as_its_projects_user(rig: VolumeRig) -> None:
    script = (
        f"{IDS} </proc/self/status; cat /data/train.txt;"
        "touch /data/x 2>/dev/null || echo kept; echo $USER"
    )
    lines = await rig.run(rig.rank(0, script, imagenet()))
    ids = f"{UID} {UID} {UID} {UID}"
    identity = [f"Uid: {ids}", f"Gid: {ids}", f"Groups: {UID}"]
    assert lines == [*identity, "sample", "kept", f"u{UID}"]
    assert not (rig.data / "x").exists()


async def test_a_rank_without_a_user_has_the_agents_default(rig: VolumeRig) -> None:
    lines = await rig.run(rig.rank(0, f"{IDS} </proc/self/status", uid=None))
    assert lines[0] == "Uid: " + " ".join([str(DEFAULT_ID)] * 4)


async def test_what_a_job_writes_outlives_it_and_is_its_own(rig: VolumeRig) -> None:
    wrote = rig.rank(0, "echo weights >/scratch/checkpoint", scratch("vision.red"))
    await rig.run(wrote)
    made = rig.scratch / "jobs" / "vision.red"
    assert (made / "checkpoint").read_text(encoding="ascii") == "weights\n"
    assert (made.stat().st_uid, made.stat().st_mode & 0o7777) == (UID, 0o700)
    assert made.parent.stat().st_mode & 0o7777 == 0o711
    await rig.rig.engine.stop("red", 0)
    other = rig.rank(
        0, "ls -A /scratch; ls /scratch/..", scratch("text.red"), uid=OTHER, job="blue"
    )
    assert "checkpoint" not in " ".join(await rig.run(other))
    volume = await rig.volume("scratch")
    found = {d.owner: d for d in volume.data}
    assert found["text.red"].uid == OTHER
    assert (list(found["text.red"].jobs), list(found["vision.red"].jobs)) == ([], [])
    await rig.rig.down()
    await rig.rig.up()
    again = {d.owner: d for d in (await rig.volume("scratch")).data}
    assert again["vision.red"].created_at == found["vision.red"].created_at


@pytest.mark.parametrize("name", ["../scratch", "scratch/..", "/etc", "", "..", "nothing"])
async def test_a_name_is_never_a_path(rig: VolumeRig, name: str) -> None:
    mount = pb.VolumeMount(volume=name, path="/data", read_only=True)
    fault = await rig.fault(rig.rank(0, "true", mount))
    assert fault.code == ("not_found" if name == "nothing" else "invalid")


@pytest.mark.parametrize("owner", ["../data", "a/b", "", ".", "..", "a.b.c"])
async def test_an_owner_is_never_a_path(rig: VolumeRig, owner: str) -> None:
    fault = await rig.fault(rig.rank(0, "true", scratch(owner)))
    assert fault.code == "invalid"


@pytest.mark.parametrize("path", ["/", "/etc/x", "/lightloom/entry", "/run/lightloom", "/a/../b"])
async def test_a_volume_does_not_hide_the_containers_own_paths(rig: VolumeRig, path: str) -> None:
    fault = await rig.fault(rig.rank(0, "true", imagenet(path)))
    assert (fault.code, fault.object) == ("invalid", "ll-red-0-1")


@pytest.mark.parametrize(
    ("uid", "code"), [(0, "invalid"), (999, "forbidden"), (60001, "forbidden")]
)
async def test_a_user_out_of_bounds_is_refused(rig: VolumeRig, uid: int, code: str) -> None:
    assert (await rig.fault(rig.rank(0, "true", uid=uid))).code == code


async def test_writing_to_a_read_only_offer_is_refused(rig: VolumeRig) -> None:
    fault = await rig.fault(rig.rank(0, "true", imagenet(read_only=False)))
    assert (fault.code, "imagenet" in fault.message) == ("forbidden", True)


async def test_a_planted_link_stays_in_the_containers_view(rig: VolumeRig) -> None:
    """One rank of a job plants it in the shared directory, another one follows it."""
    secret = rig.directory / "secret"
    secret.write_text("of the server\n", encoding="ascii")
    targets = (secret, f"/proc/1/root{secret}", "../../../secret", "/scratch/../../secret")
    plant = "; ".join(f"ln -s {target} /scratch/l{n}" for n, target in enumerate(targets))
    await rig.run(rig.rank(0, plant, scratch("vision", pb.SCOPE_PROJECT)))
    await rig.rig.engine.stop("red", 0)
    assert (rig.scratch / "projects" / "vision" / "l0").read_text() == "of the server\n"
    follow = "for n in 0 1 2 3; do cat /scratch/l$n || echo nothing; done"
    lines = await rig.run(rig.rank(0, follow, scratch("vision", pb.SCOPE_PROJECT), job="blue"))
    assert "of the server" not in lines
    assert lines.count("nothing") == 4


@pytest.mark.parametrize("planted", ["link", "file"])
async def test_a_link_in_place_of_a_jobs_directory_is_refused(rig: VolumeRig, planted: str) -> None:
    jobs = rig.scratch / "jobs"
    jobs.mkdir(mode=0o711)
    if planted == "link":
        (jobs / "vision.red").symlink_to(rig.directory)
    else:
        (jobs / "vision.red").touch()
    fault = await rig.fault(rig.rank(0, "true", scratch("vision.red")))
    assert (fault.code, "vision.red" in fault.message) == ("conflict", True)


async def test_a_directory_of_another_user_is_refused(rig: VolumeRig) -> None:
    await rig.run(rig.rank(0, "true", scratch("vision.red")))
    await rig.rig.engine.stop("red", 0)
    fault = await rig.fault(rig.rank(0, "true", scratch("vision.red"), uid=OTHER))
    assert (fault.code, str(UID) in fault.message) == ("conflict", True)


async def test_a_link_on_the_way_to_a_volume_is_refused(rig: VolumeRig) -> None:
    rig.data.rename(rig.directory / "moved")
    rig.data.symlink_to(rig.directory / "moved")
    fault = await rig.fault(rig.rank(0, "true", imagenet()))
    assert (fault.code, "imagenet" in fault.message) == ("unavailable", True)


async def test_a_mount_below_a_volume_is_not_visible(rig: VolumeRig) -> None:
    nested = rig.data / "nested"
    nested.mkdir()
    with mounted("-t", "tmpfs", "ll-nested", nested):
        (nested / "hidden").touch()
        lines = await rig.run(rig.rank(0, "ls /data /data/nested", imagenet()))
        assert "nested" in lines
        assert "hidden" not in lines


async def test_the_empty_directory_below_a_mount_is_not_used(
    private: PrivateEngine, tmp_path: Path
) -> None:
    place = tmp_path / "nfs"
    place.mkdir()
    async with volume_rig(private, tmp_path, Offer("nfs", place, mount=True)) as rig:
        mount = pb.VolumeMount(volume="nfs", path="/nfs", read_only=True)
        fault = await rig.fault(rig.rank(0, "true", mount))
        assert (fault.code, "nothing is mounted at volume nfs" in fault.message) == (
            "unavailable", True,
        )  # fmt: skip
        assert (await rig.volume("nfs")).problem == fault.message
        with mounted("-t", "tmpfs", "ll-nfs", place):
            place.chmod(0o755)
            await rig.run(rig.rank(0, "true", mount))
            assert (await rig.volume("nfs")).filesystem == "tmpfs"
            await rig.rig.engine.stop("red", 0)


async def test_a_job_that_exceeds_its_quota_is_ended_with_the_reason(
    rig: VolumeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "ENFORCE_S", 0.2)
    await rig.rig.down()
    await rig.rig.up()
    fill = "dd if=/dev/zero of=/scratch/big bs=1M count=4; sleep 600"
    mount = scratch("vision.red", quota_bytes=QUOTA)
    peer = rig.rank(1, "sleep 600", scratch("vision.blue", quota_bytes=QUOTA))
    assert not (await rig.start(rig.rank(0, fill, mount), peer)).faults
    await when_ended(rig.rig, 0)
    reason = (await rig.status(0)).reason
    assert reason.startswith("the data of vision.red in volume scratch is ")
    assert reason.endswith(", its quota is 1 MiB")
    assert (await rig.status(1)).state == pb.STATE_RUNNING
    data = next(d for d in (await rig.volume("scratch")).data if d.owner == "vision.red")
    assert (data.bytes > QUOTA, data.quota_bytes) == (True, QUOTA)
    await rig.rig.down()
    await rig.rig.up()
    assert (await rig.status(0)).reason == reason


async def remove(rig: VolumeRig, owner: str) -> bool:
    request = pb.RemoveDataRequest(volume="scratch", scope=pb.SCOPE_JOB, owner=owner)
    return bool((await rig.call("RemoveData", request)).removed)


async def test_data_is_removed_but_not_while_it_is_used(rig: VolumeRig) -> None:
    deep = "cd /scratch; i=0; while [ $i -lt 5 ]; do echo $i >f$i; i=$((i+1)); done; sleep 600"
    await rig.start(rig.rank(0, deep, scratch("vision.red")))
    await rig.rig.down()
    await rig.rig.up()  # the labels say who uses it
    with pytest.raises(Exception, match="job red uses the data"):
        await remove(rig, "vision.red")
    await rig.rig.engine.stop("red", 0)
    assert await remove(rig, "vision.red")
    assert not (rig.scratch / "jobs" / "vision.red").exists()
    assert not await remove(rig, "vision.red")
    await emptied(rig)
    assert [d.owner for d in (await rig.volume("scratch")).data] == []


async def test_a_removal_that_a_crash_interrupted_is_finished(rig: VolumeRig) -> None:
    left = rig.scratch / ".lightloom" / "removed" / "7" / "deep"
    left.mkdir(parents=True)
    for path in (left.parents[2], left.parents[1]):
        path.chmod(0o700)
    (left / "file").touch()
    await rig.rig.down()
    await rig.rig.up()
    await emptied(rig)


async def emptied(rig: VolumeRig) -> None:
    """Wait until nothing is left of removed data."""

    async def left() -> list[Path]:
        return list((rig.scratch / ".lightloom" / "removed").iterdir())

    await until(left, lambda found: not found)


def import_hostile(private: PrivateEngine) -> None:
    """An image that declares volumes and root, and names the agent's users after root."""
    name, _, tag = HOSTILE.partition(":")
    with private.api() as api:
        api.import_image_from_data(
            tiny_image_tar(
                {
                    "etc/passwd": f"{UID}:x:0:0::/:/bin/sh\nevil:x:{UID}:0::/:/bin/sh\n",
                    "etc/group": f"{UID}:x:0:evil\nroot:x:0:evil,{UID}\n",
                }
            ),
            repository=name,
            tag=tag,
            changes=["USER 0", "VOLUME /data", "VOLUME /tmp"],
        )


async def test_an_image_with_volumes_and_root_gets_neither(
    rig: VolumeRig, private: PrivateEngine
) -> None:
    import_hostile(private)
    script = f"{IDS} </proc/self/status; touch /data/x && echo wrote; cat /proc/mounts"
    rank = rig.rank(0, script)
    rank.image = HOSTILE
    lines = await rig.run(rank)
    ids = f"{UID} {UID} {UID} {UID}"
    assert lines[:4] == [f"Uid: {ids}", f"Gid: {ids}", f"Groups: {UID}", "wrote"]
    shown = {line.split()[1]: line.split()[2] for line in lines if line.count(" ") == 5}
    assert (shown["/data"], shown["/tmp"]) == ("tmpfs", "tmpfs")
    with private.api() as api:
        assert not api.volumes()["Volumes"]


async def test_a_volume_of_an_image_does_not_hide_one_of_the_job(
    rig: VolumeRig, private: PrivateEngine
) -> None:
    import_hostile(private)
    rank = rig.rank(0, "cat /data/train.txt", imagenet())
    rank.image = HOSTILE
    assert await rig.run(rank) == ["sample"]


@contextlib.contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Make every write to a file system wait, as one does whose server is gone."""
    subprocess.run(["fsfreeze", "-f", str(place)], check=True, timeout=30)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "-u", str(place)], check=True, timeout=30)


async def test_a_volume_that_hangs_does_not_hang_the_agent(
    private: PrivateEngine, tmp_path: Path
) -> None:
    with loop_volume(tmp_path) as place:
        async with volume_rig(
            private, tmp_path, Offer("disk", place, writable=True, mount=True)
        ) as rig:
            with frozen(place):
                mount = pb.VolumeMount(
                    volume="disk", path="/disk", scope=pb.SCOPE_JOB, owner="vision.red"
                )
                fault = await rig.fault(rig.rank(0, "true", mount))
                assert (fault.code, "disk does not answer" in fault.message) == (
                    "unavailable", True,
                )  # fmt: skip
                assert "does not answer" in (await rig.volume("disk")).problem
                assert (await rig.volume("imagenet")).problem == ""
                assert await rig.run(rig.rank(0, "cat /data/train.txt", imagenet())) == ["sample"]

            async def problem() -> str:
                return str((await rig.volume("disk")).problem)

            await until(problem, lambda text: not text)
            await rig.rig.engine.stop("red", 0)


RATE = 8 << 20
"""Bytes per second that the rank asks for."""


async def test_limits_of_memory_and_disk_hold_under_load(
    private: PrivateEngine, tmp_path: Path
) -> None:
    """A rank writes and reads past the page cache, while its memory is nearly full."""
    with loop_volume(tmp_path) as place:
        async with volume_rig(
            private, tmp_path, Offer("disk", place, writable=True, mount=True)
        ) as rig:
            mount = pb.VolumeMount(
                volume="disk", path="/disk", scope=pb.SCOPE_JOB, owner="vision.red",
                write_bps=RATE, read_bps=2 * RATE,
            )  # fmt: skip
            script = (
                "dd if=/dev/zero of=/tmp/fill bs=1M count=24 2>/dev/null;"
                "dd if=/dev/zero of=/disk/x bs=1M count=64 oflag=direct;"
                "dd if=/disk/x of=/dev/null bs=1M iflag=direct"
            )
            rank = rig.rank(0, script, mount)
            rank.limits.memory_bytes = 64 << 20
            lines = [line for line in await rig.run(rank) if "bytes" in line]
            wrote, read = (64 * 2**20 / seconds_of(line) for line in lines)
            print(f"write: asked {RATE}, measured {wrote:.0f} bytes/s")
            print(f"read: asked {2 * RATE}, measured {read:.0f} bytes/s")
            status = await rig.status(0)
            assert (status.exit_code, status.oom) == (0, False)
            # Never more; a busy machine may give less.
            assert wrote <= 1.05 * RATE
            assert read <= 1.05 * 2 * RATE
            await rig.rig.engine.stop("red", 0)


def seconds_of(line: str) -> float:
    """Read the time from the last line of dd: ``... copied, 8.0 s, 8.4 MB/s``."""
    return float(line.split(" copied, ")[1].split(" s", maxsplit=1)[0])
