"""The contract of observed engines, for the fake of tests and for Slurm's adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
import pytest_asyncio

from controller.devices.observed import End, JobNeeds
from controller.devices.slurm.engine import SlurmEngine
from controller.devices.slurm.publisher import TopologyWriter
from sitefile import EnginePolicy
from tests import recorded
from tests.contract.observed_contract import ObservedContract
from tests.parts.controller.observed import FakeEngine
from tests.parts.controller.slurm import FakeSlurm

ENDPOINTS = [f"gpu{i}" for i in range(7)]
STATES: dict[End, str] = {"completed": "COMPLETED", "failed": "TIMEOUT", "cancelled": "CANCELLED"}


class FakeRig:
    """The fake itself."""

    def __init__(self) -> None:
        self.engine = self._fake = FakeEngine(ENDPOINTS)

    async def submit(self, endpoints: int) -> str:
        return await self._fake.submit(JobNeeds(count=endpoints, servers=1))

    async def allocate(self, key: str, *endpoints: str) -> None:
        await self._fake.allocate(key, endpoints)

    async def run(self, key: str) -> None:
        await self._fake.run(key)

    async def begin_to_end(self, key: str) -> None:
        await self._fake.begin_to_end(key)

    async def end(self, key: str, end: End) -> None:
        await self._fake.end(key, end)

    async def requeue(self, key: str) -> None:
        await self._fake.requeue(key)

    async def forget(self, key: str) -> None:
        await self._fake.forget(key)

    async def go_away(self) -> None:
        await self._fake.go_away()

    async def noticed(self) -> None:
        """The fake itself tells its watchers of the gap."""

    async def come_back(self) -> None:
        await self._fake.come_back()

    def forbid(self) -> None:
        self._fake.forbidden = True

    def told(self, key: str) -> str:
        return " ".join(self._fake.answers[key])

    def leaf(self, endpoint: str) -> str | None:
        leaves = self._fake.published.leaves if self._fake.published else {}
        return next((leaf for leaf, names in leaves.items() if endpoint in names), None)

    def writes(self) -> int:
        return self._fake.writes


class SlurmRig:
    """Slurm's adapter over a slurmctld in memory."""

    def __init__(self, version: str, folder: Path) -> None:
        file = folder / "topology.conf"
        self.slurm = slurm = FakeSlurm(version, str(file))
        policy = EnginePolicy(
            kind="slurm", transport="cli", nodes=recorded.NODES, topology=file, publish=True
        )
        publisher = TopologyWriter(slurm, slurm, file, "rack", recorded.NODES)
        self.engine = SlurmEngine(policy, slurm, slurm, publisher, poll_every_s=0.01)
        self._numbers = count(1)

    async def submit(self, endpoints: int) -> str:
        number = next(self._numbers)
        gpus = f"gres/gpu:{endpoints}"
        self.slurm.job_like("behind", number, tres_per_node="", tres_per_job=gpus)
        return f"slurm:{number}"

    async def allocate(self, key: str, *endpoints: str) -> None:
        nodes, details = [], []
        for node, names in recorded.NODES.items():
            if mine := [str(i) for i, name in enumerate(names) if name in endpoints]:
                nodes.append(node)
                details.append(f"gpu:{len(mine)}(IDX:{','.join(mine)})")
        self._change(
            key,
            job_state=["RUNNING", "CONFIGURING"],
            nodes=",".join(nodes),
            gres_detail=details,
            start_time={"set": True, "infinite": False, "number": 1_795_759_650},
        )

    async def run(self, key: str) -> None:
        self._change(key, job_state=["RUNNING"])

    async def begin_to_end(self, key: str) -> None:
        self._change(key, job_state=["CANCELLED", "COMPLETING"])

    async def end(self, key: str, end: End) -> None:
        self._change(key, job_state=[STATES[end]], gres_detail=[], end_time=1_795_759_660)

    async def requeue(self, key: str) -> None:
        self._change(key, job_state=["PENDING"], restart_cnt=1, nodes="", gres_detail=[])

    async def forget(self, key: str) -> None:
        del self.slurm.jobs_by_number[self._number(key)]

    async def go_away(self) -> None:
        self.slurm.away = True

    async def noticed(self) -> None:
        await self.slurm.refused.wait()

    async def come_back(self) -> None:
        self.slurm.away = False

    def forbid(self) -> None:
        self.slurm.forbidden = True

    def told(self, key: str) -> str:
        return str(self.slurm.jobs_by_number[self._number(key)]["admin_comment"])

    def leaf(self, endpoint: str) -> str | None:
        node = next(node for node, names in recorded.NODES.items() if endpoint in names)
        leaf = next((leaf for leaf, nodes in self.slurm.tree.items() if node in nodes), None)
        return None if leaf is None or leaf.startswith("alone_") else leaf

    def writes(self) -> int:
        return sum(call.startswith(("place", "reconfigure")) for call in self.slurm.calls)

    def _change(self, key: str, **changes: object) -> None:
        self.slurm.change(self._number(key), **changes)

    def _number(self, key: str) -> int:
        return int(key.partition(":")[2])


class TestFake(ObservedContract):
    @pytest.fixture
    def rig(self) -> FakeRig:
        return FakeRig()


@pytest.mark.parametrize("version", ["v0.0.42", "v0.0.45"])
class TestSlurm(ObservedContract):
    @pytest_asyncio.fixture
    async def rig(self, version: str, tmp_path: Path) -> AsyncIterator[SlurmRig]:
        rig = SlurmRig(version, tmp_path)
        yield rig
        await rig.engine.close()
