"""``testbed`` and ``demo`` with the rack replaced: options, forms, errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from rich.text import Text

from testbed import demo, lanes, rack
from testbed.demo import Base, DemoError, spare
from testbed.lanes import LaneError, racks
from testbed.lanes.racks import NamedRack
from testbed.rack import EmulatedPart, LossChange, PartStatus, RackError, RackStatus
from testbed.rack.losses import ObjectKind
from tests.unit.console.cli.conftest import Run

Progress = Callable[[str], None]

UP = RackStatus(
    state="up",
    run_dir="/run/x",
    site="paper",
    site_file="paper.yaml",
    url="http://127.0.0.1:8470",
    image="lightloom/trainer:abc",
    access_bps=250e6,
    inter_aggregator_bps=114e6,
    started_at=1_700_000_000.0,
    parts=(PartStatus("controller", 12, False, 1_700_000_000.0, "/run/x/controller.log"),),
    emulated=(EmulatedPart("ocs0", "optical switch", "a server"),),
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Replace the rack; every call is noted."""
    noted: list[tuple[Any, ...]] = []

    def up(site: Path, run_dir: Path, *, progress: Progress, slurm: str) -> RackStatus:
        noted.append(("up", site, run_dir))
        progress("agents")
        structlog.get_logger("part").info("not for stdout")
        structlog.get_logger("part").warning("engine slow")
        return UP

    def down(run_dir: Path, *, progress: Progress) -> None:
        noted.append(("down", run_dir))
        progress("containers")

    def status(run_dir: Path) -> RackStatus:
        return UP if noted and noted[-1][0] == "up" else RackStatus("down", str(run_dir))

    for function in (up, down, status):
        monkeypatch.setattr(rack, function.__name__, function)
    return noted


def test_up_takes_the_papers_rack_by_default(offline: Run, calls: list[tuple[Any, ...]]) -> None:
    ran = offline("testbed", "up")
    assert ran.code == 0
    verb, site, run_dir = calls[0]
    assert (verb, site.name, str(run_dir)) == ("up", "paper.yaml", "/run/lightloom/rack")
    assert site.exists()
    assert ran.err.startswith("agents\n")
    assert "engine slow" in ran.err
    assert "not for stdout" not in ran.err
    assert "controller   12    NO" in ran.out
    assert "/controller/admin.token" in ran.out
    assert "access 250 Mbit/s, between aggregators 114 Mbit/s" in ran.out


def test_up_down_status_as_json(offline: Run, calls: list[tuple[Any, ...]], tmp_path: Path) -> None:
    ran = offline("testbed", "up", "--site", "x.yaml", "--run-dir", str(tmp_path), "-o", "json")
    assert ran.document["state"] == "up"
    assert calls == [("up", Path("x.yaml"), tmp_path)]
    assert offline("testbed", "status", "-o", "json").document["emulated"][0]["name"] == "ocs0"
    assert offline("testbed", "down", "-o", "json").document["state"] == "down"
    assert offline("testbed", "status").out == "state   down\n"


@pytest.mark.parametrize(
    ("code", "exit_code"), [("forbidden", 4), ("conflict", 6), ("unavailable", 1), ("invalid", 2)]
)
def test_rack_errors_keep_their_code(
    offline: Run, monkeypatch: pytest.MonkeyPatch, code: Any, exit_code: int
) -> None:
    def refused(*_: object, **__: object) -> RackStatus:
        raise RackError(code, "no", object="rack", hint="do this")

    monkeypatch.setattr(rack, "up", refused)
    ran = offline("testbed", "up", "-o", "json")
    assert ran.code == exit_code
    assert ran.out == ""
    assert ran.error == {"code": code, "message": "no", "hint": "do this", "object": "rack"}


