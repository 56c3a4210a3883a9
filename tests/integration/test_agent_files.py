"""The files that a rank shares with its server: who can write them, and how much."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.agent_parts import PrivateEngine, Rig, agent_rig, two_nics
from tests.parts.agent.ranks import SLEEP, output, seen, until, when_ended

pytestmark = pytest.mark.root

LOST = "the container may not open its GPU any more"

OTHER_ACCOUNT = """
import os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
home, *pids = sys.argv[1:]
places = [f"/proc/{pid}/root/run/lightloom" for pid in pids]
places += [home, f"{home}/ranks", f"{home}/logs", f"{home}/ranks/ll-red-0-1"]
for place in places:
    for name in ("gpu-lost", "ready", "nic.env"):
        try:
            with open(f"{place}/{name}", "x"):
                print("made", place, name)
        except OSError as error:
            print("refused", type(error).__name__)
    try:
        print("listed", place, os.listdir(place))
    except OSError:
        pass
"""


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A directory below one that every account may enter, as ``/run/lightloom`` is."""
    home = Path(tempfile.mkdtemp(prefix="ll-state-"))
    home.chmod(0o755)
    yield home / "agent"
    shutil.rmtree(home)


@pytest_asyncio.fixture
async def rig(private: PrivateEngine, tmp_path: Path, state_dir: Path) -> AsyncIterator[Rig]:
    with two_nics():
        async with agent_rig(private, tmp_path, state_dir=state_dir) as one:
            yield one


def below(directory: Path) -> list[str]:
    """Return the names of all files there."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


async def reasons(rig: Rig) -> dict[int, str]:
    return {status.rank: status.reason for status in await seen(rig)}


async def test_no_account_of_the_server_creates_a_ranks_status_files(
    rig: Rig, private: PrivateEngine, state_dir: Path
) -> None:
    """Otherwise any account could end a job and take its endpoint out of service."""
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    with private.api() as api:
        names = ("ll-red-0-1", "ll-red-1-1")
        found = [await asyncio.to_thread(api.inspect_container, name) for name in names]
    pids = [str(one["State"]["Pid"]) for one in found]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-I", "-c", OTHER_ACCOUNT, str(state_dir), *pids],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = done.stdout.splitlines()
    assert set(said) == {"refused PermissionError"}, done.stdout + done.stderr
    assert len(said) == 18
    assert await reasons(rig) == {0: "", 1: ""}


async def test_a_ranks_own_status_file_is_seen(rig: Rig) -> None:
    signs = ("sh", "-c", "touch /run/lightloom/gpu-lost; sleep 600")
    await rig.engine.start([rig.spec(0, *signs), rig.spec(1, *SLEEP)], 60)
    await until(lambda: reasons(rig), lambda found: found == {0: LOST, 1: ""})
    # A restarted agent sees it as well.
    await rig.down()
    await rig.up()
    assert await reasons(rig) == {0: LOST, 1: ""}


FILES = ("group", "nic.env", "passwd")
"""What the agent gives to a rank."""


async def test_a_rank_that_fills_its_directory_fills_no_other(rig: Rig, state_dir: Path) -> None:
    fills = (
        "cat /dev/zero >/run/lightloom/big 2>/dev/null; i=0;"
        "while touch /run/lightloom/$i 2>/dev/null; do i=$((i+1)); done;"
        "touch /lightloom/rank/nic.env /lightloom/rank/x /lightloom/x 2>/dev/null || echo kept;"
        "echo $i"
    )
    await rig.engine.start([rig.spec(0, "sh", "-c", fills), rig.spec(1, *SLEEP)], 60)
    await when_ended(rig, 0)
    kept, count = await output(rig, 0)
    assert kept == "kept"
    assert 0 < int(count) < 64
    ranks = [f"ll-red-{n}-1" for n in range(2)]
    shared = sorted([*ranks, *(f"{rank}/{name}" for rank in ranks for name in FILES)])
    assert below(state_dir / "ranks") == shared
    assert (await reasons(rig))[1] == ""


async def test_a_rank_without_privileges_creates_status_files(rig: Rig) -> None:
    signs = ("sh", "-c", "touch /run/lightloom/gpu-lost && sleep 600")
    await rig.engine.start([rig.spec(0, *signs), rig.spec(1, *SLEEP)], 60)
    await until(lambda: reasons(rig), lambda found: found == {0: LOST, 1: ""})


async def test_shared_files_are_removed_with_the_rank(rig: Rig, state_dir: Path) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP), rig.spec(1, *SLEEP)], 60)
    await rig.engine.stop("red", 0)
    assert below(state_dir / "ranks") == []
    mounted = await asyncio.to_thread(Path("/proc/self/mountinfo").read_text, encoding="utf-8")
    assert str(state_dir) not in mounted
