"""Following many jobs: what is read, and what cannot be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.devices.observed import (
    JobChanges,
    ObservedError,
    Published,
    SetupCheck,
    Turn,
    Verdict,
)
from controller.devices.slurm import engine as module
from controller.devices.slurm.documents import Body
from controller.devices.slurm.engine import SlurmEngine, slurm_engine
from controller.devices.slurm.publisher import TopologyWriter
from controller.devices.slurm.token import TokenFile
from sitefile import EnginePolicy, load_site
from tests import recorded
from tests.parts.controller.slurm import FakeSlurm
from tests.parts.sites import PAPER
from tests.unit.controller.devices.slurm.tokens import jwt

POLICY = EnginePolicy(kind="slurm", transport="cli", nodes=recorded.NODES)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """An engine whose polls a test asks for one by one, at times of the test."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm("v0.0.45")
        self.clock = Clock()
        self.engine = SlurmEngine(
            POLICY, self.slurm, self.slurm, None, poll_every_s=0, monotonic=self.clock
        )
        self.batches = self.engine.changes()

    async def next(self) -> JobChanges:
        return await anext(self.batches)

    def read(self) -> list[str]:
        """Return what was read of jobs since the last question."""
        calls, self.slurm.calls = self.slurm.calls, []
        return [call for call in calls if call.startswith("job")]


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CHANGED", 20)
    monkeypatch.setattr(module, "LAST_POSITION", 5)


async def test_a_job_is_read_when_its_state_changes(rig: Rig) -> None:
    for number in range(1, 200):
        rig.slurm.job_like("behind", number)
    first = await rig.next()
    assert first.complete
    assert len(first.seen) == 199
    assert rig.read() == ["jobs"]
    rig.slurm.job_like("gpus", 7)
    batch = await rig.next()
    assert rig.read() == ["job 7"]
    assert {seen.key for seen in batch.seen if seen.turn is not Turn.WAITS} == {"slurm:7"}
    assert all(seen.ahead >= 6 for seen in batch.seen if seen.turn is Turn.WAITS)


@pytest.mark.usefixtures("quick")
async def test_many_changes_are_read_together_and_far_positions_are_one(rig: Rig) -> None:
    for number in range(1, 60):
        rig.slurm.job_like("behind", number)
    first = await rig.next()
    assert [seen.ahead for seen in first.seen][:8] == [0, 1, 2, 3, 4, 5, 5, 5]
    rig.read()
    for number in range(1, 30):
        rig.slurm.job_like("gpus", number)
    batch = await rig.next()
    assert rig.read() == ["jobs"]
    assert not batch.complete
    assert len(batch.seen) == 29 + 5


async def test_reasons_change_without_a_state(rig: Rig) -> None:
    for number in range(1, 100):
        rig.slurm.job_like("behind", number)
    await rig.next()
    rig.read()
    rig.slurm.change(1, state_reason="Resources", required_switches=1)
    rig.clock.now += 60
    batch = await rig.next()
    assert [(seen.key, seen.curable) for seen in batch.seen] == [("slurm:1", True)]
    read = rig.read()
    assert "job 1" in read
    assert len(read) == module.REFRESHED_AT_ONCE


async def test_a_job_that_cannot_be_read_is_named_and_read_when_it_changes(rig: Rig) -> None:
    rig.slurm.job_like("gpus", 1)
    rig.slurm.job_like("gpus", 2, gres_detail=["nonsense("])
    first = await rig.next()
    assert [seen.key for seen in first.seen] == ["slurm:1"]
    (missing,) = rig.engine.reach().missing
    assert "1 jobs cannot be read, as 2" in missing
    rig.read()
    rig.slurm.job_like("whole", 3)
    assert [seen.key for seen in (await rig.next()).seen] == ["slurm:3"]
    assert rig.read() == ["job 3"]
    rig.slurm.job_like("completed", 2)
    assert [seen.key for seen in (await rig.next()).seen] == ["slurm:2"]
    assert rig.engine.reach().missing == ()


