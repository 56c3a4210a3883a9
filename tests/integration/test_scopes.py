"""The kernel's freezer over cgroups as Slurm makes them, real processes, an agent's service.

No Slurm runs here: the test makes the cgroups of a job below a directory of its own, in the
hierarchy of cgroup v1's freezer and in that of v2.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.values import ScopeState
from container_mgr.kernel.cgroup import freezer_hierarchies
from container_mgr.scopes.scopes import Scopes
from container_mgr.scopes.slurm import SlurmGroups
from controller.devices.engine import EngineError
from tests.parts.agent.rig import AgentRig, agent_rig

pytestmark = pytest.mark.root

SCOPE = "slurm:7"
TICK = "i=0; while :; do i=$((i+1)); echo $i >{0}.new; mv {0}.new {0}; sleep 0.02; done"


@dataclass
class Program:
    """A process that counts."""

    process: subprocess.Popen[bytes]
    file: Path

    def count(self) -> int:
        with contextlib.suppress(OSError):
            return int(self.file.read_text())
        return 0

    async def goes_on(self) -> None:
        """Wait until it counts, half a minute at most."""
        before = self.count()
        for _ in range(3000):
            if self.count() > before:
                return
            await asyncio.sleep(0.01)
        pytest.fail("does not count")

    async def stands_still(self) -> None:
        before = self.count()
        await asyncio.sleep(0.3)
        assert self.count() == before


@dataclass
class Hierarchy:
    """A directory of cgroups that is removed with all of its processes."""

    version: int
    root: Path
    directory: Path
    programs: list[Program] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def jobs(self) -> Path:
        if self.version == 1:
            return self.root / "slurm" / "uid_0"
        return self.root / "system.slice" / "slurmstepd.scope"

    def step(self, job: int, step: str, *, own_net: bool = False) -> Program:
        """Begin a step of one process."""
        directory = self.jobs / f"job_{job}" / f"step_{step}"
        return self.program(directory if self.version == 1 else directory / "user/task_0", own_net)

    def stepd(self, job: int, step: str) -> Program:
        """Begin what stands for the slurmstepd of a step, where Slurm puts it."""
        directory = self.jobs / f"job_{job}"
        return self.program(directory if self.version == 1 else directory / f"step_{step}/slurm")

    def program(self, group: Path, own_net: bool = False) -> Program:
        group.mkdir(parents=True, exist_ok=True)
        file = self.directory / f"{next(self.numbers)}"
        words = ["sh", "-c", f"echo $$ >{group}/cgroup.procs; {TICK.format(file)}"]
        argv = ["unshare", "--net", *words] if own_net else words
        program = Program(subprocess.Popen(argv, start_new_session=True), file)
        self.programs.append(program)
        return program

    def remove(self) -> None:
        groups = sorted((p for p in self.root.rglob("*") if p.is_dir()), reverse=True)
        name, word = ("freezer.state", "THAWED") if self.version == 1 else ("cgroup.freeze", "0")
        for group in groups:
            (group / name).write_text(word)
        for program in self.programs:
            with contextlib.suppress(ProcessLookupError):  # all of it has ended and been reaped
                os.killpg(program.process.pid, signal.SIGKILL)
            program.process.wait(timeout=30)
        for group in (*groups, self.root):
            _remove(group)


def _remove(group: Path) -> None:
    """Remove a cgroup; the last process of it may not be quite gone."""
    for _ in range(500):
        with contextlib.suppress(OSError):
            group.rmdir()
        if not group.exists():
            return
        subprocess.run(["sleep", "0.01"], check=True)
    pytest.fail(f"{group} is not empty")


@pytest.fixture(params=[1, 2])
def hierarchy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hierarchy]:
    mounts = dict(freezer_hierarchies())
    if request.param not in mounts:
        pytest.skip(f"no writable hierarchy of cgroup v{request.param}")
    root = mounts[request.param] / f"ll-test-{uuid.uuid4().hex[:8]}"
    root.mkdir()
    made = Hierarchy(request.param, root, tmp_path)
    made.jobs.mkdir(parents=True)
    try:
        yield made
    finally:
        made.remove()


@dataclass
class Rig:
    """An agent's service with TLS, the engine of its controller, and the agent's chore."""

    agent: AgentRig
    hierarchy: Hierarchy

    async def freeze(self, settle_s: float = 0.0) -> bool | None:
        return await self.agent.engine.freeze_scope(SCOPE, ["srv0"], settle_s)

    async def thaw(self) -> None:
        await self.agent.engine.thaw_scope(SCOPE, ["srv0"])

    async def states(self) -> dict[str, ScopeState]:
        return dict((await self.agent.engine.scopes(10.0))["srv0"])


@pytest_asyncio.fixture
async def rig(hierarchy: Hierarchy, tmp_path: Path) -> AsyncIterator[Rig]:
    scopes = Scopes(SlurmGroups([(hierarchy.version, hierarchy.root)]))
    async with agent_rig(tmp_path / "agent", scopes=scopes) as agent:
        holding = asyncio.create_task(scopes.hold_forever())
        try:
            yield Rig(agent, hierarchy)
        finally:
            holding.cancel()


async def each(programs: list[Program], act: Callable[[Program], object]) -> None:
    await asyncio.gather(*(act(program) for program in programs))  # type: ignore[arg-type]


async def test_a_job_stands_still_and_its_slurmstepd_does_not(rig: Rig) -> None:
    steps = [rig.hierarchy.step(7, "batch"), rig.hierarchy.step(7, "0")]
    others = [rig.hierarchy.stepd(7, "0"), rig.hierarchy.step(70, "0")]
    await each([*steps, *others], Program.goes_on)
    assert await rig.freeze(1.0) is None, "they share the machine's sockets"
    await each(steps, Program.stands_still)
    await each(others, Program.goes_on)
    assert await rig.states() == {SCOPE: ScopeState.FROZEN, "slurm:70": ScopeState.RUNNING}
    await rig.freeze()
    await rig.thaw()
    await each(steps, Program.goes_on)
    await rig.thaw()
    assert (await rig.states())[SCOPE] is ScopeState.RUNNING


async def test_a_step_that_begins_while_its_job_is_frozen_stands_still(rig: Rig) -> None:
    first = rig.hierarchy.step(7, "0")
    await first.goes_on()
    await rig.freeze()
    late = rig.hierarchy.step(7, "1")
    for _ in range(100):
        before = late.count()
        await asyncio.sleep(0.3)
        if late.count() == before and (await rig.states())[SCOPE] is ScopeState.FROZEN:
            break
    await each([first, late], Program.stands_still)
    await rig.thaw()
    await each([first, late], Program.goes_on)


async def test_a_frozen_job_outlives_its_agent_and_is_found(
    hierarchy: Hierarchy, tmp_path: Path
) -> None:
    program = hierarchy.step(7, "0")
    await program.goes_on()
    for life in ("first", "second"):
        scopes = Scopes(SlurmGroups([(hierarchy.version, hierarchy.root)]))
        async with agent_rig(tmp_path / life, scopes=scopes) as agent:
            if life == "first":
                await agent.engine.freeze_scope(SCOPE, ["srv0"])
                continue
            found = await agent.engine.scopes(10.0)
            assert found == {"srv0": {SCOPE: ScopeState.FROZEN}}
            await program.stands_still()
            await agent.engine.thaw_scope(SCOPE, ["srv0"])
    await program.goes_on()


async def test_sockets_of_a_namespace_of_its_own_are_read(rig: Rig) -> None:
    program = rig.hierarchy.step(7, "0", own_net=True)
    await program.goes_on()
    assert await rig.freeze(1.0) is True, "it has no socket"
    await rig.thaw()
    await program.goes_on()


async def test_what_ends_while_it_is_frozen_is_gone_after_the_thaw(rig: Rig) -> None:
    """As scancel does it: on cgroup v1 a frozen process dies only once it is thawed."""
    program = rig.hierarchy.step(7, "0")
    await program.goes_on()
    await rig.freeze()
    os.killpg(program.process.pid, signal.SIGKILL)
    await rig.thaw()
    assert await asyncio.to_thread(program.process.wait, 30) == -signal.SIGKILL
    await rig.thaw()


async def test_a_server_without_cgroups_of_slurm_says_so(rig: Rig) -> None:
    with pytest.raises(EngineError) as absent:
        empty = Scopes(SlurmGroups([(rig.hierarchy.version, rig.hierarchy.root / "none")]))
        async with agent_rig(rig.hierarchy.directory / "other", scopes=empty) as agent:
            await agent.engine.freeze_scope(SCOPE, ["srv0"])
    assert absent.value.code == "not_found"
    assert "ProctrackType=proctrack/cgroup" in absent.value.hint
