"""export, diff, import, move, trace, report, events export, people: over a real HTTP server."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.cli.ask import complete
from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, EngineFault, LogLine
from controller.schema.fabric import EventView
from controller.schema.live import (
    HopView,
    PowerSeriesView,
    SeriesLineView,
    SeriesView,
    TraceView,
)
from tests.parts.api import studied
from tests.parts.api.desks import answer, show
from tests.parts.api.survival import RECOVERIES, checkpoints_view
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run


def test_export_diff_import_round_trip(run: Run, rack: Rack, tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    assert run("export", "--out", str(file)).code == 0
    assert yaml.safe_load(run("export").out)["homes"] == dict(rack.see.homes())
    same = run("diff", "-f", str(file), "-o", "json")
    assert (same.code, same.document["moves"]) == (0, [])
    was = dict(rack.see.homes())
    assert run("move", "gpu2=as0", "--yes").code == 0
    differs = run("diff", "-f", str(file))
    assert differs.code == 3
    assert "~ endpoint/gpu2: as0 -> as1" in differs.out
    dry = run("import", "-f", str(file), "--dry-run")
    assert dry.code == 0
    assert rack.see.homes()["gpu2"] == "as0"
    assert run("import", "-f", str(file)).code == 2  # there is no terminal to confirm on
    assert run("import", "-f", str(file), "--yes").code == 0
    assert dict(rack.see.homes()) == was
    assert run("import", "-f", str(file), "--yes").code == 0  # again is no change


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("site: other\nhomes: {}\n", "is for site other"),
        ("site: paper\nhomes: {gpu0: as0, gpu0: as1}\n", "twice"),
        ("a: &a [x]\nsite: *a\n", "aliases"),
        ("site: paper\n", "homes"),
        ("site: paper\nhomes: {gpu0: 7}\n", "homes"),
        ("site: paper\nhomes: {}\nsecret: 1\n", "secret"),
        ("site: paper\nhomes: {'gpu0\\u0000': as0}\n", "homes"),
        ("!!python/object/apply:os.system [id]\n", "tag"),
        ("[" * 5000, ""),
        ("- 1\n", "mapping"),
    ],
)
def test_bad_files_are_refused_whole(
    run: Run, rack: Rack, tmp_path: Path, text: str, word: str
) -> None:
    before = dict(rack.see.homes())
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    done = run("import", "-f", str(file), "--yes")
    assert done.code == 2
    assert word in done.err
    assert dict(rack.see.homes()) == before


def test_move_several_at_once(run: Run, rack: Rack) -> None:
    swapped = run("move", "gpu2=as0", "gpu0=as1", "--yes", "-o", "json")
    assert swapped.code == 0
    assert (rack.see.homes()["gpu2"], rack.see.homes()["gpu0"]) == ("as0", "as1")
    assert run("move", "gpu2", "--yes").code == 2
    assert run("move", "gpu2=as0", "gpu2=as1", "--yes").code == 2


def test_an_import_is_for_the_epoch_that_was_shown(run: Run, rack: Rack) -> None:
    shown = rack.desks.allocation.bring_back

    async def moved_meanwhile(wanted: object, *, dry_run: bool, wait_s: float) -> object:
        view = await shown(wanted, dry_run=dry_run, wait_s=wait_s)  # type: ignore[arg-type]
        await rack.desks.plans.attach("gpu5", "as0", 60)
        return view

    answer(rack.desks.allocation, bring_back=moved_meanwhile)
    done = run("move", "gpu2=as0", "--yes")
    assert done.code == 6
    assert rack.see.homes()["gpu2"] == "as1"


@pytest.fixture
def lit(rack: Rack) -> Rack:
    """A controller that has measured the light of gpu0."""
    hops = [
        HopView(kind="endpoint", at="s0/e-gpu0", detail="M40"),
        HopView(kind="switch", at="ocs0/1.1.1", power_in_dbm=-3.0, loss_db=1.5),
        HopView(kind="switch", at="ocs0/2.1.1", power_out_dbm=-4.5, loss_db=1.5),
        HopView(kind="aggregator", at="as0/1"),
    ]
    seen, real = TraceView(endpoint="gpu0", complete=True, hops=hops, loss_up_db=1.5), rack.desks
    of_any = real.live.trace

    def series(switch: str, port: str, since_s: float) -> PowerSeriesView:
        return PowerSeriesView(
            switch=switch,
            port=port,
            far="gpu0",
            interval_s=15.0,
            times=[1.0, 16.0],
            power_in_dbm=[-3.0, None],
            power_out_dbm=[-4.5, -4.6],
        )

    answer(real.live, trace=lambda name: seen if name == "gpu0" else of_any(name))
    answer(real.live, power_series=series)
    return rack


def test_trace(run: Run, lit: Rack) -> None:
    shown = run("trace", "gpu0")
    assert shown.code == 0
    assert "ocs0/1.1.1" in shown.out
    assert "1.50" in shown.out
    assert run("trace", "gpu0", "-o", "json").document["loss_up_db"] == 1.5
    assert run("trace", "gpu99").code == 5


def test_trace_shows_the_light_over_time(run: Run, lit: Rack) -> None:
    shown = run("trace", "gpu0", "--since", "1h")
    lines = [line.split() for line in shown.out.splitlines() if "ocs0/1.1.1" in line]
    # What went in was measured once and not the second time; what came out fell by 0.1 dB.
    assert lines[1][:6] == ["ocs0/1.1.1", "in", "-3.00", "-3.00", "-", "█"]
    assert lines[2][:5] == ["ocs0/1.1.1", "out", "-4.60", "-4.50", "-4.60"]
    history = run("trace", "gpu0", "--since", "1h", "-o", "json").document["history"]
    assert [series["port"] for series in history] == ["1.1.1", "2.1.1"]
    refused = run("trace", "gpu0", "--since", "soon")
    assert (refused.code, "not a duration" in refused.err) == (2, True)


def test_events_export(run: Run) -> None:
    lines = run("events", "export").out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(1, 5))
    rows = list(csv.DictReader(io.StringIO(run("events", "export", "--format", "csv").out)))
    assert [row["id"] for row in rows] == [str(i) for i in range(1, 5)]
    assert rows[0]["severity"] == "info"
    assert run("events", "export", "--format", "xml").code == 2
    assert run("events", "export", "--severity", "error").out == ""
    assert run("events", "export", "--severity", "loud").code == 2
    word = json.loads(lines[0])["reason"].upper()
    found = run("events", "export", "--severity", "info", "--words", word).out.splitlines()
    assert found == [line for line in lines if word in line.upper()]
    assert run("events", "export", "--words", "no such word").out == ""


def record_in(file: Path) -> Any:
    """Return what a report's page shows."""
    found = re.search(r'id="record">(.*?)</script>', file.read_text("utf-8"))
    assert found is not None
    return json.loads(found[1])