async def test_devices_of_a_completing_job_are_remembered(rig: Rig) -> None:
    rig.slurm.job_like("tesla", 2)
    await rig.next()
    seen = await rig.engine.read_job("slurm:2")
    assert seen is not None
    rig.slurm.job_like("cancelled", 2)
    completing = await rig.engine.read_job("slurm:2")
    assert completing is not None
    assert (completing.endpoints, completing.ending) == (seen.endpoints, True)
    assert not await rig.engine.still("slurm:2", seen.revision)


async def test_nodes_whose_gpus_slurm_does_not_count(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nodes() -> Body:
        return [b'{"nodes": [{"name": "n3", "gres": ""}, {"name": "n0", "gres": "gpu:2"}]}']

    monkeypatch.setattr(rig.slurm, "nodes", nodes)
    rig.slurm.job_like("whole", 1, gres_detail=[])
    (seen,) = (await rig.next()).seen
    assert seen.endpoints == ("gpu6",)


async def test_too_many_jobs_are_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JOBS", 3)
    for number in range(1, 6):
        rig.slurm.job_like("behind", number)
    with pytest.raises(ObservedError, match="5 jobs are more than 3"):
        await rig.engine._states()


async def test_an_answer_is_written_once(rig: Rig) -> None:
    rig.slurm.job_like("gpus", 1)
    for _ in range(3):
        await rig.engine.answer("slurm:1", Verdict.WAIT, "2 moves\nfirst\x1b[31m" + "x" * 900)
    assert rig.slurm.calls == ["comment 1"]
    text = rig.slurm.jobs_by_number[1]["admin_comment"]
    assert text.startswith("lightloom wait: 2 moves first")
    assert len(text) == module.MAX_COMMENT
    assert text.isprintable()


async def test_a_site_that_publishes_nothing(rig: Rig) -> None:
    with pytest.raises(ObservedError, match="publishes no topology") as error:
        await rig.engine.publish(Published(1, {}))
    assert error.value.code == "invalid"


def test_the_engine_of_a_site_file(tmp_path: Path) -> None:
    site = load_site(PAPER)
    assert slurm_engine(site, POLICY).reach().transport == "scontrol"
    rest = replace(POLICY, transport="rest", api="unix:/run/s.sock", token=tmp_path / "token")
    assert slurm_engine(site, rest).reach().transport == "slurmrestd"


@pytest.mark.parametrize(("version", "restarts"), [("v0.0.42", True), ("v0.0.45", False)])
async def test_before_25_05_slurm_restarts_to_read_a_topology(version: str, restarts: bool) -> None:
    slurm = FakeSlurm(version)
    engine = SlurmEngine(POLICY, slurm, slurm, None)
    assert engine.restarts_to_publish, "nothing is known yet"
    await anext(engine.changes())
    assert engine.restarts_to_publish is restarts


@pytest.mark.parametrize(
    ("states", "ends"),
    [(["IDLE", "COMPLETING"], True), (["DOWN", "COMPLETING"], False), (["IDLE"], False)],
    ids=["up", "down", "none ends"],
)
async def test_a_node_that_is_down_ends_no_job(
    monkeypatch: pytest.MonkeyPatch, states: list[str], ends: bool
) -> None:
    async def nodes() -> Body:
        return (json.dumps({"nodes": [{"name": "n0", "state": states}]}).encode(),)

    slurm = FakeSlurm("v0.0.42")
    monkeypatch.setattr(slurm, "nodes", nodes)
    assert await SlurmEngine(POLICY, slurm, slurm, None).ends_jobs() is ends


class TestExamination:
    @pytest.fixture
    def slurm(self) -> Iterator[FakeSlurm]:
        slurm = FakeSlurm("v0.0.45")
        slurm.configuration |= {"ProctrackType": "proctrack/cgroup"}
        yield slurm

    async def examine(
        self, slurm: FakeSlurm, folder: Path, **changes: Any
    ) -> dict[str, SetupCheck]:
        file = folder / "topology.conf"
        (folder / "token").write_text(changes.pop("token", jwt({"exp": 5000})))
        (folder / "token").chmod(0o600)
        nodes = changes.pop("nodes", recorded.NODES)
        policy = replace(POLICY, nodes=nodes, topology=file, publish=True)
        publisher = TopologyWriter(slurm, slurm, file, "rack", nodes)
        engine = SlurmEngine(
            policy, slurm, slurm, publisher, TokenFile(folder / "token"), clock=lambda: 1000.0
        )
        return {line.subject: line for line in await engine.check()}

    async def test_all_is_well(self, slurm: FakeSlurm, tmp_path: Path) -> None:
        lines = await self.examine(slurm, tmp_path)
        assert {line.grade for line in lines.values()} == {"ok"}
        assert lines["version"].found == "Slurm 26.05.5 by recorded v0.0.45"
        assert "4 nodes" in lines["nodes"].found

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("TopologyPlugin", "topology/flat", ("topology plugin", "fault")),
            ("PrologSlurmctld[0]", "(null)", ("hook at allocation", "warning")),
            ("EpilogSlurmctld[0]", "/usr/lib/lightloom/hook", ("hook at end", "warning")),
            ("ProctrackType", "proctrack/linuxproc", ("processes", "warning")),
            ("SelectType", "select/linear", ("selection", "warning")),
        ],
    )
    async def test_the_configuration(
        self, slurm: FakeSlurm, tmp_path: Path, key: str, value: str, expected: tuple[str, str]
    ) -> None:
        slurm.configuration[key] = value
        line = (await self.examine(slurm, tmp_path))[expected[0]]
        assert line.grade == expected[1]
        assert line.mend

    async def test_a_reconfigure_has_a_price(self, tmp_path: Path) -> None:
        line = (await self.examine(FakeSlurm("v0.0.42"), tmp_path))["publishing"]
        assert (line.grade, "for 120 sec" in line.found) == ("warning", True)
        assert "25.05" in line.mend

    @pytest.mark.parametrize(
        ("nodes", "subject", "words"),
        [
            ({**recorded.NODES, "n9": ("gpu9",)}, "node n9", "no such node"),
            ({**recorded.NODES, "n3": ("gpu6", "gpu7")}, "node n3", "1 GPUs"),
            ({"n0": ("gpu0", "gpu1")}, "nodes", "3 not in the site file: n1, n2, n3"),
        ],
    )
    async def test_the_map_of_nodes(
        self,
        slurm: FakeSlurm,
        tmp_path: Path,
        nodes: dict[str, tuple[str, ...]],
        subject: str,
        words: str,
    ) -> None:
        line = (await self.examine(slurm, tmp_path, nodes=nodes))[subject]
        assert words in line.found
        assert line.grade != "ok"
        assert line.mend

    @pytest.mark.parametrize(
        ("token", "grade"),
        [(jwt({"exp": 999}), "fault"), (jwt({"exp": 1300}), "warning"), (jwt({}), "ok")],
    )
    async def test_the_token(
        self, slurm: FakeSlurm, tmp_path: Path, token: str, grade: str
    ) -> None:
        assert (await self.examine(slurm, tmp_path, token=token))["token"].grade == grade

    async def test_rights_and_a_foreign_file(self, slurm: FakeSlurm, tmp_path: Path) -> None:
        slurm.forbidden = True
        (tmp_path / "topology.conf").write_text("SwitchName=as0 Nodes=n0\n")
        lines = await self.examine(slurm, tmp_path)
        assert lines["rights"].grade == "fault"
        assert lines["topology file"].grade == "fault"

    async def test_slurm_is_away(self, slurm: FakeSlurm, tmp_path: Path) -> None:
        slurm.away = True
        lines = await self.examine(slurm, tmp_path)
        assert {lines[name].grade for name in ("version", "rights", "nodes")} == {"fault"}
        assert all(line.mend for line in lines.values() if line.grade != "ok")
