"""``get`` and ``describe``."""

from __future__ import annotations

import json

import pytest
import yaml

from controller.schema.fabric import NodeView
from controller.schema.jobs import GpuFiguresView
from tests.parts.api.desks import answer, restore, show
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run, Served

KINDS = [
    "jobs",
    "endpoints",
    "aggregators",
    "switches",
    "circuits",
    "containers",
    "events",
    "nodes",
]


def test_get_jobs_shows_the_spread(run: Run) -> None:
    ran = run("get", "jobs")
    head, row = ran.out.splitlines()
    assert head.split() == ["NAME", "STATE", "GPUS", "SPREAD", "SPAN", "RING", "AGE", "REASON"]
    assert row.startswith("red")
    assert "as0:2 as1:2" in row
    assert ran.code == 0
    assert ran.err == ""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_form(run: Run, kind: str) -> None:
    page = run("get", kind, "-o", "json").document
    assert {"items", "epoch"} <= set(page)
    same = yaml.safe_load(run("get", kind, "-o", "yaml").out)["items"]
    assert [set(item) for item in same] == [set(item) for item in page["items"]]
    narrow, wide = run("get", kind).out, run("get", kind, "-o", "wide").out
    assert len(wide.splitlines()) == len(narrow.splitlines()) == 1 + len(page["items"])
    names = run("get", kind, "-o", "name").out.split()
    assert len(names) == len(page["items"])
    for name in names:
        assert run("get", name, "-o", "json").code == 0


def test_one_object_by_either_spelling(run: Run) -> None:
    assert run("get", "job", "red", "-o", "json").document["name"] == "red"
    assert run("get", "endpoint/gpu3", "-o", "json").document["fiber"] == "ocs0/1.1.4"


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("get", "jobs", "blue"), 5, "blue"),
        (("get", "endpoint", "gpu9"), 5, "gpu0"),
        (("describe", "transaction", "t9"), 5, "t9"),
        (("get", "gadgets"), 2, "endpoints"),
        (("describe", "job"), 2, "name"),
        (("get", "job", "Red!"), 2, "name"),
        (("get", "jobs", "-o", "xml"), 2, "xml"),
        (("get", "jobs", "-w", "-o", "yaml"), 2, "yaml"),
    ],
)
def test_refusals(run: Run, arguments: tuple[str, ...], code: int, word: str) -> None:
    ran = run(*arguments)
    assert ran.code == code
    assert ran.out == ""
    assert word in ran.err


def test_an_error_with_o_json_is_json_on_stderr(run: Run) -> None:
    ran = run("get", "jobs", "blue", "-o", "json")
    assert ran.code == 5
    assert ran.out == ""
    assert ran.error["code"] == "not_found"
    assert ran.error["object"] == "job/blue"
    assert ran.error["hint"]


def test_an_empty_list_says_so_beside_the_data(run: Run, rack: Rack) -> None:
    answer(rack.desks.jobs, jobs=[])
    ran = run("get", "jobs")
    assert ran.out == ""
    assert "no jobs" in ran.err
    assert run("get", "jobs", "-o", "json").document["items"] == []