def test_a_report_names_the_first_cause_and_missing_output(
    run: Run, rack: Rack, tmp_path: Path
) -> None:
    failure = {
        "rank": 1, "endpoint": "gpu2", "epoch": 7, "exit_code": 139, "signal": "SIGSEGV",
        "cause": "rank 1 was ended by SIGSEGV (exit code 139)",
        "others": "lightloom stopped rank 0", "lines": ["<b>last words</b>"],
    }  # fmt: skip
    show(rack.desks.jobs, "red", state="failed", failure=failure)
    rack.engine.lost.add("srv0")
    why = "srv0 does not answer"
    file = tmp_path / "red.html"
    assert run("report", "red", "-o", str(file)).code == 0
    record = record_in(file)
    assert failure.items() <= record["answers"]["/jobs/red"]["failure"].items()
    assert why in [line["text"] for line in record["output"]]


def test_report_is_one_page_with_all_that_is_known(run: Run, rack: Rack, tmp_path: Path) -> None:
    line = SeriesLineView(
        job="red",
        rank=0,
        endpoint="gpu0",
        server="s0",
        rx_bps=[1e8],
        tx_bps=[None],
        utilisation=[0.5],
    )
    answer(rack.desks.live, series=SeriesView(times=[1.0], containers=[line], markers=[]))
    answer(rack.desks.checkpoints, checkpoints=checkpoints_view(["gpu0", "gpu2"]))
    answer(rack.desks.recoveries, of_job=RECOVERIES)
    answer(rack.desks.comms, view=studied.comms("red"))
    answer(rack.desks.advice, predictions=studied.predictions("red"))
    file = tmp_path / "red.html"
    done = run("report", "red", "-o", str(file))
    assert (done.code, done.out.strip()) == (0, str(file))
    record = record_in(file)
    assert "JobStarted" in {event["reason"] for event in record["events"]}
    assert {path.rsplit("/", 1)[-1] for path in record["answers"]} >= {"red", "series", "comms"}
    assert "env" not in record["answers"]["/jobs/red"]
    assert record["unread"] == []
    assert run("report", "absent").code == 5
    assert run("report", "red", "-o", str(tmp_path / "no" / "x.html")).code == 1


