"""Freezing and thawing scopes, in cgroups of plain files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from agentlink.values import ScopeState
from base import clock
from container_mgr.kernel.freezer import Freezer
from container_mgr.scopes import processes, scopes
from container_mgr.scopes.groups import Steps
from container_mgr.scopes.scopes import Scopes
from container_mgr.scopes.slurm import SlurmGroups
from container_mgr.values import AgentError
from testbed.simulated.loop import settled
from tests.parts.agent.trees import AGENT_NET, ROOT_NET, Tree, asked, obey

SCOPE = "slurm:7"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path, 1)


@pytest.fixture
def new(tmp_path: Path) -> Tree:
    return Tree(tmp_path, 2)


def of(tree: Tree, limit_s: float = 30.0) -> Scopes:
    return Scopes(tree.groups(), limit_s=limit_s, proc=tree.proc, sysfs=tree.sysfs)


async def when_asked(one: Freezer) -> None:
    """Wait until the kernel was asked to freeze, half a minute at most."""
    async with asyncio.timeout(30):
        while not asked(one):
            await settled()


class Growing(SlurmGroups):
    """Slurm begins a step at each look, so many times."""

    def __init__(self, tree: Tree, times: int) -> None:
        super().__init__([(tree.version, tree.root)], proc=tree.proc)
        self.tree, self.times, self.looks = tree, times, 0

    def steps(self, job: str) -> Steps:
        self.looks += 1
        if self.looks <= self.times:
            self.tree.step(int(job), str(self.looks))
        return super().steps(job)


async def test_a_scope_freezes_and_thaws_whole_and_alone(tree: Tree) -> None:
    mine = [tree.step(7, "batch"), tree.step(7, "0")]
    other = tree.step(70)
    all_scopes = of(tree)
    for _ in range(2):
        done = await all_scopes.freeze(SCOPE)
        assert (done.cgroups, done.faults) == (2, ())
    assert [asked(one) for one in (*mine, other)] == [True, True, False]
    assert await all_scopes.states() == {SCOPE: ScopeState.FROZEN, "slurm:70": ScopeState.RUNNING}
    # Another agent sees and thaws what this one froze.
    for _ in range(2):
        done = await of(tree).thaw(SCOPE)
        assert (done.cgroups, done.faults) == (2, ())
    assert not any(map(asked, mine))
    assert (await all_scopes.states())[SCOPE] is ScopeState.RUNNING


async def test_a_freeze_is_done_when_the_kernel_says_so(new: Tree) -> None:
    step = new.step(7)
    freezing = asyncio.create_task(of(new).freeze(SCOPE))
    await when_asked(step)
    assert not freezing.done()
    assert (await of(new).states())[SCOPE] is ScopeState.FROZEN, "on its way"
    obey(step)
    assert (await freezing).cgroups == 1


async def test_steps_that_begin_during_the_freeze_are_frozen_too(tree: Tree) -> None:
    first = tree.step(7, "batch")
    groups = Growing(tree, 3)
    done = await Scopes(groups, limit_s=30.0, proc=tree.proc).freeze(SCOPE)
    assert (done.cgroups, done.faults) == (4, ())
    assert asked(first)
    assert all(map(asked, groups.steps("7").freezers))


async def test_steps_without_end_are_a_fault(tree: Tree) -> None:
    done = await Scopes(Growing(tree, 10_000), limit_s=0.0, proc=tree.proc).freeze(SCOPE)
    (fault,) = done.faults
    assert (fault.code, fault.obj) == ("timeout", f"scope/{SCOPE}")
    assert "step_2" in fault.message


async def test_a_step_that_does_not_freeze_keeps_running_and_is_named(new: Tree) -> None:
    stuck = new.step(7, "0")
    frozen = new.step(7, "1")
    (frozen.group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    done = await of(new, limit_s=0.01).freeze(SCOPE)
    (fault,) = done.faults
    assert (fault.code, fault.obj, done.cgroups) == ("timeout", f"scope/{SCOPE}", 1)
    assert str(stuck.group) in fault.message
    assert not asked(stuck)
    assert asked(frozen), "the caller thaws it"


async def test_a_step_below_a_frozen_cgroup_is_named(new: Tree) -> None:
    step = new.step(7)
    (step.group / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    done = await of(new, limit_s=0.01).thaw(SCOPE)
    (fault,) = done.faults
    assert (fault.code, done.cgroups) == ("failed", 0)
    assert str(step.group) in fault.message


async def test_a_cgroup_that_cannot_be_written_is_a_fault(tree: Tree) -> None:
    step = tree.step(7)
    (step.group / "freezer.state").unlink()
    (step.group / "freezer.state").mkdir()
    for call in (of(tree, 0.01).freeze, of(tree, 0.01).thaw):
        done = await call(SCOPE)
        assert done.faults[0].code == "failed"
        assert done.faults[0].hint


async def test_steps_that_end_meanwhile_are_no_fault(tree: Tree) -> None:
    gone = Freezer(1, tree.root / "gone")

    class Ended(SlurmGroups):
        def steps(self, job: str) -> Steps:
            return Steps((gone,), known=True)

    one = Scopes(Ended([]), limit_s=30.0, proc=tree.proc)
    assert (await one.freeze(SCOPE)).faults == ()
    assert (await one.thaw(SCOPE)).faults == ()


@pytest.mark.parametrize(
    "scope",
    [
        *("", "7", "slurm:", "slurm:0", "slurm:07", "slurm:-7", "slurm:7\n", "slurm:7.0", "pod:7"),
        *("slurm:12345678901", "slurm:٧", "slurm:7/../8", "SLURM:7", "slurm:../../etc"),
    ],
)
async def test_what_is_no_scope_is_refused(tree: Tree, scope: str) -> None:
    for call in (of(tree).freeze, of(tree).thaw):
        with pytest.raises(AgentError) as refused:
            await call(scope)
        assert refused.value.code == "invalid"


async def test_a_server_without_slurms_cgroups_cannot_freeze(tree: Tree) -> None:
    with pytest.raises(AgentError, match="proctrack/cgroup") as absent:
        await of(tree).freeze(SCOPE)
    assert absent.value.code == "not_found"
    assert "ProctrackType=proctrack/cgroup" in absent.value.hint
    done = await of(tree).thaw(SCOPE)  # nothing is frozen
    assert (done.cgroups, done.faults) == (0, ())


async def test_a_job_that_has_no_process_here_yet_is_frozen(tree: Tree) -> None:
    tree.top()
    one = of(tree)
    assert (await one.freeze(SCOPE)).cgroups == 0
    late = tree.step(7)
    await one.hold(SCOPE, clock.monotonic())
    assert asked(late)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's slurmstepd counts")
async def test_a_job_outside_of_cgroups_cannot_be_frozen(tree: Tree) -> None:
    tree.top()
    tree.stepd(42, "slurmstepd: [7.0]", "/")
    with pytest.raises(AgentError, match="proctrack/cgroup") as untracked:
        await of(tree).freeze(SCOPE)
    assert untracked.value.code == "not_found"
    assert (await of(tree).freeze("slurm:8")).faults == ()


async def test_a_step_that_begins_in_a_frozen_scope_is_frozen(tree: Tree) -> None:
    first, one = tree.step(7, "0"), of(tree)
    await one.freeze(SCOPE)
    late = tree.step(7, "1")
    assert (await one.states())[SCOPE] is ScopeState.PARTLY
    holding = asyncio.create_task(one.hold_forever())
    await when_asked(late)
    holding.cancel()
    await one.thaw(SCOPE)
    assert not asked(first)
    assert not asked(late)
    newest = tree.step(7, "2")
    await one.hold(SCOPE, clock.monotonic())
    assert not asked(newest)


async def test_what_slurm_thaws_to_kill_it_stays_thawed(tree: Tree) -> None:
    step, one = tree.step(7), of(tree)
    await one.freeze(SCOPE)
    step.request(frozen=False)
    await one.hold(SCOPE, clock.monotonic())
    assert not asked(step)


async def test_a_scope_is_held_for_a_limited_time_and_number(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.step(7)
    one = of(tree)
    await one.freeze(SCOPE)
    late = tree.step(7, "1")
    await one.hold(SCOPE, clock.monotonic() + scopes.HOLD_S + 1)
    await one.hold(SCOPE, clock.monotonic())
    assert not asked(late)
    monkeypatch.setattr(scopes, "MAX_HELD", 2)
    for job in range(1, 5):
        await one.freeze(f"slurm:{job}")
    assert list(one._held) == ["slurm:3", "slurm:4"]


async def test_a_failed_freeze_holds_nothing(new: Tree) -> None:
    new.step(7)
    one = of(new, limit_s=0.01)
    assert (await one.freeze(SCOPE)).faults
    late = new.step(7, "1")
    await one.hold(SCOPE, clock.monotonic())
    assert not asked(late)


async def test_sockets_are_read_in_namespaces_of_the_job_only(tree: Tree) -> None:
    step = tree.step(7)
    assert (await of(tree).freeze(SCOPE)).settled is None, "no process"
    tree.process(50, "net:[3]", step.group)
    tree.process(51, "net:[3]", step.group)
    assert (await of(tree).freeze(SCOPE)).settled is True
    below = step.group / "task_0"
    below.mkdir()
    tree.process(52, "net:[4]", below)
    (tree.proc / "52" / "net" / "sockstat").write_text("UDP: inuse 1\n")
    assert (await of(tree).freeze(SCOPE)).settled is None
    assert sorted(processes.one_per_namespace([step.group], tree.proc) or ()) == [50, 52]


@pytest.mark.parametrize("net", [ROOT_NET, AGENT_NET])
async def test_shared_namespaces_say_nothing(tree: Tree, net: str) -> None:
    step = tree.step(7)
    tree.process(50, "net:[3]", step.group)
    tree.process(51, net, step.group)
    assert (await of(tree).freeze(SCOPE)).settled is None


async def test_rdma_and_many_processes_say_nothing(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = tree.step(7)
    tree.process(50, "net:[3]", step.group)
    tree.process(51, "net:[3]", step.group)

    async def settled() -> Any:
        return (await of(tree).freeze(SCOPE)).settled

    assert await settled() is True
    monkeypatch.setattr(processes, "MAX_PROCESSES", 1)
    assert await settled() is None
    monkeypatch.undo()
    (tree.sysfs / "class" / "infiniband" / "mlx5_0").mkdir(parents=True)
    assert await settled() is None
