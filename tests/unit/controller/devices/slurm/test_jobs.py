"""Jobs as Slurm writes them: recorded ones of each document version, and any others."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.observed import EngineJob, Turn
from controller.devices.slurm.jobs import (
    MAX_NAME,
    NodeMap,
    SlurmJob,
    job_in,
    key_of,
    record_of,
    vanished,
)
from scheduler.model import Locality, Policy
from tests import recorded

MAP = NodeMap(recorded.NODES)
VERSIONS = ("v0.0.40", "v0.0.42", "v0.0.45")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["n[0-1]", "gpu:1(IDX:0)", "RUNNING", "PENDING", "COMPLETED"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def one(version: str, name: str, /, **changes: Any) -> SlurmJob:
    job = copy.deepcopy(recorded.jobs(version, name)[0])
    return record_of({**job, **changes}, MAP)


def seen(version: str, name: str, /, **changes: Any) -> EngineJob:
    return one(version, name, **changes).seen


@pytest.mark.parametrize("version", VERSIONS)
def test_a_running_job(version: str) -> None:
    job = seen(version, "running")
    assert (job.key, job.attempt, job.turn) == ("slurm:1", 0, Turn.RUNNING)
    assert (job.name, job.user, job.scope) == ("red", "alice", "slurm:1")
    assert job.endpoints == ("gpu0", "gpu2")
    assert job.wants.count == job.wants.servers == 2
    assert (job.wants.policy, job.wants.locality) == (Policy.PAUSE, Locality.REGROUP)
    assert (job.wants.dark_tolerance_s, job.wants.pinned) == (2, True)
    assert job.wants.time_limit_s == 600
    assert job.started_at is not None
    assert job.started_at > job.submitted_at > 1.7e9
    assert (job.ended_at, job.exit_code, job.reason) == (None, None, "")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "endpoints"),
    [
        ("gpus", ("gpu0", "gpu1", "gpu2")),
        ("whole", ("gpu6",)),
        ("configuring", ("gpu4",)),
    ],
)
def test_devices_are_those_of_the_allocation(
    version: str, name: str, endpoints: tuple[str, ...]
) -> None:
    assert seen(version, name).endpoints == endpoints


def test_an_allocated_job_has_its_devices_before_it_runs() -> None:
    job = seen("v0.0.45", "configuring")
    assert (job.turn, job.endpoints, job.scope) == (Turn.ALLOCATED, ("gpu4",), "slurm:5")


def test_a_job_without_gpus_has_no_endpoints() -> None:
    job = seen("v0.0.45", "nogpu")
    assert (job.turn, job.endpoints, job.wants.count) == (Turn.RUNNING, (), 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_job_blocked_by_switches_may_be_cured(version: str) -> None:
    job = seen(version, "blocked")
    assert (job.turn, job.reason, job.curable) == (Turn.WAITS, "Resources", True)
    assert (job.wants.count, job.wants.servers, job.wants.leaves) == (3, 3, 1)
    assert job.started_at is None


@pytest.mark.parametrize(
    ("reason", "description", "switches", "curable"),
    [
        ("Resources", "", 0, False),
        ("Resources", "No suitable topology unit found for segment", 0, True),
        ("Priority", "", 1, False),
        ("JobHeldUser", "", 1, False),
        ("Licenses", "", 1, False),
        ("ReqNodeNotAvail, UnavailableNodes:n0", "", 1, False),
        ("BadConstraints", "Required nodes do not fit topology", 0, True),
    ],
)
def test_what_light_may_cure(reason: str, description: str, switches: int, curable: bool) -> None:
    job = seen(
        "v0.0.45",
        "blocked",
        state_reason=reason,
        state_description=description,
        required_switches=switches,
    )
    assert job.curable is curable


@pytest.mark.parametrize(
    ("name", "eligible"),
    [("blocked", True), ("behind", True), ("held", False), ("later", False), ("depends", False)],
)
def test_jobs_that_the_engine_does_not_try_yet(name: str, eligible: bool) -> None:
    assert one("v0.0.42", name).eligible is eligible


def test_the_order_of_the_queue() -> None:
    names = ("depends", "held", "behind", "blocked")
    found = sorted((one("v0.0.42", name) for name in names), key=lambda record: record.order)
    assert [record.seen.name for record in found] == ["blocked", "behind", "depends", "held"]


def test_tasks_of_an_array_and_components_are_jobs_of_their_own() -> None:
    tasks = [record_of(job, MAP).seen for job in recorded.jobs("v0.0.42", "arraysplit")]
    assert [(task.key, task.turn) for task in tasks] == [
        ("slurm:8", Turn.WAITS),
        ("slurm:16", Turn.RUNNING),
        ("slurm:15", Turn.ENDED),
    ]
    parts = [record_of(job, MAP).seen for job in recorded.jobs("v0.0.42", "het")]
    assert [(part.key, part.wants.count) for part in parts] == [("slurm:9", 1), ("slurm:10", 0)]


def test_a_requeued_job_waits_with_a_new_attempt() -> None:
    job = seen("v0.0.42", "requeued")
    assert (job.turn, job.attempt, job.endpoints, job.wants.count) == (Turn.WAITS, 1, (), 2)


def test_a_suspended_job_keeps_its_endpoints() -> None:
    job = seen("v0.0.42", "suspended")
    assert (job.turn, job.suspended, job.endpoints) == (Turn.RUNNING, True, ("gpu4", "gpu5"))


@pytest.mark.parametrize("version", ["v0.0.42", "v0.0.45"])
def test_a_completing_job_keeps_what_slurm_forgets(version: str) -> None:
    before = seen(version, "tesla")
    document = recorded.jobs(version, "cancelled")[0]
    assert document["gres_detail"] == []
    completing = record_of(document, MAP, before).seen
    assert (completing.turn, completing.endpoints) == (Turn.RUNNING, ("gpu4", "gpu5"))
    assert completing.ending
    assert completing.revision != before.revision
    ended = record_of({**document, "job_state": ["CANCELLED"]}, MAP, completing).seen
    assert not ended.ending
    assert (ended.turn, ended.end, ended.endpoints) == (Turn.ENDED, "cancelled", before.endpoints)
    again = record_of({**document, "restart_cnt": 1}, MAP, before).seen
    assert again.endpoints == ()


@pytest.mark.parametrize(
    ("name", "end", "code", "reason"),
    [
        ("completed", "completed", 0, "COMPLETED"),
        ("signal", "failed", 137, "FAILED: RaisedSignal: RaisedSignal:9(Killed)"),
    ],
)
def test_ends(name: str, end: str, code: int, reason: str) -> None:
    job = seen("v0.0.45", name)
    assert (job.turn, job.end, job.exit_code, job.reason) == (Turn.ENDED, end, code, reason)
    assert job.ended_at is not None
    assert job.scope == ""


@pytest.mark.parametrize(
    ("states", "turn"),
    [
        (["RUNNING"], Turn.RUNNING),
        ("running", Turn.RUNNING),
        (["PENDING", "REQUEUED"], Turn.WAITS),
        (["REQUEUE_HOLD"], Turn.WAITS),
        (["PENDING", "COMPLETING"], Turn.RUNNING),
        (["PENDING", "REQUEUED", "COMPLETING"], Turn.RUNNING),
        (["PREEMPTED", "REQUEUE_HOLD", "COMPLETING"], Turn.RUNNING),
        (["RUNNING", "CONFIGURING", "COMPLETING"], Turn.RUNNING),
        (["FAILED", "REQUEUED"], Turn.WAITS),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], Turn.ALLOCATED),
        (["TIMEOUT", "COMPLETING"], Turn.RUNNING),
        (["RUNNING", "SIGNALING"], Turn.RUNNING),
        (["TIMEOUT"], Turn.ENDED),
        (["NODE_FAIL"], Turn.ENDED),
        (["OUT_OF_MEMORY"], Turn.ENDED),
        (["PREEMPTED"], Turn.ENDED),
    ],
)
def test_states_are_tested_for_membership(states: Any, turn: Turn) -> None:
    assert seen("v0.0.42", "running", job_state=states).turn is turn


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("restarts", [0, 1])
def test_a_requeued_job_holds_its_nodes_until_its_processes_are_gone(
    version: str, restarts: int
) -> None:
    runs = seen(version, "running")
    document = recorded.jobs(version, "running")[0]
    ending = record_of(
        {
            **document,
            "job_state": ["PENDING", "COMPLETING"],
            "gres_detail": [],
            "nodes": "",
            "restart_cnt": restarts,
        },
        MAP,
        runs,
    ).seen
    assert (ending.turn, ending.ending, ending.attempt) == (Turn.RUNNING, True, 0)
    assert (ending.endpoints, ending.scope) == (("gpu0", "gpu2"), runs.scope)
    assert not ending.curable
    waits = record_of(
        {
            **document,
            "job_state": ["PENDING"],
            "gres_detail": [],
            "nodes": "",
            "restart_cnt": 1,
        },
        MAP,
        ending,
    ).seen
    assert (waits.turn, waits.ending, waits.attempt) == (Turn.WAITS, False, 1)
    assert (waits.endpoints, waits.scope) == ((), "")


@pytest.mark.parametrize(
    ("detail", "nodes", "endpoints", "strangers"),
    [
        (["gpu:tesla:2(IDX:0,1)"], "n0", ("gpu0", "gpu1"), ()),
        (["gpu:a:1(IDX:0),gpu:b:1(IDX:1),shard:4(0/4)"], "n0", ("gpu0", "gpu1"), ()),
        (["", "gpu:1(IDX:1)"], "n[0-1]", ("gpu3",), ()),
        (["gpu:2"], "n0", ("gpu0", "gpu1"), ()),
        (["gpu:2(CNT:2)"], "n0", ("gpu0", "gpu1"), ()),
        (["gpu:1(CNT:1)"], "n0", (), ("n0",)),
        (["gpu:3(IDX:0-2)"], "n0", ("gpu0", "gpu1"), ("n0",)),
        (["gpu:1(IDX:0)", "gpu:1(IDX:0)"], "n3,x9", ("gpu6",), ("x9",)),
    ],
)
def test_devices(
    detail: list[str], nodes: str, endpoints: tuple[str, ...], strangers: tuple[str, ...]
) -> None:
    job = seen("v0.0.45", "running", gres_detail=detail, nodes=nodes)
    assert (job.endpoints, job.strangers) == (endpoints, strangers)


@pytest.mark.parametrize(
    ("changes", "endpoints", "problem"),
    [
        ({"nodes": "n3"}, ("gpu6",), ""),
        ({"nodes": "n0"}, (), "node n0 is shared"),
        ({"nodes": "n0", "shared": ["none"]}, ("gpu0", "gpu1"), ""),
        ({"nodes": "n0", "job_resources": {"nodes": {"whole": True}}}, ("gpu0", "gpu1"), ""),
        ({"nodes": "n1"}, (), ""),
    ],
)
def test_nodes_whose_gpus_slurm_does_not_count(
    changes: dict[str, Any], endpoints: tuple[str, ...], problem: str
) -> None:
    nodes = NodeMap(recorded.NODES, frozenset({"n0", "n3"}))
    document = {**recorded.jobs("v0.0.45", "running")[0], "gres_detail": [], **changes}
    job = record_of(document, nodes).seen
    assert job.endpoints == endpoints
    assert any(text.startswith(problem) for text in job.wants.problems or ("",))


def test_a_pending_job_for_whole_nodes() -> None:
    nodes = NodeMap(recorded.NODES, frozenset(recorded.NODES))
    document = {**recorded.jobs("v0.0.42", "blocked")[0], "tres_per_node": ""}
    assert record_of(document, nodes).seen.wants.count == 0
    assert record_of({**document, "shared": ["none"]}, nodes).seen.wants.count == 6


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"tres_req_str": "cpu=4,gres/gpu=4,gres/gpu:a100=4"}, 4),
        ({"tres_req_str": "cpu=4,gres/gpu:a100=3"}, 3),
        ({"tres_per_node": "gres/gpu"}, 3),
        ({"tres_per_node": "gres:gpu:a100:2"}, 6),
        ({"tres_per_node": "", "tres_per_job": "gres/gpu:5"}, 5),
        ({"tres_per_node": "", "tres_per_task": "gres/gpu=1", "tasks": 7}, 7),
        ({"tres_per_node": "", "tres_per_socket": "gres/gpu:2", "sockets_per_node": 2}, 12),
        ({"tres_per_node": "gres/mps:100"}, 0),
    ],
)
def test_gpus_that_a_waiting_job_asks_for(changes: dict[str, Any], count: int) -> None:
    assert seen("v0.0.42", "blocked", **changes).wants.count == count


def test_text_of_the_owner_is_clipped_and_printable() -> None:
    job = seen("v0.0.45", "weird")
    assert job.name == 'we�[31mird�"name\\'
    assert len(job.wants.problems) == 3
    assert len(seen("v0.0.45", "weird", name="x" * 9999).name) == MAX_NAME


def test_the_revision_is_of_attempt_turn_end_and_endpoints() -> None:
    job = seen("v0.0.45", "running")
    assert seen("v0.0.45", "running", name="other", time_limit=3).revision == job.revision
    for changes in (
        {"restart_cnt": 1},
        {"job_state": ["RUNNING", "CONFIGURING"]},
        {"gres_detail": ["gpu:1(IDX:1)", "gpu:1(IDX:0)"]},
        {"nodes": "n[1-2]"},
    ):
        assert seen("v0.0.45", "running", **changes).revision != job.revision


def test_a_job_that_the_engine_forgot_has_ended() -> None:
    job = seen("v0.0.45", "running")
    end = vanished(job, 1.8e9)
    assert (end.turn, end.end, end.ended_at) == (Turn.ENDED, "cancelled", 1.8e9)
    assert end.endpoints == job.endpoints
    assert end.revision != job.revision


@pytest.mark.parametrize(
    "changes",
    [
        {"job_id": 0},
        {"job_id": "7"},
        {"job_id": True},
        {"job_id": 2**40},
        {"job_state": ["DREAMING"]},
        {"job_state": None},
        {"nodes": "n[0-99999999]"},
        {"nodes": "n0,n0"},
        {"gres_detail": ["gpu:1(IDX:0)"]},
        {"gres_detail": ["gpu:1(IDX:x)", ""]},
        {"gres_detail": ["gpu:1(IDX:0", ""]},
        {"restart_cnt": -1},
        {"restart_cnt": 1.5},
        {"submit_time": float("nan")},
        {"name": 7},
        {"nodes": "", "node_count": 10**9},
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        one("v0.0.45", "running", **changes)


@given(st.data())
def test_any_document_gives_a_job_or_an_error(data: st.DataObject) -> None:
    job = dict(recorded.jobs("v0.0.45", data.draw(st.sampled_from(["running", "blocked"])))[0])
    keys = st.sampled_from([*job, "required_switches", "minimum_switches"])
    job |= data.draw(st.dictionaries(keys, JSON, max_size=4))
    try:
        record = record_of(job, MAP)
    except ValueError:
        return
    known = {name for names in recorded.NODES.values() for name in names}
    assert set(record.seen.endpoints) <= known
    assert len(set(record.seen.endpoints)) == len(record.seen.endpoints)
    assert 0 <= record.seen.wants.count <= 65_536
    assert len(record.seen.reason) <= 300


@given(JSON)
def test_any_value_gives_a_job_or_an_error(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        record_of(value, MAP)


def test_keys() -> None:
    assert job_in(key_of(4711)) == 4711
    assert job_in("kueue:1") is None
    assert job_in("slurm:x") is None
    assert job_in("slurm:") is None
