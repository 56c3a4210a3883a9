from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from agentlink.values import DataKey, Scope, VolumeMount
from container_mgr.ranks.quotas import QuotaWatch, size, why_end
from container_mgr.values import AgentError, Container
from container_mgr.volumes import quota
from container_mgr.volumes.records import DirectoryRecord
from container_mgr.volumes.volumes import Volumes
from tests.unit.container_mgr.volume_parts import (
    JOB,
    KEY,
    ME,
    Place,
    container,
    records_of,
    spec,
)

FULL = DirectoryRecord(Scope.JOB, "vision.red", 1, 1.0, 1.0, bytes=10_001, files=1, measured_at=1.0)


def test_the_reason_names_volume_use_and_quota() -> None:
    assert why_end(container(JOB), KEY, FULL) == (
        "the data of vision.red in volume scratch is 9.767 KiB, its quota is 9.766 KiB"
    )


@pytest.mark.parametrize(
    ("one", "record"),
    [
        (container(JOB), replace(FULL, bytes=10_000)),
        (container(JOB), replace(FULL, bytes=None)),
        (container(JOB, state="paused"), FULL),
        (container(JOB, state="exited"), FULL),
        (container(replace(JOB, owner="text.red")), FULL),
        (container(replace(JOB, volume="other")), FULL),
        (container(replace(JOB, quota_bytes=None)), FULL),
        (container(VolumeMount("scratch", "/s")), FULL),
    ],
)
def test_a_rank_that_may_go_on(one: Container, record: DirectoryRecord) -> None:
    assert why_end(one, KEY, record) == ""


def test_data_that_cannot_be_measured_is_no_way_around_a_quota() -> None:
    assert "too deep" in why_end(container(JOB), KEY, replace(FULL, bytes=0, too_deep=True))


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**60, "1048576 TiB")]
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text


@dataclass
class Ended:
    """The containers of a server, and those that were ended."""

    containers: Sequence[Container]
    reasons: dict[str, str] = field(default_factory=dict)

    async def observe(self) -> Sequence[Container]:
        return self.containers

    async def end(self, one: Container, reason: str) -> None:
        self.reasons[one.key.job] = reason


async def test_every_job_that_uses_full_data_is_ended_and_no_other(
    volumes: Volumes, place: Place
) -> None:
    small = replace(JOB, owner="vision.small", path="/small")
    await volumes.bind(spec(JOB, small), ME)
    (place.scratch / "jobs" / "vision.red" / "big").write_bytes(b"x" * 20_000)
    ended = Ended(
        [container(JOB, job="red"), container(JOB, job="too"), container(small, job="small")]
    )
    watch = QuotaWatch(volumes, ended.observe, ended.end)
    await watch.enforce()
    assert set(ended.reasons) == {"red", "too"}


async def test_all_data_is_measured_also_without_a_quota_or_a_rank(
    volumes: Volumes, place: Place
) -> None:
    free = replace(JOB, owner="vision.free", path="/free", quota_bytes=None)
    await volumes.bind(spec(JOB, free), ME)
    ended = Ended([])
    await QuotaWatch(volumes, ended.observe, ended.end).measure()
    found = await records_of(volumes)
    assert {owner: record.files for owner, record in found.items()} == {
        "vision.red": 0,
        "vision.free": 0,
    }


async def test_what_an_ended_job_left_is_measured_at_the_next_look(
    volumes: Volumes, place: Place
) -> None:
    free = replace(JOB, quota_bytes=None)
    await volumes.bind(spec(free), ME)
    server = Ended([container(free)])
    watch = QuotaWatch(volumes, server.observe, server.end)
    await watch.enforce()
    (place.scratch / "jobs" / "vision.red" / "result").write_bytes(b"x" * 20_000)
    server.containers = [container(free, state="exited")]
    await watch.enforce()
    left = (await records_of(volumes))["vision.red"]
    assert (left.files, left.bytes is not None and left.bytes >= 20_000) == (1, True)


async def test_empty_files_are_bounded_and_their_rank_is_ended(
    volumes: Volumes, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota, "LEAST_FILES", 10)
    await volumes.bind(spec(JOB), ME)
    for number in range(50):
        (place.scratch / "jobs" / "vision.red" / str(number)).touch()
    ended = Ended([container(JOB)])
    await QuotaWatch(volumes, ended.observe, ended.end).enforce()
    assert "has more than 10 entries" in ended.reasons["red"]
    assert (await records_of(volumes))["vision.red"].files == 11, "it is counted no further"


async def test_data_that_had_more_entries_before_there_was_a_limit_keeps_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ran when its agent was upgraded goes on, and so does its next start."""
    owned = place.scratch / "jobs" / "vision.red"
    async with place.agent() as volumes:
        await volumes.bind(spec(JOB), ME)
        for number in range(50):
            (owned / str(number)).touch()
        await volumes.measure(KEY, used=True)
    record = place.scratch / ".lightloom" / "records" / "job.vision.red"
    fields = json.loads(record.read_text())
    del fields["most_files"]
    record.write_text(json.dumps(fields))
    monkeypatch.setattr(quota, "LEAST_FILES", 10)
    ended = Ended([container(JOB)])
    async with place.agent() as volumes:
        watch = QuotaWatch(volumes, ended.observe, ended.end)
        await watch.enforce()
        await volumes.bind(spec(JOB), ME)
        await watch.enforce()
        assert ended.reasons == {}
        (owned / "more").touch()
        await watch.enforce()
        assert "has more than 50 entries" in ended.reasons["red"]


async def test_an_owner_that_takes_long_to_measure_delays_no_other() -> None:
    measured: list[str] = []

    class Slow(Volumes):
        async def measure(self, key: DataKey, *, used: bool) -> DirectoryRecord | None:
            measured.append(key.owner)
            if key.owner == "vision.big":
                await asyncio.sleep(1000)
            return replace(FULL, owner=key.owner)

    big = replace(JOB, owner="vision.big", path="/big")
    ended = Ended([container(big, job="big"), container(JOB, job="red")])
    watch = QuotaWatch(Slow({}), ended.observe, ended.end)
    running = asyncio.create_task(watch.enforce_forever())
    await asyncio.sleep(60)
    assert set(ended.reasons) == {"red"}
    assert (measured.count("vision.big"), measured.count("vision.red") > 2) == (1, True)
    await asyncio.sleep(1000)
    assert set(ended.reasons) == {"red", "big"}
    running.cancel()


async def test_a_volume_that_fails_does_not_stop_the_others() -> None:
    class Broken(Volumes):
        async def measure(self, key: DataKey, *, used: bool) -> DirectoryRecord | None:
            if key.volume == "broken":
                raise AgentError("unavailable", key.volume, "does not answer")
            return FULL

    broken = replace(JOB, volume="broken", path="/broken")
    ended = Ended([container(broken, job="blue"), container(JOB, job="red")])
    await QuotaWatch(Broken({}), ended.observe, ended.end).enforce()
    assert set(ended.reasons) == {"red"}
