"""``lightloom simulate`` from the command line to figures, and its errors for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from console.cli.errors import CliError
from console.cli.verbs.standalone.simulate import simulate
from tests.unit.scheduler.sim.small import FIGURES

SITE = {
    "name": "tiny",
    "aggregators": [{"name": f"as{a}", "ports": {"ocs0": 2}} for a in range(2)],
    "endpoints": [{"name": f"e{i}", "ocs": "ocs0"} for i in range(4)],
}
TRACE = "name,submit_s,gpus,duration_s\n" + "".join(
    f"j{i},{at},{gpus},{run}\n"
    for i, (at, gpus, run) in enumerate(
        [(0, 1, 10), (0, 1, 100), (0, 1, 10), (0, 1, 100), (20, 2, 40)]
    )
)
RATES = {f"('net', {n})": {"null": 4.0} for n in (1, 2, 4)}
SLOW = {f"('net', {n})": {"null": 1.0} for n in (1, 2, 4)}

Run = Callable[..., None]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "site.yaml").write_text(json.dumps(SITE))
    (tmp_path / "one.csv").write_text(TRACE)
    table = {"v100": RATES, "v100_unconsolidated": SLOW}
    (tmp_path / "table.json").write_text(json.dumps(table))
    return tmp_path


@pytest.fixture
def run(files: Path) -> Run:
    app = typer.Typer()
    app.command()(simulate)

    def call(*arguments: str, trace: str = "one.csv") -> None:
        given = ["--trace", str(files / trace), "--site", str(files / "site.yaml"), *arguments]
        app(given, standalone_mode=False)

    return call


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_one_policy_is_one_document(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("-o", "json")
    found = document(capsys)
    assert list(found) == FIGURES
    assert (found["policy"], found["endpoints"], found["jobs"]) == ("regroup", 4, 5)


def test_several_policies_are_a_list(
    run: Run, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(files / "table.json")
    run(
        *("--policy", "slurm-tree,evict-restart,regroup", "-o", "json", "--slowdown", "gavel"),
        *("--gavel-table", table, "--pause-s", "2", "--load", "0.9", "--seed", "3"),
    )
    found = {d["policy"]: d for d in document(capsys)}
    assert list(found) == ["slurm-tree", "evict-restart", "regroup"]
    best, worst = found["regroup"], found["slurm-tree"]
    assert best["jct_gpu_time_weighted_s"] < worst["jct_gpu_time_weighted_s"]
    assert (best["regroups"], worst["regroups"]) == (1, 0)


def test_table_and_plot(run: Run, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("--policy", "fgd,hived", "-o", "wide", "--plot", str(files / "figure.svg"))
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("POLICY")
    assert [row.split()[0] for row in shown[1:]] == ["fgd", "hived"]
    assert (files / "figure.svg").read_text().startswith("<?xml")


def test_folder_with_one_trace(run: Run, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "nodes.csv").write_text("node,gpus\na,1\n")
    run("-o", "json", "--jobs", "2", trace=".")
    assert document(capsys)["jobs"] == 2


def test_folder_of_gavel_clusters(
    run: Run, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "vc").mkdir()
    for name in ("a", "b"):
        (files / "vc" / f"{name}.trace").write_text("net\tcmd\t-n\t1\t40\t5.0\t2\n")
    (files / "vc" / "simulation_throughputs.json").write_text((files / "table.json").read_text())
    run("-o", "json", trace="vc")
    found = document(capsys)
    assert (found["jobs"], found["jct_mean_s"]) == (2, 10.0)


@pytest.mark.parametrize(
    ("arguments", "trace", "expected"),
    [
        (("--policy", "best"), "one.csv", ("usage", "--policy best")),
        (("--slowdown", "gavel"), "one.csv", ("usage", "needs the measured table")),
        ((), "none.csv", ("usage", "cannot be read")),
        ((), "table.json", ("invalid", "no known trace format")),
        ((), "wide.csv", ("invalid", "asks for 9 endpoints")),
        ((), "zero.csv", ("invalid", "zero.csv:2")),
        ((), "empty", ("invalid", "holds 0 traces")),
        ((), "two", ("invalid", "holds 2 traces")),
        ((), "zones.csv", ("invalid", "zones.csv:3")),
        ((), "open.csv", ("invalid", "open.csv:2: not CSV")),
        ((), "latin.csv", ("invalid", "not a text file")),
        (("--gavel-table", "latin.csv"), "one.csv", ("invalid", "not text in UTF-8")),
        (("--gavel-table", "nowhere.json"), "one.csv", ("usage", "cannot be read")),
        (("-o", "name"), "one.csv", ("usage", "does not support")),
        (("--plot", "/nowhere/x.png"), "one.csv", ("usage", "cannot be written")),
    ],
)
def test_bad_input(
    run: Run, files: Path, arguments: tuple[str, ...], trace: str, expected: tuple[str, str]
) -> None:
    code, message = expected
    head = "name,submit_s,gpus,duration_s\n"
    (files / "wide.csv").write_text(head + "a,0,9,1\n")
    (files / "zero.csv").write_text(head + "a,0,0,1\n")
    (files / "open.csv").write_text(head + '"a,0,1,1\n')
    (files / "latin.csv").write_bytes(head.encode() + b"\xe9,0,1,1\n")
    times = ("2020-01-01 00:00:00", "2020-01-01T00:00:00Z")
    rows = "".join(f"{time},1,1\n" for time in times)
    (files / "zones.csv").write_text("timestamp,duration,num_gpus\n" + rows)
    (files / "empty").mkdir()
    (files / "two").mkdir()
    for name in ("x.csv", "y.csv"):
        (files / "two" / name).write_text(TRACE)
    given = [str(files / a) if (files / a).is_file() else a for a in arguments]
    with pytest.raises(CliError, match=message) as error:
        run(*given, trace=trace)
    assert error.value.code == code
    assert error.value.exit_code == 2
    assert error.value.hint or code == "usage"


def test_larger_jobs_can_be_left_out(
    run: Run, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "wide.csv").write_text(TRACE + "wide,1,9,1\n")
    run("-o", "json", "--max-gpus", "4", trace="wide.csv")
    captured = capsys.readouterr()
    assert json.loads(captured.out)["jobs"] == 5
    assert "1 jobs of more than 4 endpoints left out" in captured.err