def test_watch_prints_changes_only(run: Run) -> None:
    ran = run("get", "jobs", "-w", "--count", "3", "--interval", "0.1", "-o", "json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [line["name"] for line in lines] == ["red"]
    ran = run("get", "events", "-w", "--count", "2", "--interval", "0.1")
    assert len(ran.out.splitlines()) == 5


def test_describe_has_conditions_and_own_events(run: Run, rack: Rack) -> None:
    show(rack.desks.jobs, "red", rx_bps=1e8)
    ran = run("describe", "job", "red")
    assert "conditions:" in ran.out
    assert "ranks:" in ran.out
    assert "100 Mbit/s" in ran.out
    document = run("describe", "job/red", "-o", "json").document
    assert {event["object"] for event in document["events"]} == {"job/red"}
    assert document["conditions"]


@pytest.mark.parametrize("kind", ["endpoint gpu0", "aggregator as0", "switch ocs0", "node srv0"])
def test_describe_other_kinds(run: Run, kind: str) -> None:
    word, name = kind.split()
    ran = run("describe", word, name)
    assert ran.code == 0
    assert name in ran.out


def test_describe_a_running_transaction_says_what_it_waits_for_and_how_to_stop_it(
    run: Run, rack: Rack
) -> None:
    ended = rack.desks.plans.transaction("t1")
    waits = {"waiting_for": "ocs0", "how_to_stop": "lightloom abort t1"}
    running = {"state": "running", "phase": "switch", "finished_at": None}
    answer(rack.desks.plans, transaction=ended.model_copy(update=running | waits))
    ran = run("describe", "transaction/t1")
    words = {" ".join(line.split()) for line in ran.out.splitlines()}
    assert {"phase switch", "waiting for ocs0", "how to stop lightloom abort t1"} <= words
    restore(rack.desks.plans, "transaction")
    assert "lightloom abort" not in run("describe", "transaction", "t1").out


def test_names_cannot_control_a_terminal(run: Run, rack: Rack) -> None:
    show(rack.desks.jobs, "red", state="failed", reason="exit \x1b[2J\x07 code")
    ran = run("get", "jobs")
    assert "\x1b" not in ran.out
    assert "\\x1b[2J" in ran.out


def test_asking_for_gpus_names_the_kind_that_lists_them(run: Run) -> None:
    ran = run("get", "gpus")
    assert ran.code == 2
    assert "a GPU is an endpoint" in ran.err


def test_describe_shows_what_a_gpu_tells_and_nothing_where_it_does_not(
    run: Run, served: Served, rack: Rack
) -> None:
    hot = GpuFiguresView(
        memory_total_bytes=80 * 2**30,
        temperature_c=61.0,
        power_w=350.5,
        sm_clock_hz=1_980_000_000,
        throttle_reasons=["sw_thermal"],
    )
    endpoints = served.do(rack.desks.fabric.endpoints())
    told = {"source": "nvml", "memory_used_bytes": 3 * 2**30, "gpu": hot}
    endpoints[0] = endpoints[0].model_copy(update=told)
    answer(rack.desks.fabric, endpoints=endpoints)
    shown = run("describe", "endpoint", "gpu0").out
    about = shown[shown.index("gpu:") :]
    words = {" ".join(line.split()) for line in about.splitlines()}
    assert {"temperature 61 °C", "power 350 W", "sm clock 1.98 GHz", "xid -"} <= words
    assert {"memory total 80 GiB", "throttle reasons sw_thermal"} <= words
    assert "temperature" not in run("describe", "endpoint", "gpu1").out


def test_readings_are_columns_of_wide_lists_and_a_part_of_a_description(
    run: Run, served: Served, rack: Rack
) -> None:
    first = rack.desks.fabric.nodes()[0]
    readings = {"load": 1.25, "memory_available_bytes": 3 << 30}
    answer(rack.desks.fabric, nodes=[first.model_copy(update={"readings": readings})])
    endpoints = served.do(rack.desks.fabric.endpoints())[:2]
    hot = {"source": "nvml", "gpu": GpuFiguresView(temperature_c=61.0, power_w=350.0)}
    answer(rack.desks.fabric, endpoints=[endpoints[0].model_copy(update=hot), endpoints[1]])
    heads, row = run("get", "nodes", "-o", "wide").out.splitlines()
    assert heads.split()[-2:] == ["LOAD", "AVAILABLE"]
    assert row.split()[-3:] == ["1.25", "3", "GiB"]
    assert "LOAD" not in run("get", "nodes").out
    shown = run("describe", "node", first.name).out
    assert "readings:" in shown
    assert "memory available" in shown
    rows = run("get", "endpoints", "-o", "wide").out.splitlines()
    assert rows[0].split()[-2:] == ["TEMP", "POWER"]
    assert "61 °C" in rows[1]
    assert rows[2].split()[-2:] == ["-", "-"]


def test_a_reading_alone_is_no_change_to_print(run: Run, rack: Rack) -> None:
    first = rack.desks.fabric.nodes()[0]
    load = iter(range(9))

    def nodes() -> list[NodeView]:
        return [first.model_copy(update={"readings": {"load": float(next(load))}})]

    answer(rack.desks.fabric, nodes=nodes)
    for form, lines in (("json", 1), ("wide", 2), ("table", 2)):
        ran = run("get", "nodes", "-w", "-o", form, "--interval", "0.1", "--count", "3")
        assert len(ran.out.splitlines()) == lines, form