def test_a_report_has_the_last_output_of_every_rank(run: Run, rack: Rack, tmp_path: Path) -> None:
    rack.engine.output = {("red", rank): ('{"step":0}', '{"step":1}') for rank in range(4)}
    show(rack.desks.jobs, "red", state="failed", reason="rank 1 exited with 1")
    file = tmp_path / "red.html"
    assert run("report", "red", "-o", str(file)).code == 0
    said = {(line["rank"], line["text"]) for line in record_in(file)["output"]}
    assert {(0, '{"step":0}'), (1, '{"step":0}')} <= said

    async def none(*_: object, **__: object) -> AsyncIterator[LogLine]:
        raise EngineError([EngineFault("unavailable", "server/srv0", "there are no logs")])
        yield

    answer(rack.engine, logs=none)
    assert run("report", "red", "-o", str(file)).code == 0
    assert record_in(file)["output"] == []


def test_a_report_has_the_jobs_first_event_however_much_came_after(
    run: Run, rack: Rack, tmp_path: Path
) -> None:
    submitted = rack.see.jobs["red"].submitted_at
    log = [
        EventView(
            id=i,
            time=submitted + i,
            severity="info",
            object="job/red" if i in (3, 2400) else "job/other",
            reason="JobStarted",
            message=f"word {i}",
            epoch=1,
        )
        for i in range(1, 2501)
    ]

    def events(since: int, limit: int) -> list[EventView]:
        return log[-limit:] if since <= 0 else log[since : since + limit]

    answer(rack.desks.fabric, events=events)
    file = tmp_path / "red.html"
    assert run("report", "red", "-o", str(file)).code == 0
    assert [event["message"] for event in record_in(file)["events"]] == ["word 3", "word 2400"]


def test_whoami_and_audit_offline(run: Run, tmp_path: Path) -> None:
    me = run("whoami", "-o", "json").document
    assert (me["name"], me["roles"]) == ("anybody", ["admin"])
    assert run("token", "list").code == 5  # this controller asks for none
    trail = tmp_path / "audit.jsonl"
    trail.write_text("{}\n")
    (tmp_path / "audit.head").write_text("1:" + "0" * 64)
    assert run("audit", "verify", "--file", str(trail)).code == 3
    assert run("audit", "verify", "--file", str(tmp_path / "none")).code == 2


def test_completion_offers_names_and_never_fails(
    run: Run, rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("version").code == 0
    assert complete.names("endpoints")("gpu") == [f"gpu{i}" for i in range(6)]
    assert complete.names("jobs", "switches")("") == ["red", "ocs0"]
    assert complete.of_kind(with_transactions=True)("tr") == ["transaction"]
    monkeypatch.setenv("LIGHTLOOM_URL", "http://127.0.0.1:1")
    assert complete.names("endpoints")("") == []


def test_a_refusal_of_the_controller_is_shown_as_it_is(run: Run, rack: Rack) -> None:
    refusal = ServiceError("conflict", "t3 moves gpu2", object="endpoint/gpu2")
    answer(rack.desks.allocation, bring_back=refusal)
    done = run("move", "gpu2=as0", "--yes", "-o", "json")
    assert done.code == 6
    assert done.error["object"] == "endpoint/gpu2"
