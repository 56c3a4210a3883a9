"""GPUs with real Docker: a mock of libnvidia-ml, substitute device nodes, and an empty hook."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pynvml
import pytest
import pytest_asyncio

from agentlink.ranks import GPU, RankSpec
from agentlink.values import Device, NicReport, NicSpec
from container_mgr.docker.entry import EXIT_GPUS
from container_mgr.hardware.nic import Nics
from container_mgr.values import ServedEndpoint
from controller.devices.engine import EngineError, RankSample, RankState
from tests.integration.agent_parts import (
    NETNS,
    NICS,
    PrivateEngine,
    Rig,
    agent_rig,
    ip,
    private_engine,
    two_nics,
)
from tests.integration.tiny_image import tiny_image_tar
from tests.nvml import mock
from tests.parts.agent.ranks import SLEEP, has_ended, output, seen, states, until, when_ended

pytestmark = pytest.mark.root

UUIDS = ("GPU-aaaa", "GPU-bbbb")
URANDOM = os.makedev(1, 9)
"""Replaces a GPU's device node: opening it works, and can be forbidden."""


@pytest.fixture(scope="module")
def private() -> Iterator[PrivateEngine]:
    """An engine that finds nvidia's hook, and so accepts requests to the ``nvidia`` driver."""
    with tempfile.TemporaryDirectory(prefix="ll-hook-") as path:
        hook = Path(path) / "nvidia-container-runtime-hook"
        hook.write_text("#!/bin/sh\ncat >/dev/null\n", encoding="ascii")
        hook.chmod(0o755)
        with private_engine(path) as one:
            yield one


@dataclass
class GpuRig:
    """Two endpoints with a GPU each. The file ``behaviour`` controls the GPUs."""

    rig: Rig
    behaviour: Path
    job_map: Path

    def spec(self, rank: int, *command: str, job: str = "red") -> RankSpec:
        return replace(self.rig.spec(rank, *command, job=job), devices=(Device(GPU, UUIDS[rank]),))


@pytest_asyncio.fixture
async def gpus(
    private: PrivateEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GpuRig]:
    behaviour, dev, job_map = tmp_path / "gpus", tmp_path / "dev", tmp_path / "jobs"
    mock.look_at(behaviour)
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    mock.behave(behaviour, dict.fromkeys(UUIDS, "ok"))
    dev.mkdir()
    for name in ("nvidia0", "nvidia1"):
        os.mknod(dev / name, 0o666 | stat.S_IFCHR, URANDOM)
    served = [ServedEndpoint(f"gpu{n}", NICS[n], UUIDS[n]) for n in range(2)]
    with two_nics():
        async with agent_rig(
            private,
            tmp_path,
            endpoints=served,
            nvml_library=mock.library(),
            dev=dev,
            job_map=job_map,
        ) as rig:
            yield GpuRig(rig, behaviour, job_map)
            mock.behave(behaviour, dict.fromkeys(UUIDS, "ok"))


async def test_a_rank_gets_one_gpu_also_when_the_image_asks_for_all(
    gpus: GpuRig, private: PrivateEngine
) -> None:
    with private.api() as api:
        api.import_image_from_data(
            tiny_image_tar(),
            repository="ll-greedy",
            tag="test",
            changes=["ENV NVIDIA_VISIBLE_DEVICES=all"],
        )
    looks = "ls /dev; env"
    spec = replace(gpus.spec(1, "sh", "-c", looks), image="ll-greedy:test")
    await gpus.rig.engine.start([gpus.spec(0, *SLEEP), spec], 60)
    await when_ended(gpus.rig, 1)
    lines = await output(gpus.rig, 1)
    assert [line for line in lines if line.startswith("nvidia")] == ["nvidia1"]
    assert f"NVIDIA_VISIBLE_DEVICES={UUIDS[1]}" in lines
    assert not [line for line in lines if line.endswith("=all")]


async def test_a_rank_that_sees_another_number_of_gpus_does_not_run(
    gpus: GpuRig, private: PrivateEngine
) -> None:
    """As if a runtime had added a GPU or left one out."""
    (gpus.rig.config.dev / "nvidia0").rename(gpus.rig.config.dev / "nvidiactl")
    await gpus.rig.engine.start([gpus.spec(0, "sh", "-c", "echo ran"), gpus.spec(1, *SLEEP)], 60)
    status = await when_ended(gpus.rig, 0)
    assert (status.exit_code, status.reason) == (
        EXIT_GPUS,
        "not exactly one GPU was visible in the container",
    )
    assert await output(gpus.rig, 0) == ["lightloom: 0 GPUs are visible, this rank has 1"]


