"""``measure``: starts, follows, imports, compares, cancels and removes; what it refuses and how."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from console.cli.ask import complete
from console.cli.verbs.insight import measure
from controller.base.errors import ServiceError
from controller.schema.insight.measurements import MeasurementView, ProgressView
from tests.parts.api import studied
from tests.parts.api.desks import answer
from tests.parts.controller.rack import Rack
from tests.parts.terminal import Program
from tests.unit.console.cli.conftest import Run


def keep(rack: Rack, *views: MeasurementView) -> None:
    found = {view.id: view for view in views}

    async def one(ident: str) -> MeasurementView:
        return found[ident]

    answer(rack.desks.measurements, views=list(views), view=one)


@pytest.mark.parametrize(
    ("kind", "ends", "more"),
    [
        ("links", ["gpu4", "gpu5"], ()),
        ("collectives", ["gpu4", "gpu5"], ()),
        ("scaling", ["gpu4", "gpu5"], ()),
        ("storage", ["gpu4", "gpu5"], ("--set", "volume=results")),
        ("input", ["gpu5"], ("--set", "volume=results")),
    ],
)
def test_a_dry_run_of_each_type_starts_nothing(
    run: Run, rack: Rack, *, kind: str, ends: list[str], more: tuple[str, ...]
) -> None:
    ran = run("measure", kind, *ends, *more, "--dry-run", "-o", "json")
    assert ran.code == 0, ran.err
    assert (ran.document["type"], ran.document["endpoints"]) == (kind, ends)
    assert rack.desks.measurements.views() == []


def test_detached_it_is_told_by_its_id(run: Run, rack: Rack) -> None:
    ends = ("endpoint/gpu4", "endpoint/gpu5")
    ran = run("measure", "links", *ends, "--detach", "-o", "json")
    assert (ran.code, ran.document["id"], ran.document["state"]) == (0, "m1", "pending")
    assert [view.id for view in rack.desks.measurements.views()] == ["m1"]


def test_it_is_followed_to_its_end(run: Run, rack: Rack) -> None:
    done = studied.collectives().model_copy(update={"id": "m1"})
    half = done.model_copy(
        update={"state": "running", "result": None, "valid": None, "finished_at": None}
    )
    half = half.model_copy(update={"progress": ProgressView(done=3, total=9, text="1 MiB")})
    told = [half, half, done]

    async def measurement(ident: str) -> MeasurementView:
        assert ident == "m1"
        return told.pop(0) if told else done

    answer(rack.desks.measurements, view=measurement)
    ran = run("measure", "collectives", "gpu4", "gpu5")
    assert ran.code == 0
    assert ran.err.count("m1: 3 of 9, 1 MiB") == 1
    assert "all_reduce" in ran.out


def _pairs(rack: Rack, count: int) -> None:
    """Let m1 tell of one more of ``count`` steps each time that it is asked for."""
    done = studied.links(("gpu0", "gpu1")).model_copy(update={"id": "m1"})
    running = {"state": "running", "result": None, "valid": None, "finished_at": None}
    told = [
        done.model_copy(
            update=running
            | {
                "progress": ProgressView(
                    done=i, total=count, text=f"{i // 5} of {count // 5} pairs"
                )
            }
        )
        for i in range(count)
    ]

    async def measurement(_: str) -> MeasurementView:
        return told.pop(0) if told else done

    begun = studied.running(1).model_copy(update={"progress": None})
    answer(rack.desks.measurements, start=begun, view=measurement)


def test_progress_that_is_piped_has_a_line_for_each_tenth(
    run: Run, rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "POLL_S", 0.0)
    _pairs(rack, 75)
    ran = run("measure", "links", "gpu4", "gpu5")
    assert ran.code == 0
    lines = [line for line in ran.err.splitlines() if line.startswith("m1: ")]
    assert len(lines) == 10
    assert lines[0].startswith("m1: 0 of 75") and lines[-1].startswith("m1: 68 of 75")


def test_progress_on_a_terminal_is_one_line_that_is_rewritten(url: str, rack: Rack) -> None:
    _pairs(rack, 3)
    program = Program("measure", "links", "gpu4", "gpu5", environment={"LIGHTLOOM_URL": url})
    assert program.end() == 0
    progress, _, rest = program.said.partition("m1: 2 of 3, 0 of 0 pairs")
    assert progress.count("m1: ") == 2
    assert progress.partition("m1: ")[2].count("\n") == 0
    assert rest.startswith("\r\x1b[K")


@pytest.mark.parametrize(
    "how",
    [
        ({"state": "failed", "reason": "no disk", "result": None}, 1, "m7 failed: no disk"),
        ({"state": "cancelled", "reason": "by bob", "result": None}, 3, "m7 ended: by bob"),
        ({"valid": False, "invalid_because": ["load 9"]}, 3, "m7 is not valid: load 9"),
    ],
)
def test_how_it_ended_is_the_exit_code(
    run: Run,
    rack: Rack,
    how: tuple[dict[str, Any], int, str],
) -> None:
    changes, code, text = how
    view = studied.links(("gpu0", "gpu1")).model_copy(update=changes)

    answer(rack.desks.measurements, start=view)
    ran = run("measure", "links", "-o", "json")
    assert (ran.code, ran.error["object"]) == (code, "measurement/m7")
    assert text in ran.error["message"]
    assert ran.document["id"] == "m7"


def test_a_time_out_cancels_it(run: Run, rack: Rack) -> None:
    ran = run("measure", "links", "--timeout", "0.05s")
    assert ran.code == 124
    assert "is cancelled" in ran.err and "--timeout" in ran.err
    (view,) = rack.desks.measurements.views()
    assert view.state == "cancelled"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--homes", "gpu3"), "'gpu3' is not ENDPOINT=AGGREGATOR"),
        (("--set", "sizes"), "'sizes' is not KEY=VALUE"),
        (("--from", "x.json"), "an import needs a file and its tool"),
        (("--tool", "osu"), "an import needs a file and its tool"),
        (("-o", "wide"), "wide"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(
    run: Run, rack: Rack, words: tuple[str, ...], text: str
) -> None:
    ran = run("measure", "links", *words)
    assert ran.code == 2
    assert text in ran.err and "hint:" in ran.err
    assert rack.desks.measurements.views() == []


def test_a_refusal_names_the_object_and_what_to_do(run: Run, rack: Rack) -> None:
    ran = run("measure", "links", "gpu99", "-o", "json")
    assert (ran.code, ran.error["object"]) == (5, "endpoint/gpu99")
    hint = "ask an operator"
    refusal = ServiceError("forbidden", "no", object="measurement", hint=hint)
    answer(rack.desks.measurements, start=refusal)
    ran = run("measure", "links", "-o", "json")
    assert ran.error["hint"] == hint


def test_a_file_is_imported_and_a_missing_one_named(run: Run, rack: Rack, tmp_path: Path) -> None:
    answer(rack.desks.measurements, import_result=studied.storage())
    file = tmp_path / "out.json"
    file.write_text("{}")
    ran = run("measure", "storage", "--from", str(file), "--tool", "fio", "-o", "json")
    assert (ran.code, ran.document["state"]) == (0, "completed")
    ran = run("measure", "storage", "--from", str(tmp_path / "none"), "--tool", "fio")
    assert ran.code == 2 and str(tmp_path / "none") in ran.err


def test_it_is_cancelled_then_removed(run: Run, rack: Rack) -> None:
    assert run("measure", "links", "--detach").code == 0
    ran = run("measure", "remove", "m1", "-o", "json")
    assert (ran.code, ran.error["object"]) == (6, "measurement/m1")
    assert "measurement m1 is cancelled" in run("measure", "cancel", "measurement/m1").out
    assert "measurement m1 is removed" in run("measure", "remove", "m1").out
    assert run("measure", "remove", "m1").code == 5


def test_a_summary_is_for_people(run: Run, rack: Rack) -> None:
    """What programs read of it stays in the document; every figure has its unit."""
    internals = {
        "known": [{"order": ["gpu0"], "facts": {"ranks": 2, "step_s": 0.4, "bytes": 1e8}}],
        "plan": {"endpoints": ["gpu0"], "homes": {"gpu0": "as0"}, "moves": {}},
    }
    best = {"best": {"all_reduce, None": {"bus_bw": 9.94734e6, "size": 1024, "link_share": 0.4}}}
    views = []
    for id_, view, summary in (
        ("m7", studied.comparison(), internals | {"within": 0.05}),
        ("m8", studied.collectives(), best),
    ):
        assert view.result is not None
        result = view.result.model_copy(update={"summary": view.result.summary | summary})
        views.append(view.model_copy(update={"id": id_, "result": result}))
    keep(rack, *views)
    shown = run("describe", "measurement", "m7").out
    assert not re.search("known|plan|facts|homes=", shown.partition("summary:")[2])
    assert re.search("within +5 %", shown)
    assert (
        "bus_bw=9.947 MB/s size=1 KiB link_share=40 %" in run("describe", "measurement", "m8").out
    )
    known = run("describe", "measurement", "m7", "-o", "json").document["result"]["summary"][
        "known"
    ]
    assert known == internals["known"]


def test_two_results_are_compared(run: Run, rack: Rack) -> None:
    slow = studied.links(("gpu0", "gpu1")).model_copy(update={"id": "m3"})
    running = studied.running(8)
    more = studied.storage().model_copy(update={"id": "m9"})
    keep(rack, slow, studied.links(("gpu0", "gpu1")), running, more)
    ran = run("measure", "diff", "m3", "m7", "-o", "json")
    assert ran.code == 0
    assert {row["ratio"] for row in ran.document["rows"]} == {1.0}
    assert "RATIO" in run("measure", "diff", "m3", "m7").out
    ran = run("measure", "diff", "m3", "m8", "-o", "json")
    assert (ran.code, ran.error["object"]) == (6, "measurement/m8")
    assert run("measure", "diff", "m3", "m9").code == 2


def test_ids_are_completed(run: Run, rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(rack, studied.links(("gpu0", "gpu1")), studied.running(8))
    run("whoami")
    assert complete.names("measurements")("m") == ["m7", "m8"]
    monkeypatch.setenv("LIGHTLOOM_URL", "http://127.0.0.1:9")
    assert complete.names("measurements")("m") == []


def test_help_of_a_command_by_words(offline: Run) -> None:
    assert "measure" in offline("help").out
    ran = offline("help", "measure", "diff")
    assert ran.code == 0 and "95 %" in ran.out
    assert offline("help", "nonsense").code == 2
