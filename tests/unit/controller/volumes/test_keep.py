"""Which directories are in use, and which ones are due for removal."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agentlink.values import Scope
from controller.devices.engine import OfferedVolume, VolumeData
from controller.schema.base import JobState
from controller.state.offers import Directory, offer_of
from controller.state.records import JobRecord, JobSpec, JobVolume
from controller.volumes import keep
from sitefile.volumes import Volume
from tests.parts.controller.volumes import DAY_S, SCRATCH, VOLUMES, data, site_of

NOW = 100 * DAY_S
RED = Directory("scratch", Scope.JOB, "vision.red")
SITE = site_of()


def job(
    name: str, state: JobState, *volumes: str, project: str = "vision", ended: float | None = None
) -> JobRecord:
    mounts = tuple(JobVolume(v, f"/{v}", read_only=False) for v in volumes)
    spec = JobSpec(count=1, project=project, volumes=mounts)
    return JobRecord(name, spec, "image:1", 0.0, state, finished_at=ended)


def on(server: str, *found: VolumeData, volume: OfferedVolume = SCRATCH) -> dict[str, object]:
    return {server: offer_of([replace(volume, data=found)], NOW)}


def due(jobs: list[JobRecord], offers: dict[str, object], now: float = NOW) -> list[Directory]:
    return keep.due(SITE, jobs, keep.left(offers), now)  # type: ignore[arg-type]


def test_due_after_its_time() -> None:
    offers = on("srv0", data("vision.red", used_at=NOW - 7 * DAY_S))
    assert due([], offers) == [RED]
    assert due([], offers, NOW - 1) == []


def test_the_last_use_on_any_server_counts() -> None:
    offers = {
        **on("srv0", data("vision.red", used_at=NOW - 30 * DAY_S)),
        **on("srv1", data("vision.red", used_at=NOW - DAY_S)),
    }
    assert due([], offers) == []


def test_the_end_of_a_job_counts_because_a_clock_may_be_wrong() -> None:
    offers = on("srv0", data("vision.red", used_at=2.0))  # its clock stands in 1970
    assert due([job("red", "failed", "scratch", ended=NOW - DAY_S)], offers) == []
    assert due([job("red", "failed", "scratch", ended=NOW - 8 * DAY_S)], offers) == [RED]
    # A job of the same name in another project has a directory of its own.
    other = job("red", "failed", "scratch", project="speech", ended=NOW)
    assert due([other], offers) == [RED]


def test_unknown_times_keep_data() -> None:
    never = replace(data("vision.red", used_at=0.0), created_at=None, used_at=None)
    assert due([], on("srv0", never)) == []


def test_what_the_site_file_keeps_stays() -> None:
    old = data("vision.red", used_at=1.0)
    for volume in (
        replace(VOLUMES["scratch"], keep_s=None),
        replace(VOLUMES["scratch"], per="project"),
        None,
    ):
        site = site_of({} if volume is None else {"scratch": volume})
        assert keep.due(site, [], keep.left(on("srv0", old)), NOW) == []  # type: ignore[arg-type]


def test_a_projects_directory_is_used_by_any_of_its_jobs() -> None:
    team = replace(SCRATCH, name="team")
    offers = on("srv0", data("vision", used_at=NOW - 2 * DAY_S), volume=team)
    assert due([], offers) == [Directory("team", Scope.PROJECT, "vision")]
    assert due([job("any", "pending", "team")], offers) == []
    assert due([job("any", "pending", "team", project="speech")], offers) != []


_STATES = st.sampled_from(
    ["pending", "starting", "running", "pausing", "paused", "completed", "failed", "cancelled"]
)
_NAMES = st.sampled_from(["red", "blue"])
_PROJECTS = st.sampled_from(["vision", "speech"])
_TIMES = st.floats(0, 2 * NOW) | st.none()
_JOBS = st.lists(
    st.builds(
        job,
        _NAMES,
        _STATES,
        st.sampled_from(["scratch", "team", "models"]),
        project=_PROJECTS,
        ended=_TIMES,
    ),
    max_size=4,
    unique_by=lambda record: record.name,
)
_OWNERS = st.one_of(_PROJECTS, st.tuples(_PROJECTS, _NAMES).map(".".join))
_DATA = st.builds(
    lambda owner, created, used, jobs: replace(
        data(owner, used_at=0.0, jobs=tuple(jobs)), created_at=created, used_at=used
    ),
    _OWNERS,
    _TIMES,
    _TIMES,
    st.lists(_NAMES, max_size=1),
)
_OFFERED = st.lists(
    st.builds(
        lambda name, found: replace(SCRATCH, name=name, data=tuple(found)),
        st.sampled_from(["scratch", "team", "models", "unknown"]),
        st.lists(_DATA, max_size=4),
    ),
    max_size=3,
)


@given(
    _JOBS,
    st.dictionaries(st.sampled_from(["srv0", "srv1"]), _OFFERED, max_size=2),
    st.floats(0, 3 * NOW),
)
def test_nothing_in_use_is_ever_due(
    jobs: list[JobRecord], offered: dict[str, list[OfferedVolume]], now: float
) -> None:
    offers = {server: offer_of(volumes, NOW) for server, volumes in offered.items()}
    for directory in keep.due(SITE, jobs, keep.left(offers), now):
        volume: Volume = VOLUMES[directory.volume]
        assert volume.keep_s is not None
        for record in jobs:
            asks = directory.volume in {v.volume for v in record.request.volumes}
            theirs = {record.request.project, f"{record.request.project}.{record.name}"}
            assert record.ended or not (asks and directory.owner in theirs)
        for offer in offers.values():
            entry = offer.data.get(directory.volume, {}).get(directory)
            if entry is not None:
                assert not entry.jobs
                assert (entry.used_at or 0.0) + volume.keep_s <= now