def test_a_bad_site_file_names_every_problem(
    offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sitefile import load_site

    def checked(site: Path, run_dir: Path, *, progress: Progress, slurm: str) -> RackStatus:
        del run_dir, progress
        load_site(site)
        return UP

    monkeypatch.setattr(rack, "up", checked)
    bad = tmp_path / "site.yaml"
    text = (Path(rack.__file__).parents[1] / "sites" / "paper.yaml").read_text()
    bad.write_text(text.replace("name: paper", "name: paper\ncolour: red", 1))
    ran = offline("testbed", "up", "--site", str(bad), "-o", "json")
    assert ran.code == 2
    assert "colour" in ran.error["message"]
    assert ran.error["object"] == str(bad)
    assert offline("testbed", "up", "--site", str(tmp_path / "absent.yaml")).code == 2


def test_lose_and_repair(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(
        state: str, *, changed: bool, killed: tuple[int, ...] = ()
    ) -> Callable[..., LossChange]:
        return lambda name, run_dir, progress: LossChange(
            name, ObjectKind.ENDPOINT, state, changed, 12.5, 0.1, killed
        )

    monkeypatch.setattr(rack, "lose", change("lost", changed=True, killed=(7, 8)))
    ran = offline("testbed", "lose", "gpu3", "-o", "json")
    assert ran.document["object"] == "gpu3"
    assert (ran.document["kind"], ran.document["killed"]) == ("endpoint", [7, 8])
    text = offline("testbed", "lose", "gpu3").out
    assert text == "endpoint gpu3 is lost; 2 processes were killed\n"
    monkeypatch.setattr(rack, "lose", change("lost", changed=False))
    assert offline("testbed", "lose", "gpu3").out == "endpoint gpu3 is lost already\n"
    assert "kind: endpoint" in offline("testbed", "lose", "gpu3", "-o", "yaml").out
    monkeypatch.setattr(rack, "repair", change("repaired", changed=False))
    assert offline("testbed", "repair", "gpu3").out.endswith("it was not lost\n")


def test_status_names_what_is_lost(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = dataclasses.replace(UP, state="degraded", lost=("gpu3", "as1"))
    monkeypatch.setattr(rack, "status", lambda run_dir: lost)
    assert "gpu3, as1" in offline("testbed", "status").out
    assert offline("testbed", "status", "-o", "json").document["lost"] == ["gpu3", "as1"]


def test_demo(offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def experiment(case: str, *, progress: Progress, **options: Any) -> dict[str, Any]:
        asked.update(options, case=case)
        progress("calibrating")
        return {"case": case}

    def render(result: dict[str, Any]) -> Text:
        return Text(f"Case {result['case']}")

    monkeypatch.setattr(demo, "run", experiment)
    monkeypatch.setattr(demo, "render", render)
    ran = offline("demo", "a", "--arms", "live, regrouped", "--out", str(tmp_path), "-o", "json")
    assert ran.document == {"case": "a"}
    assert ran.err == "calibrating\n"
    assert asked["arms"] == ["live", "regrouped"]
    assert (asked["out_dir"], asked["site_path"], asked["recalibrate"]) == (tmp_path, None, False)
    assert asked["rates_from"] is Base.RING
    ran = offline("demo", "b", "--recalibrate", "--rates-from", "alone")
    assert (ran.out, asked["rates_from"]) == ("Case b\n", Base.ALONE)
    assert asked["arms"] is None
    assert offline("demo", "c").code == 2


def test_demo_spare(offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def experiment(*, progress: Progress, **options: Any) -> dict[str, Any]:
        asked.update(options)
        return {"case": "spare"}

    monkeypatch.setattr(spare, "run", experiment)
    monkeypatch.setattr(spare, "render", lambda result: Text("a table"))
    ran = offline("demo", "spare", "--arms", "spare,zero", "--out", str(tmp_path), "-o", "json")
    assert ran.document == {"case": "spare"}
    assert (asked["arms"], asked["out_dir"]) == (["spare", "zero"], tmp_path)
    assert asked["site_path"] is None
    assert offline("demo", "spare").out == "a table\n"


def test_demo_errors_keep_their_code(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> dict[str, Any]:
        raise DemoError("conflict", "the rack is in use by red", hint="cancel it")

    monkeypatch.setattr(demo, "run", refused)
    ran = offline("demo", "a", "-o", "json")
    assert ran.code == 6
    assert ran.error["hint"] == "cancel it"


def test_an_unknown_engine_is_refused(offline: Run, calls: list[tuple[Any, ...]]) -> None:
    assert offline("testbed", "up", "--engine", "pbs").code == 2
    assert offline("testbed", "up", "--engine", "slurm", "--isolation", "none").code == 2
    assert not calls


def test_a_rack_without_slurm_says_so(offline: Run, tmp_path: Path) -> None:
    ran = offline("testbed", "slurm", "--run-dir", str(tmp_path), "--", "squeue")
    assert ran.code != 0
    assert "this rack has no Slurm" in ran.err


RED = NamedRack(
    "red", "up", "paper", "http://127.0.0.1:41234", "/proc/8/root/t", 1_700_000_000.0, 7
)


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Replace racks with names; every call is noted."""
    noted: list[tuple[Any, ...]] = []

    def up(name: str, site: Path, words: list[str], *, slurm: bool, progress: Progress) -> int:
        noted.append(("up", name, site.name, *words, slurm))
        progress("lane red")
        return 0

    def run_inside(name: str, words: list[str]) -> int:
        if name != "red":
            raise LaneError("not_found", f"lane {name} does not exist", object=name)
        noted.append(("run", name, *words))
        return 3

    monkeypatch.setattr(racks, "up", up)
    monkeypatch.setattr(racks, "run", run_inside)
    monkeypatch.setattr(racks, "everyone", lambda: (RED,))
    monkeypatch.setattr(lanes, "end", lambda name: noted.append(("end", name)))
    return noted


def test_a_rack_with_a_name_comes_up_in_a_lane(run: Run, named: list[tuple[Any, ...]]) -> None:
    done = run("testbed", "up", "--name", "red", "--engine", "slurm", "--engine-endpoints", "gpu4")
    assert done.code == 0
    words = ("-o", "table", "--isolation", "open", "--engine", "slurm")
    assert named == [("up", "red", "paper.yaml", *words, "--engine-endpoints", "gpu4", True)]
    assert RED.url in done.err


@pytest.mark.parametrize(
    ("words", "inside"),
    [
        (("status",), ("status", "-o", "table")),
        (("lose", "gpu3", "-o", "json"), ("lose", "gpu3", "-o", "json")),
        (("repair", "gpu3"), ("repair", "gpu3", "-o", "table")),
    ],
)
def test_other_verbs_run_in_the_lane(
    run: Run, named: list[tuple[Any, ...]], words: tuple[str, ...], inside: tuple[str, ...]
) -> None:
    assert run("testbed", *words, "--name", "red").code == 3
    assert named == [("run", "red", "testbed", *inside)]


def test_a_lane_that_does_not_exist_is_said(run: Run, named: list[tuple[Any, ...]]) -> None:
    done = run("testbed", "status", "--name", "blue", "-o", "json")
    assert (done.code, done.error["code"]) == (5, "not_found")


def test_a_rack_with_a_name_has_no_folder_of_its_own(
    run: Run, named: list[tuple[Any, ...]]
) -> None:
    assert run("testbed", "status", "--name", "red", "--run-dir", "/run/x").code == 2
    assert named == []


def test_down_with_a_name_ends_the_lane(run: Run, named: list[tuple[Any, ...]]) -> None:
    done = run("testbed", "down", "--name", "red", "-o", "json")
    assert done.document == {"name": "red", "state": "down"}
    assert named == [("end", "red")]


def test_racks_with_names_are_listed(run: Run, named: list[tuple[Any, ...]]) -> None:
    (item,) = run("testbed", "list", "-o", "json").document["items"]
    assert item == dataclasses.asdict(RED)
    assert run("testbed", "list", "-o", "name").out == "red\n"
    assert RED.url in run("testbed", "list").out
