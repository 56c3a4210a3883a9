"""export, diff, import, move, trace, report, events export, people: over a real HTTP server."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from console.cli.ask import complete
from console.cli.verbs.report import page
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


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


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
    text = file.read_text()
    for told in (failure["cause"], failure["others"], "&lt;b&gt;last words&lt;/b&gt;", why):
        assert str(told) in text


def test_report_is_one_page_that_fetches_nothing(run: Run, rack: Rack, tmp_path: Path) -> None:
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
    text = file.read_text()
    parsed = Collector()
    parsed.feed(text)
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?://|url\(|@import", text)
    assert "default-src 'none'" in text
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == 8
    lines = [len(ET.fromstring(d).findall("polyline")) for d in drawings[:3]]  # noqa: S314 - our own
    assert lines == [1, 0, 1]  # nothing is known of what was sent
    assert "JobStarted" in text
    assert run("report", "absent").code == 5
    assert run("report", "red", "-o", str(tmp_path / "no" / "x.html")).code == 1


def test_a_report_has_the_last_output_of_every_rank(run: Run, rack: Rack, tmp_path: Path) -> None:
    rack.engine.output = {("red", rank): ('{"step":0}', '{"step":1}') for rank in range(4)}
    show(rack.desks.jobs, "red", state="failed", reason="rank 1 exited with 1")
    file = tmp_path / "red.html"
    assert run("report", "red", "-o", str(file)).code == 0
    text = file.read_text()
    for rank in (0, 1):
        assert f"<h3>Rank {rank}</h3><pre>{{&quot;step&quot;:0}}\n" in text

    async def none(*_: object, **__: object) -> AsyncIterator[LogLine]:
        raise EngineError([EngineFault("unavailable", "server/srv0", "there are no logs")])
        yield

    answer(rack.engine, logs=none)
    assert run("report", "red", "-o", str(file)).code == 0
    assert '<h2>Last output</h2>\n<p class="small">None.</p>' in file.read_text()


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
    text = file.read_text()
    assert "word 3<" in text
    assert "word 2400<" in text
    assert "word 4<" not in text


def test_a_report_escapes_what_came_from_outside() -> None:
    evil = "<script>alert(1)</script>\x1b[31m"
    job = {
        **dict.fromkeys(
            ("name", "state", "project", "image", "locality", "policy", "reason"), evil
        ),
        "command": [evil],
        "count": 1,
        "spread": {},
        "ranks": [],
        "submitted_at": 0.0,
        "started_at": None,
        "finished_at": None,
        "rx_bps": None,
        "tx_bps": None,
        **dict.fromkeys(("span", "excess_span", "ring_crossings", "restarts"), 0),
    }
    line = {"rank": evil, "endpoint": evil, "rx_bps": [1.0], "tx_bps": [1.0], "utilisation": [1.0]}
    series = {"times": [1.0], "containers": [line], "interval_s": 1.0}
    event = {"time": 1.0, "severity": evil, "reason": evil, "message": evil}
    text = page(job, series, [event], [], {0: [evil, "&second"]})
    assert "alert(1)&lt;/script&gt;\\x1b[31m\n&amp;second</pre>" in text
    assert "<script" not in text
    assert "\x1b" not in text


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