async def test_a_rank_that_ends_before_it_gets_its_nic_is_reported_as_ended(
    gpus: GpuRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gpus.rig.config.dev / "nvidia0").rename(gpus.rig.config.dev / "nvidiactl")
    bind = Nics.bind

    def late(nics: Nics, nic: NicSpec, namespace: str, pid: int, *rest: Any) -> NicReport:
        if "-0-" in namespace:
            assert has_ended(pid)
        return bind(nics, nic, namespace, pid, *rest)

    monkeypatch.setattr(Nics, "bind", late)
    await gpus.rig.engine.start([gpus.spec(0, "sh", "-c", "echo ran"), gpus.spec(1, *SLEEP)], 60)
    assert (await when_ended(gpus.rig, 0)).exit_code == EXIT_GPUS
    assert NICS[0] in await asyncio.to_thread(ip, "-n", NETNS, "-br", "link")


async def test_a_lost_gpu_affects_only_its_endpoint_and_its_job(gpus: GpuRig) -> None:
    engine = gpus.rig.engine
    await engine.start([gpus.spec(0, *SLEEP), gpus.spec(1, *SLEEP)], 60)
    mock.behave(gpus.behaviour, {UUIDS[0]: "lost", UUIDS[1]: "ok"})

    async def unfit() -> dict[str, str]:
        await engine.observe()
        return dict(engine.unfit())

    assert set(await until(unfit, bool)) == {"gpu0"}
    reasons = {s.rank: s.reason for s in await seen(gpus.rig)}
    assert "GPU is lost" in reasons[0]
    assert reasons[1] == ""
    await engine.stop("red", 0)
    with pytest.raises(EngineError) as refused:
        await engine.start([gpus.spec(0, *SLEEP, job="blue")], 60)
    assert refused.value.code == "unavailable"
    assert len(await engine.start([gpus.spec(1, *SLEEP, job="blue")], 60)) == 1


async def test_a_hung_driver_delays_no_other_gpu(gpus: GpuRig) -> None:
    engine = gpus.rig.engine
    mock.behave(gpus.behaviour, {UUIDS[0]: "hang", UUIDS[1]: "ok"})

    async def unfit() -> dict[str, str]:
        await engine.observe()
        return dict(engine.unfit())

    assert await until(unfit, bool) == {"gpu0": "NVML hangs on this GPU"}
    await engine.start([gpus.spec(1, *SLEEP)], 60)
    assert await states(gpus.rig) == {1: RankState.RUNNING}


async def test_a_container_that_loses_its_gpus_node_is_told(
    gpus: GpuRig, private: PrivateEngine
) -> None:
    """As after `systemctl daemon-reload`: NVML works, the container does not."""
    engine = gpus.rig.engine
    await engine.start([gpus.spec(0, *SLEEP), gpus.spec(1, *SLEEP)], 60)
    with private.api() as api:
        pid = api.inspect_container("ll-red-0-1")["State"]["Pid"]
    await asyncio.to_thread(Path(f"/proc/{pid}/root/dev/nvidia0").chmod, 0)

    async def reasons() -> dict[int, str]:
        return {s.rank: s.reason for s in await seen(gpus.rig)}

    found = await until(reasons, lambda r: bool(r[0]))
    assert found == {0: "the container may not open its GPU any more", 1: ""}


async def test_a_gpu_in_use_by_another_process_is_refused(gpus: GpuRig) -> None:
    mock.behave(gpus.behaviour, dict.fromkeys(UUIDS, "ok"), pid=os.getpid())

    async def refused() -> str:
        try:
            await gpus.rig.engine.start([gpus.spec(0, *SLEEP), gpus.spec(1, *SLEEP)], 60)
        except EngineError as error:
            return str(error)
        await gpus.rig.engine.stop("red", 0)
        return ""

    text = await until(refused, bool)
    assert f"is used by process {os.getpid()}" in text
    assert await seen(gpus.rig) == []


async def test_figures_and_the_job_map(gpus: GpuRig) -> None:
    await gpus.rig.engine.start([gpus.spec(0, *SLEEP), gpus.spec(1, *SLEEP)], 60)
    seen: dict[int, RankSample] = {}
    stream = gpus.rig.engine.telemetry()
    async for sample in stream:
        if isinstance(sample, RankSample):
            seen[sample.rank] = sample
        if len(seen) == 2:
            break
    await stream.aclose()  # type: ignore[attr-defined]
    assert seen[0].source == "nvml"
    assert seen[0].values["utilisation"] == pytest.approx(0.42)
    assert seen[0].values["temperature_c"] == 61
    assert seen[0].values["throttle_reasons"] == ("sw_power_cap", "sw_thermal")
    assert {p.name: p.read_text() for p in gpus.job_map.iterdir()} == {"0": "red\n", "1": "red\n"}
    await gpus.rig.engine.stop("red", 0)
    assert list(gpus.job_map.iterdir()) == []
