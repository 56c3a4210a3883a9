"""Another scheduler is what three tables name; everything else serves its jobs as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from agentlink.values import ScopeState
from base.engines import NUMBERS, EngineKind
from container_mgr.daemon import OBSERVED, AgentConfig, check
from container_mgr.kernel.freezer import Freezer
from container_mgr.scopes.groups import Steps
from container_mgr.scopes.scopes import Scopes
from container_mgr.values import AgentError, ServedEndpoint
from controller.base.errors import ServiceError
from controller.daemon.compose import ENGINES
from controller.devices.observed import EngineJob, JobNeeds, Turn
from controller.schema.plans import PlanRequest
from sitefile import EnginePolicy, load_site
from tests.parts.agent.trees import asked, freezable
from tests.parts.controller.observed import FakeEngine
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

THEIRS = ("gpu0", "gpu1", "gpu2", "gpu3")
KEY, NAME = "kueue:x7k2q", "kueue-x7k2q"


class PodGroups:
    """One cgroup a job, ``pod_NUMBER``, at the top of each hierarchy."""

    kind = "kueue"

    def __init__(self, hierarchies: Sequence[tuple[int, Path]], nodes: Collection[str]) -> None:
        self._hierarchies = hierarchies

    def steps(self, job: str) -> Steps:
        return Steps(tuple(self.jobs().get(job, ())), known=True)

    def jobs(self) -> Mapping[str, Sequence[Freezer]]:
        return {
            pod.name.removeprefix("pod_"): [Freezer(version, pod)]
            for version, root in self._hierarchies
            for pod in root.glob("pod_*")
        }

    def check_absent(self, job: str, *, known: bool) -> None:
        """Its processes are always in cgroups."""


@pytest.fixture(autouse=True)
def kueue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NUMBERS, "kueue", "[a-z0-9]{5}")
    monkeypatch.setitem(ENGINES, "kueue", lambda _, policy: FakeEngine(THEIRS, policy.kind))
    monkeypatch.setitem(OBSERVED, "kueue", PodGroups)


def test_every_table_has_all_kinds() -> None:
    kinds = {*get_args(EngineKind), "kueue"}
    assert kinds == NUMBERS.keys() == ENGINES.keys() == OBSERVED.keys()


async def test_its_job_is_folded_frozen_in_a_regroup_and_ended(tmp_path: Path) -> None:
    nodes = {f"n{e}": (e,) for e in THEIRS}
    policy = EnginePolicy(kind="kueue", transport="cli", nodes=nodes, publish=True)
    rack = Rack(tmp_path, replace(load_site(PAPER), engine=policy))
    rack.observed = engine = ENGINES["kueue"](rack.site, policy)
    assert isinstance(engine, FakeEngine)
    await rack.up()
    wants = JobNeeds(count=2, servers=2)
    waits = EngineJob(
        key=KEY, attempt=0, revision="", turn=Turn.WAITS, wants=wants, submitted_at=1.0
    )
    await engine.set(waits)
    await engine.allocate(KEY, ("gpu0", "gpu2"))
    await engine.run(KEY)
    await rack.until(lambda: NAME in rack.see.jobs)
    await rack.state(NAME, "running")
    shown = rack.desks.jobs.job(NAME)
    assert (shown.project, shown.span, shown.endpoints) == ("kueue", 2, ["gpu0", "gpu2"])
    assert shown.engine is not None
    assert (shown.engine.engine, shown.engine.id, shown.engine.freezes) == ("kueue", "x7k2q", True)
    with pytest.raises(ServiceError, match="belongs to kueue"):
        await rack.desks.jobs.cancel(NAME)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    done = await rack.desks.plans.apply(plan.model_dump(by_alias=True), wait_s=30.0)
    assert (done.state, rack.desks.jobs.job(NAME).span) == ("committed", 1)
    calls = [call for call, scope in rack.engine.calls if scope == KEY]
    assert calls == ["freeze_scope", "thaw_scope"]
    assert rack.see.forwarding().jobs == {"kueue": THEIRS}
    await engine.end(KEY)
    await rack.state(NAME, "completed")
    await rack.down()
    assert engine.closed


async def test_an_agent_freezes_its_scopes_and_no_others(tmp_path: Path) -> None:
    endpoints = (ServedEndpoint("gpu0", "eth0"),)
    check(AgentConfig("srv0", tmp_path, endpoints=endpoints, observe="kueue"))
    pod, beside = tmp_path / "pod_x7k2q", tmp_path / "pod_aaaaa"
    for path in (pod, beside):
        path.mkdir()
    one, other = freezable(pod, 1), freezable(beside, 1)
    scopes = Scopes(OBSERVED["kueue"]([(1, tmp_path)], ()))
    assert (await scopes.freeze(KEY)).cgroups == 1
    assert (asked(one), asked(other)) == (True, False)
    assert await scopes.states() == {KEY: ScopeState.FROZEN, "kueue:aaaaa": ScopeState.RUNNING}
    assert (await scopes.thaw(KEY)).faults == ()
    assert not asked(one)
    for scope in ("slurm:4711", "kueue:../..", "kueue:"):
        with pytest.raises(AgentError, match="not a scope") as refused:
            await scopes.freeze(scope)
        assert refused.value.hint.startswith("e.g. kueue:")
