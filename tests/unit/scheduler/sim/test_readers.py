"""Every public format with invented rows, the project's own format, and errors in files."""

from __future__ import annotations

import json

import pytest

from scheduler.sim.gavel import GavelTable
from scheduler.sim.readers import merge, read
from scheduler.sim.trace import Trace, TraceError, TraceJob
from tests.unit.scheduler.sim.small import table, trace

TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval"
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,"
    "iteration_time,resource_time_0,resource_time_1,resource_time_2,priority"
)
CHRONUS = (
    "job_id,user,num_gpu,submit_time,iterations,model_name,duration,interval,"
    "expect_time_list,expect_value_list,best_effort,job_type"
)
KALOS = (
    "job_id,arrival_time,num_iteration,iteration_computing_time,iteration_networking_time,"
    "gpu_workers,ps,gpu_per_worker,cpu_per_gpu_worker,cpu_per_ps_worker,tensorsizes,"
    "profiled_network"
)
OPENB = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,"
    "deletion_time,scheduled_time"
)
DLRM = "instance_sn,role,app_name,gpu_request,creation_time,scheduled_time,deletion_time"


def jobs(*lines: str) -> list[tuple[float, int, float]]:
    found = read([line + "\n" for line in lines], "t.csv")
    return [(j.submit_s, j.gpus, j.duration_s) for j in found.jobs]


def test_own_format() -> None:
    found = read(
        [
            "name,submit_s,gpus,duration_s,model,compute_s,comm_s\n",
            "late,20,4,100.5,LM,0.2,0.1\n",
            "early,10,1,5,,,\n",
        ],
        "own.csv",
    )
    assert [j.name for j in found.jobs] == ["early", "late"]
    assert found.origin_s == 10
    assert found.jobs[1] == TraceJob("late", 10, 4, 100.5, "LM", (0.2, 0.1), 2)


def test_times_with_a_zone() -> None:
    found = jobs(
        "timestamp,duration,num_gpus",
        "2020-01-01T02:00:10+02:00,60,2",
        "2020-01-01T00:00:00Z,30,1",
        "2019-12-31T19:00:20-05:00,30,4",
    )
    assert found == [(0, 1, 30), (10, 2, 60), (20, 4, 30)]


def test_philly() -> None:
    found = jobs(
        "timestamp,duration,num_gpus,gpu_time,cluster",
        "2020-01-01 00:00:10,60.0,2,120.0,ab",
        "2020-01-01 00:00:00,30.0,1,30.0,ab",
    )
    assert found == [(0, 1, 30), (10, 2, 60)]


def test_tiresias_muri_chronus() -> None:
    assert jobs(TIRESIAS, "0,2,5,9,net,100,30") == [(0, 2, 100)]
    muri = jobs(MURI, "0,8,0,9,net,16,60000,0,5,1,1,1,0", "1,8,3000,9,net,16,1000,0,5,1,1,1,1")
    assert muri == [(0, 8, 60), (3, 8, 1)]
    chronus = read(
        [CHRONUS, "0,vc,4,7,9,net,100,3,1,1,0,strict", "1,vc,0,8,9,net,100,3,1,1,0,strict"], "c"
    )
    assert [(j.gpus, j.duration_s) for j in chronus.jobs] == [(4, 100)]
    assert chronus.notes == ("1 jobs without a GPU left out",)


def test_kalos_has_a_step_profile() -> None:
    found = read([KALOS, "0,0.0,100,0.5,0.25,32,0,8.0,1,1,1,1"], "k.csv").jobs[0]
    assert (found.gpus, found.duration_s, found.profile) == (32, 75.0, (0.5, 0.25))


def test_openb_leaves_out_rows_that_are_not_gpu_jobs() -> None:
    found = read(
        [
            OPENB,
            "a,1,1,2,1000,,LS,Running,0,50,10",
            "b,1,1,0,0,,LS,Running,0,50,10",
            "c,1,1,1,1000,,LS,Pending,0,50,",
        ],
        "o.csv",
    )
    assert [(j.name, j.gpus, j.duration_s) for j in found.jobs] == [("a", 2, 40)]
    assert set(found.notes) == {
        "1 pods without a GPU left out",
        "1 pods that never ran left out",
    }


def test_dlrm() -> None:
    found = read([DLRM, "a,HN,x,1,100,110,210", "b,CN,x,0,1,2,3", "c,HN,x,1,,,9"], "d.csv")
    assert [(j.name, j.gpus, j.duration_s) for j in found.jobs] == [("a", 1, 100)]
    assert len(found.notes) == 2


def gavel_row(steps: int, arrival: float, gpus: int, model: str = "net") -> str:
    return f"{model}\ttrain --x\t-n\t1\t{steps}\t{arrival}\t{gpus}\n"


def test_gavel_steps_become_seconds_and_clusters_share_a_clock() -> None:
    one = read([gavel_row(100, 50, 2)], "vc/one.trace", table())
    two = read([gavel_row(200, 20, 16), gavel_row(10, 80, 1)], "vc/two.trace", table())
    found = merge("vc", [one, two])
    assert [(j.name, j.submit_s, j.gpus, j.duration_s) for j in found.jobs] == [
        ("two-1", 0, 16, 20),
        ("one-1", 30, 2, 10),
        ("two-2", 60, 1, 1),
    ]
    with pytest.raises(TraceError, match="need the measured throughputs"):
        read([gavel_row(1, 0, 1)], "x.trace")
    with pytest.raises(TraceError, match=r"x\.trace:1: .*no throughput of 'other'"):
        read([gavel_row(1, 0, 1, "other")], "x.trace", table())


