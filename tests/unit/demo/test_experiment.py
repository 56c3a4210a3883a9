"""Tests a complete run with in-memory stand-ins for the rack and the controller."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sitefile import load_site
from testbed import rack
from testbed.demo import PAPER_SITE, DemoError, calibrate, experiment, run
from testbed.demo.api import Controller
from testbed.rack import RackStatus
from tests.unit.demo.fake import FakeController

SITE = load_site(PAPER_SITE)
UP = RackStatus(
    "up",
    "/run/x",
    site="paper",
    site_file=str(PAPER_SITE),
    url="http://127.0.0.1:8470",
    image="ll-trainer:1",
    access_bps=250e6,
    inter_aggregator_bps=114e6,
)


@dataclass
class FakeRack:
    found: RackStatus
    said: list[str] = field(default_factory=list)
    rates: list[tuple[float, float]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


@pytest.fixture
def fake() -> FakeController:
    made = FakeController(dict(SITE.homes))
    made.scattered_step_s = 2.0
    return made


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: FakeController) -> FakeRack:
    made = FakeRack(UP)

    def up(
        site: Path, run_dir: Path, *, progress: Callable[[str], None], slurm: None
    ) -> RackStatus:
        made.calls.append(f"up {site.name}")
        return UP

    def set_rates(run_dir: Path, access_bps: float, inter_bps: float) -> None:
        made.rates.append((access_bps, inter_bps))

    monkeypatch.setattr(experiment.preflight, "need_root", lambda: None)
    monkeypatch.setattr(rack, "status", lambda run_dir: made.found)
    monkeypatch.setattr(rack, "up", up)
    monkeypatch.setattr(rack, "down", lambda run_dir, progress: made.calls.append("down"))
    monkeypatch.setattr(rack, "set_rates", set_rates)
    monkeypatch.setattr(calibrate, "FILE", tmp_path / "rates.json")
    monkeypatch.setattr(experiment, "Controller", lambda url: Controller(url, fake.transport()))
    return made


def test_a_rack_that_is_up_is_left_as_it_was(
    machine: FakeRack, fake: FakeController, tmp_path: Path
) -> None:
    result = run("a", out_dir=tmp_path / "new" / "out", progress=machine.said.append)
    assert list(result["arms"]) == ["fragmented", "reordered", "regrouped", "live"]
    assert machine.calls == []
    # A ring's step on unshaped links (0.25 s) determines both rates; then the old rates return.
    access = 8 * 4_088_680 / (0.725 * 0.25)
    assert machine.rates == [
        (experiment.UNSHAPED_BPS, experiment.UNSHAPED_BPS),
        (pytest.approx(access, abs=1), pytest.approx(access / 2.2, abs=1)),
        (250e6, 114e6),
    ]
    assert result["rates"]["access_bps"] == pytest.approx(access, abs=1)
    assert result["emulated"] == ["endpoint/gpu0"]
    assert fake.homes == SITE.homes
    assert {job["state"] for job in fake.jobs.values()} <= {"completed", "cancelled"}
    samples = {job["command"][4] for job in fake.submitted if job["name"].startswith("red")}
    assert len(samples) == 1
    assert (tmp_path / "new" / "out" / "demo-a.json").exists()


def test_a_rack_that_is_down_is_brought_up_and_taken_down(
    machine: FakeRack, fake: FakeController, tmp_path: Path
) -> None:
    machine.found = replace(UP, state="down")
    run("b", arms=["regrouped"], out_dir=tmp_path, progress=machine.said.append)
    assert machine.calls == ["up paper.yaml", "down"]


def test_both_cases_run_at_one_set_of_rates(machine: FakeRack, tmp_path: Path) -> None:
    for case in ("b", "a"):
        run(case, arms=["regrouped"], out_dir=tmp_path, progress=machine.said.append)
    first, second = machine.rates[1], machine.rates[3]
    assert first == second
    assert sum("one rank alone" in line for line in machine.said) == 1


def test_an_interrupt_cancels_jobs_and_takes_the_own_rack_down(
    machine: FakeRack, fake: FakeController, tmp_path: Path
) -> None:
    machine.found = replace(UP, state="down")

    def interrupt(line: str) -> None:
        if "step 1 of" in line:
            fake.jobs[fake.submitted[-1]["name"]]["state"] = "running"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("a", out_dir=tmp_path, progress=interrupt)
    assert machine.calls == ["up paper.yaml", "down"]
    assert [job["state"] for job in fake.jobs.values()][-2:] == ["cancelled", "cancelled"]
    assert machine.rates[2:] == []  # unshaped links, then those of the rule


@pytest.mark.parametrize(
    ("state", "hint"), [("remains", "testbed down"), ("degraded", "testbed down")]
)
def test_a_broken_rack_is_refused(machine: FakeRack, tmp_path: Path, state: str, hint: str) -> None:
    machine.found = replace(UP, state=state)  # type: ignore[arg-type]
    with pytest.raises(DemoError, match=state) as caught:
        run("a", out_dir=tmp_path, progress=machine.said.append)
    assert (caught.value.code, hint in caught.value.hint) == ("conflict", True)


def test_the_rack_of_another_site_is_refused(machine: FakeRack, tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="another site file") as caught:
        run("a", out_dir=tmp_path, site_path=tmp_path / "x.yaml", progress=machine.said.append)
    assert caught.value.code == "conflict"


def test_a_rack_in_use_is_refused(machine: FakeRack, fake: FakeController, tmp_path: Path) -> None:
    fake.jobs["green"] = {"name": "green", "state": "running", "count": 1}
    with pytest.raises(DemoError, match="in use by green") as caught:
        run("a", out_dir=tmp_path, progress=machine.said.append)
    assert caught.value.object == "job/green"
    assert fake.jobs["green"]["state"] == "running"


def test_a_folder_that_cannot_be_created_is_refused(machine: FakeRack, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DemoError, match="cannot be created") as caught:
        run("a", out_dir=tmp_path / "file" / "out", progress=machine.said.append)
    assert caught.value.code == "invalid"


def test_missing_last_lines_of_followed_output_are_read_again(
    fake: FakeController, machine: FakeRack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output is followed until the job ends, which may be before all output has arrived."""
    logs = Controller.logs

    def cut_short(
        self: Controller,
        job: str,
        *,
        follow: bool,
        rank: int | None = None,
        tail: int | None = None,
    ) -> list[tuple[int, str]]:
        lines = list(logs(self, job, follow=follow, rank=rank, tail=tail))
        return [line for line in lines if '"end"' not in line[1]] if follow else lines

    monkeypatch.setattr(Controller, "logs", cut_short)
    result = run("a", arms=["fragmented"], out_dir=tmp_path, progress=lambda _: None)
    assert set(result["arms"]) == {"fragmented"}
