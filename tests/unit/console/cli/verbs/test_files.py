"""export, diff, import, move, trace, report, events export, people: over a real HTTP server."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.cli.ask import complete
from controller.base.errors import ServiceError
from controller.schema.fabric import EventView
from controller.schema.live import LogLineView
from tests.parts.api.fake_service import FakeService
from tests.unit.console.cli.conftest import Run


def test_export_diff_import_round_trip(run: Run, service: FakeService, tmp_path: Path) -> None:
    file = tmp_path / "fabric.yaml"
    assert run("export", "--out", str(file)).code == 0
    assert yaml.safe_load(run("export").out)["homes"] == service.homes
    same = run("diff", "-f", str(file), "-o", "json")
    assert (same.code, same.document["moves"]) == (0, [])
    was = dict(service.homes)
    service.homes["gpu2"] = "as0"
    differs = run("diff", "-f", str(file))
    assert differs.code == 3
    assert "~ endpoint/gpu2: as0 -> as1" in differs.out
    dry = run("import", "-f", str(file), "--dry-run")
    assert dry.code == 0
    assert service.homes["gpu2"] == "as0"
    assert run("import", "-f", str(file)).code == 2  # there is no terminal to confirm on
    assert run("import", "-f", str(file), "--yes").code == 0
    assert service.homes == was
    assert run("import", "-f", str(file), "--yes").code == 0  # again is no change


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("site: other\nhomes: {}\n", "another site"),
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
    run: Run, service: FakeService, tmp_path: Path, text: str, word: str
) -> None:
    before = dict(service.homes)
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    done = run("import", "-f", str(file), "--yes")
    assert done.code == 2
    assert word in done.err
    assert service.homes == before


def test_move_several_at_once(run: Run, service: FakeService) -> None:
    swapped = run("move", "gpu2=as0", "gpu0=as1", "--yes", "-o", "json")
    assert swapped.code == 0
    assert (service.homes["gpu2"], service.homes["gpu0"]) == ("as0", "as1")
    assert run("move", "gpu2", "--yes").code == 2
    assert run("move", "gpu2=as0", "gpu2=as1", "--yes").code == 2


def test_an_import_is_for_the_epoch_that_was_shown(
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = service.commands.bring_back

    async def moved_meanwhile(wanted: object, *, dry_run: bool, wait_s: float) -> object:
        view = await shown(wanted, dry_run=dry_run, wait_s=wait_s)  # type: ignore[arg-type]
        service.epoch += 1
        return view

    monkeypatch.setattr(service.commands, "bring_back", moved_meanwhile)
    done = run("move", "gpu2=as0", "--yes")
    assert done.code == 6
    assert service.homes["gpu2"] == "as1"


def test_trace(run: Run) -> None:
    shown = run("trace", "gpu0")
    assert shown.code == 0
    assert "ocs0/1.1.1" in shown.out
    assert "1.50" in shown.out
    assert run("trace", "gpu0", "-o", "json").document["loss_up_db"] == 1.5
    assert run("trace", "gpu99").code == 5


def test_trace_shows_the_light_over_time(run: Run) -> None:
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
    assert [json.loads(line)["id"] for line in lines] == list(range(1, 8))
    rows = list(csv.DictReader(io.StringIO(run("events", "export", "--format", "csv").out)))
    assert [row["id"] for row in rows] == [str(i) for i in range(1, 8)]
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
    run: Run, service: FakeService, tmp_path: Path
) -> None:
    failure = {
        "rank": 1, "endpoint": "gpu2", "epoch": 7, "exit_code": 139, "signal": "SIGSEGV",
        "cause": "rank 1 was ended by SIGSEGV (exit code 139)",
        "others": "lightloom stopped rank 0", "lines": ["<b>last words</b>"],
    }  # fmt: skip
    service.put("red", "failed", ["gpu0", "gpu2"], failure=failure)
    why = "output of rank 0 is missing here: s0 does not answer"
    service.logged.append(LogLineView(rank=0, time=1.0, stream="missing", text=why))
    file = tmp_path / "red.html"
    assert run("report", "red", "-o", str(file)).code == 0
    record = record_in(file)
    assert failure.items() <= record["answers"]["/jobs/red"]["failure"].items()
    assert why in [line["text"] for line in record["output"]]


def test_report_is_one_page_with_all_that_is_known(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "red.html"
    done = run("report", "red", "-o", str(file))
    assert (done.code, done.out.strip()) == (0, str(file))
    record = record_in(file)
    assert record["events"][0]["message"] == "event 1"
    assert {path.rsplit("/", 1)[-1] for path in record["answers"]} >= {"red", "series", "comms"}
    assert "env" not in record["answers"]["/jobs/red"]
    assert record["unread"] == []
    assert run("report", "absent").code == 5
    assert run("report", "red", "-o", str(tmp_path / "no" / "x.html")).code == 1


def test_a_report_has_the_last_output_of_every_rank(
    run: Run, service: FakeService, tmp_path: Path
) -> None:
    service.set_state("red", "failed", "rank 1 exited with 1")
    file = tmp_path / "red.html"
    assert run("report", "red", "-o", str(file)).code == 0
    said = {(line["rank"], line["text"]) for line in record_in(file)["output"]}
    assert {(0, '{"step":0}'), (1, '{"step":0}')} <= said
    service.log_error = ServiceError("unavailable", "there are no logs", object="job/red")
    service.logged = []
    assert run("report", "red", "-o", str(file)).code == 0
    assert record_in(file)["output"] == []


def test_a_report_has_the_jobs_first_event_however_much_came_after(
    run: Run, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = service.jobs["red"].submitted_at
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

    async def events(since: int, limit: int) -> list[EventView]:
        return log[-limit:] if since <= 0 else log[since : since + limit]

    monkeypatch.setattr(service.queries, "events", events)
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
    run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("version").code == 0
    assert complete.names("endpoints")("gpu") == [f"gpu{i}" for i in range(6)]
    assert complete.names("jobs", "switches")("") == ["red", "ocs0"]
    assert complete.of_kind(with_transactions=True)("tr") == ["transaction"]
    monkeypatch.setenv("LIGHTLOOM_URL", "http://127.0.0.1:1")
    assert complete.names("endpoints")("") == []


def test_a_refusal_of_the_controller_is_shown_as_it_is(run: Run, service: FakeService) -> None:
    service.refuse["bring_back"] = ServiceError("conflict", "t3 moves gpu2", object="endpoint/gpu2")
    done = run("move", "gpu2=as0", "--yes", "-o", "json")
    assert done.code == 6
    assert done.error["object"] == "endpoint/gpu2"