def test_gavel_table() -> None:
    def rates(*values: float) -> dict[str, dict[str, float]]:
        return {f"('net', {n})": {"null": v} for n, v in zip((1, 2, 4), values, strict=True)}

    text = json.dumps({"v100": rates(1, 2, 6), "v100_unconsolidated": rates(1, 4, 2)})
    found = GavelTable.parse(text, "t.json")
    assert found.slowdown("net", 1) == 1.0
    assert found.slowdown("net", 2) == 1.0  # measured as faster: never below 1
    assert found.slowdown("net", 5) == 3.0
    assert found.slowdown("net", 64) == 3.0
    assert found.slowdown("unknown", 4) == 3.0
    assert found.steps_per_s("net", 3) == 2
    for broken in ("[]", "{", '{"v100": {}}', json.dumps({"v100": {}, "v100_unconsolidated": {}})):
        with pytest.raises(TraceError, match=r"t\.json"):
            GavelTable.parse(broken, "t.json")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["name,submit_s,gpus,duration_s,colour", "a,1,1,1,red"], "unknown columns: colour"),
        (["name,submit_s,gpus,duration_s", "a,1,0,1"], r"t\.csv:2: job a asks for 0 GPUs"),
        (["name,submit_s,gpus,duration_s", "a,-1,1,1"], r":2: job a is submitted at -1"),
        (["name,submit_s,gpus,duration_s", "a,1,1,0"], r":2: job a runs for 0"),
        (["name,submit_s,gpus,duration_s", "a,1,1.5,1"], r":2: gpus is 1.5, not a whole number"),
        (["name,submit_s,gpus,duration_s", "a,x,1,1"], r":2: submit_s is 'x', not a number"),
        (["name,submit_s,gpus,duration_s", "a,inf,1,1"], r":2: submit_s is 'inf'"),
        (["name,submit_s,gpus,duration_s", "a,1,1"], r":2: 3 columns, the header has 4"),
        (["name,submit_s,gpus,duration_s"], "no jobs"),
        (["timestamp,duration,num_gpus", "soon,1,1"], r":2: timestamp is 'soon'"),
        (["name,time,application,num_replicas,batch_size", "a,1,b,4,5"], "no durations"),
        (["name,cpu_milli,memory_mib,num_gpu,gpu_milli", "a,1,1,1,1"], "no times"),
        (["a,b,c"], "no known trace format"),
        (["name,submit_s,gpus,duration_s", "a,1_0,1,1"], r":2: submit_s is '1_0'"),
        (["name,submit_s,gpus,duration_s", "a,1,\u0664,1"], r":2: gpus is"),
        (["name,submit_s,gpus,gpus,duration_s", "a,1,1,2,1"], r":1: several .* 'gpus'"),
        (["num_gpu,submit_time,duration,iteration_time", "1,1,1,1"], r":2: .*no column job_id"),
        (['name,"submit_s,gpus', "a,1,1,1"], r":1: not CSV"),
        (["name,submit_s,gpus,duration_s", "a,1,1,1", '"b,2,1,1', "c,3,1,1"], r":3: not CSV"),
        (["name,submit_s,gpus,duration_s", '"a\nb",1,1,1', '"b"c,2,1,1'], r":4: not CSV"),
        (["name,submit_s,gpus,duration_s", '"' + "x" * 200_000 + '",1,1,1'], r":2: not CSV"),
        (
            ["timestamp,duration,num_gpus", "2020-01-01 00:00,1,1", "2020-01-01T00:00Z,1,1"],
            r":3: .*'2020-01-01T00:00Z' has a time zone, unlike line 2",
        ),
        (
            ["timestamp,duration,num_gpus", "2020-01-01 00:00+01:00,1,1", "2020-01-01,1,1"],
            r":3: .* has no time zone, unlike line 2",
        ),
        ([], "empty"),
    ],
)
def test_bad_input_names_place_and_reason(lines: list[str], reason: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    with pytest.raises(TraceError, match=reason):
        read(text.splitlines(keepends=True), "t.csv")


def test_load_is_reached() -> None:
    found = trace((0, 2, 10), (10, 2, 10), (20, 4, 5))
    assert found.load(4) == pytest.approx(60 / 80)
    assert found.at_load(0.5, 4).load(4) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="cannot be scaled"):
        trace((0, 1, 1)).at_load(0.5, 4)


def test_cuts() -> None:
    found = trace((0, 2, 10), (10, 8, 10), (20, 4, 5))
    assert [j.gpus for j in found.up_to(4).jobs] == [2, 4]
    assert found.up_to(4).notes == ("1 jobs of more than 4 endpoints left out",)
    assert [j.gpus for j in found.first(2).jobs] == [2, 8]
    with pytest.raises(TraceError, match="no jobs"):
        found.up_to(1)


def test_equal_names_are_made_unique() -> None:
    found = Trace.of("t", [TraceJob("a", 1, 1, 1), TraceJob("a", 2, 1, 1)])
    assert len({j.name for j in found.jobs}) == 2
