"""``plan``, ``apply``, ``defrag`` and ``top``."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from console.cli.show import output
from console.cli.show.plans import print_plan, proof
from console.cli.verbs.light import plans
from console.cli.verbs.standalone import plan_file
from controller.schema.plans import PlanRequest, PlanView, RolloutRequest, RolloutView
from tests.parts.api.desks import answer, kept
from tests.parts.api.rollouts import roll_out
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run

STATE = """
site:
  aggregators: [{name: as0, ports: {ocs0: 4}}, {name: as1, ports: {ocs0: 4}}]
  endpoints: [{name: g0, ocs: ocs0}, {name: g1, ocs: ocs0}, {name: g2, ocs: ocs0}]
homes: {g0: as0, g1: as1, g2: as1}
jobs: [{name: red, endpoints: [g0, g1]}]
"""
OFFLINE_KEYS = {
    "moves",
    "homes_after",
    "excess_span_before",
    "excess_span_after",
    "running_moves",
    "jobs_paused",
    "paused_gpus",
    "pause_gpu_seconds",
    "bound",
    "optimal",
    "solver_seconds",
}


class Terminal:
    """A stdin that is a terminal and answers one question."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self, *_: int) -> str:
        return self._answer + "\n"

    def read(self, *_: int) -> str:
        return self._answer


def test_plan_as_text(run: Run) -> None:
    ran = run("plan")
    assert ran.code == 0
    for words in (
        "for site paper at epoch 2",
        "gpu2 as1 as0",
        "excess span 1 -> 0",
        "ocs0 1.1.3 - 2.1.3 (gpu2 at as0/3)",
        "0.095 s predicted",
        "4.39 times as fast",
    ):
        assert words in " ".join(ran.out.split())


def test_plan_passes_its_limits_on(run: Run, rack: Rack) -> None:
    asked = kept(rack.desks.plans, "make_plan")
    run(
        *("plan", "--job", "job/red", "--max-jobs-paused", "1", "--max-moves", "2"),
        *("--objective", "moves", "--time-limit", "3"),
    )
    request = asked[0].args[0]
    assert (request.job, request.max_jobs_paused, request.max_moves) == ("red", 1, 2)
    assert (request.objective, request.time_limit_s) == ("moves", 3.0)


def test_plan_document_has_the_contract(run: Run) -> None:
    document = run("plan", "-o", "json").document
    assert set(document) > OFFLINE_KEYS
    assert document["moves"][0] == {"endpoint": "gpu2", "from": "as1", "to": "as0"}


def test_plan_exit_code_is_detailed_on_request_only(run: Run) -> None:
    assert run("plan").code == 0
    assert run("plan", "--detailed-exitcode").code == 3
    assert run("plan", "--job", "blue").code == 5


def test_nothing_to_gain(run: Run, tmp_path: Path) -> None:
    assert run("defrag", "--yes").code == 0
    ran = run("plan", "--detailed-exitcode")
    assert ran.code == 0
    assert "Nothing to gain" in ran.out
    assert run("plan", "-o", "json").document["moves"] == []
    ran = run("defrag", "--yes", "-o", "json")
    assert ran.code == 0
    assert ran.document["transaction"] is None
    file = tmp_path / "p.json"
    assert run("plan", "--out", str(file)).code == 0
    ran = run("apply", str(file), "-o", "json")
    assert ran.code == 0
    assert ran.document is None
    assert "nothing to do" in ran.err


def test_save_and_apply(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    assert run("plan", "--out", str(file)).code == 0
    assert json.loads(file.read_text())["id"]
    ran = run("apply", str(file), "--wait", "-o", "json")
    assert ran.code == 0
    assert ran.document["state"] == "committed"
    assert "t2 running: " in ran.err


def test_apply_does_not_wait_unasked(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(run("plan", "-o", "json").out)
    ran = run("apply", str(file))
    assert ran.code == 0
    assert ran.out.startswith("transaction/t2 running: ")


def test_apply_of_a_stale_plan_names_both_epochs(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    assert run("cancel", "red").code == 0
    ran = run("apply", str(file), "-o", "json")
    assert ran.code == 6
    assert ran.error["code"] == "conflict"
    assert "epoch 2, now 3" in ran.error["message"]


def ends(rack: Rack, **changes: object) -> None:
    """Let every transaction be shown so."""
    view = rack.desks.plans.transaction("t1")
    answer(rack.desks.plans, transaction=view.model_copy(update=changes))


def test_apply_that_is_rolled_back_fails(run: Run, rack: Rack, tmp_path: Path) -> None:
    ends(rack, state="rolled_back", result="no light on as0/3")
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    ran = run("apply", str(file), "--wait", "-o", "json")
    assert ran.code == 1
    assert ran.document["state"] == "rolled_back"
    assert "no light on as0/3" in ran.error["message"]


def test_apply_can_time_out(run: Run, rack: Rack, tmp_path: Path) -> None:
    ends(rack, state="running", phase="switch", finished_at=None)
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    assert run("apply", str(file), "--wait", "--timeout", "0.1").code == 124


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"moves": 3}', '{"moves": []}'])
def test_files_that_are_no_plan(run: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "p.json"
    file.write_text(content)
    assert run("apply", str(file)).code == 2
    assert run("apply", str(tmp_path / "absent")).code == 2


def test_a_plan_that_was_tampered_with(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    plan = run("plan", "-o", "json").document
    plan["moves"][0]["endpoint"] = 7
    file.write_text(json.dumps(plan))
    ran = run("apply", str(file))
    assert ran.code == 2
    assert "plan.moves.0.endpoint" in ran.err


def test_defrag_needs_a_yes(run: Run, rack: Rack) -> None:
    asked = kept(rack.desks.plans, "make_plan")
    ran = run("defrag")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert asked == []
    ran = run("defrag", "--yes", "-o", "json")
    assert ran.code == 0
    assert set(ran.document) == {"plan", "transaction"}
    assert ran.document["transaction"]["state"] == "committed"
    assert rack.see.homes()["gpu2"] == "as0"


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked(
    run: Run, rack: Rack, monkeypatch: pytest.MonkeyPatch, answer: str, code: int
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ran = run("defrag")
    assert ran.code == code
    assert "Move 3 endpoint(s), stalling red meanwhile?" in ran.err
    assert (rack.see.homes()["gpu2"] == "as0") is (code == 0)


def test_apply_asks_at_a_terminal_unless_yes(
    run: Run, rack: Rack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    monkeypatch.setattr("sys.stdin", Terminal("n"))
    assert run("apply", str(file)).code == 1
    assert rack.see.homes()["gpu2"] == "as1"
    assert run("apply", str(file), "--yes", "--wait").code == 0
    assert rack.see.homes()["gpu2"] == "as0"


@pytest.fixture
def state(tmp_path: Path) -> str:
    file = tmp_path / "state.yaml"
    file.write_text(STATE)
    return str(file)


def test_plan_offline(offline: Run, state: str) -> None:
    document: Any = offline("plan", "--state", state, "-o", "json").document
    assert set(document) == OFFLINE_KEYS
    assert set(document["bound"]) == {"excess_span", "running_moves", "paused_gpus"}
    assert (document["excess_span_before"], document["excess_span_after"]) == (1, 0)
    assert set(document["moves"][0]) == {"endpoint", "from", "to"}
    assert document["optimal"] is True


def test_plan_offline_as_text_and_with_limits(offline: Run, state: str) -> None:
    assert "excess span   1 -> 0" in offline("plan", "--state", state).out
    assert offline("plan", "--state", state, "--detailed-exitcode").code == 3
    ran = offline("plan", "--state", state, "--max-moves", "0", "--detailed-exitcode")
    assert ran.code == 0
    assert "within these limits: excess span remains 1" in ran.out


SWAP = """
site:
  aggregators: [{name: as0, ports: {ocs0: 2}}, {name: as1, ports: {ocs0: 2}}]
  endpoints: [{name: g0, ocs: ocs0}, {name: g1, ocs: ocs0}, {name: g2, ocs: ocs0},
              {name: g3, ocs: ocs0}]
homes: {g0: as0, g1: as1, g2: as0, g3: as1}
jobs: [{name: red, endpoints: [g0, g1]}, {name: blue, endpoints: [g2, g3]}]
"""


def test_plan_offline_in_batches(offline: Run, state: str, tmp_path: Path) -> None:
    document: Any = offline("plan", "--state", state, "--max-dark", "1", "-o", "json").document
    assert set(document) == OFFLINE_KEYS | {"batches", "order"}
    assert document["order"] == [["g1"]]
    assert document["batches"] == {
        "max_dark": 1,
        "max_pauses": 1,
        "park": False,
        "batches": 1,
        "least": 1,
        "largest": 1,
        "pauses": {"red": 1},
        "refused": "",
    }
    shown = offline("plan", "--state", state, "--max-dark", "1").out
    words = "1, at most 1 endpoint dark at once; no order has fewer; each job is paused once"
    assert words in shown
    assert "batches" not in offline("plan", "--state", state).out
    swap = tmp_path / "swap.yaml"
    swap.write_text(SWAP)
    assert len(offline("plan", "--state", str(swap), "-o", "json").document["moves"]) == 2
    ran = offline("plan", "--state", str(swap), "--max-dark", "1", "-o", "json")
    assert ran.code == 2
    assert ran.error["object"] == "--max-dark"
    assert ran.error["hint"].startswith("give --max-dark 2")
    assert offline("plan", "--state", str(swap), "--max-dark", "2").code == 0
    assert offline("plan", "--state", state, "--max-dark", "0").code == 2
    assert "--max-dark" in offline("plan", "--state", state, "--park").err


def test_a_knot_is_cut_by_a_second_pause(offline: Run, tmp_path: Path) -> None:
    """With a third aggregator one of the two makes way, and the plan says who is paused twice."""
    swap = tmp_path / "swap.yaml"
    swap.write_text(SWAP.replace("{name: as1,", "{name: as2, ports: {ocs0: 1}}, {name: as1,"))
    limits = ("--max-dark", "1", "--max-pauses", "2")
    made: Any = offline("plan", "--state", str(swap), *limits, "-o", "json").document
    assert sorted(made["batches"]["pauses"].values()) == [1, 2]
    shown = offline("plan", "--state", str(swap), *limits).out
    assert "paused more than once: " in shown


def test_limits_of_batches_reach_the_controller(run: Run, rack: Rack) -> None:
    plans = kept(rack.desks.plans, "make_plan")
    run("plan", "--max-dark", "3", "--max-pauses", "2", "--park")
    asked = plans[-1].args[0]
    assert (asked.max_dark, asked.max_pauses, asked.park) == (3, 2, True)
    run("plan", "--no-park")
    assert plans[-1].args[0].park is False


def test_apply_in_batches(run: Run, rack: Rack, tmp_path: Path) -> None:
    roll_out(rack.desks, "committed")
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    ran = run("apply", str(file), "--max-dark", "1")
    assert (ran.code, ran.out) == (0, "rollout/o1 running: 0 of 2 batches done\n")
    ran = run("apply", str(file), "--max-dark", "1", "--wait")
    assert ran.out == (
        "rollout/o1 committed: 2 of 2 batches in 0.80 s; every batch has committed\n"
    )
    assert "o1 batch 1 of 2: t1" in ran.err
    assert run("get", "rollouts", "-o", "json").document["items"][0]["done"] == 2
    assert "o1" in run("get", "rollouts", "-o", "wide").out
    assert run("describe", "rollout", "o1", "-o", "json").document["transactions"] == ["t1", "t2"]
    assert run("abort", "rollout/o1").out.startswith("rollout/o1 committed")
    assert [view.id for view in rack.desks.plans.transactions()] == ["t1"]


def test_a_rollout_that_stops_fails(run: Run, rack: Rack, tmp_path: Path) -> None:
    roll_out(rack.desks, "rolled_back")
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    ran = run("apply", str(file), "--max-dark", "1", "--wait", "-o", "json")
    assert (ran.code, ran.document["state"]) == (1, "stopped")
    assert ran.error["message"] == "rollout o1 stopped: transaction t2 ended rolled_back"
    assert ran.error["hint"] == "what is done stays; make a new plan for the rest"


def test_a_rollout_can_outlast_the_cli(run: Run, rack: Rack, tmp_path: Path) -> None:
    roll_out(rack.desks, "running")
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    ran = run("apply", str(file), "--max-dark", "1", "--wait", "--timeout", "0.1")
    assert ran.code == 124
    assert "lightloom abort o1" in ran.err


def test_the_text_says_how_far_a_plan_is_from_the_least() -> None:
    made = {
        "excess_span_after": 1,
        "paused_gpus": 110,
        "running_moves": 40,
        "bound": {"excess_span": 0.0, "paused_gpus": 100.0, "running_moves": 40.0},
        "optimal": False,
        "solver_seconds": 1.0,
    }
    assert proof(made) == (
        "excess span 1, at least 0; paused GPUs within 10 % of the least; "
        "running moves at the least (1.00 s)"
    )


def test_plan_offline_cannot_be_applied(offline: Run, state: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    assert offline("plan", "--state", state, "--out", str(file)).code == 0
    ran = offline("apply", str(file))
    assert ran.code == 2
    assert "state file" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("--job", "blue"), 5, "red"),
        (("--objective", "luck"), 2, "luck"),
        (("--max-moves", "-1"), 2, "max-moves"),
    ],
)
def test_plan_offline_refusals(
    offline: Run, state: str, arguments: tuple[str, ...], code: int, word: str
) -> None:
    ran = offline("plan", "--state", state, *arguments)
    assert ran.code == code
    assert word in ran.err


def test_state_files_that_cannot_be_used(offline: Run, tmp_path: Path) -> None:
    assert offline("plan", "--state", str(tmp_path / "absent"), "-o", "json").code == 2
    bad = tmp_path / "bad.yaml"
    bad.write_text(STATE.replace("g1: as1", "g1: as7"))
    ran = offline("plan", "--state", str(bad), "-o", "json")
    assert ran.code == 2
    assert "as7" in ran.error["message"]
    assert str(bad) in ran.error["message"]


def test_top(run: Run, busy: Rack) -> None:
    ran = run("top")
    assert ran.out.splitlines()[0].split() == [
        "NAME",
        "STATE",
        "RX",
        "TX",
        "UTIL",
        "SPREAD",
        "EXCESS",
    ]
    assert "100 Mbit/s" in ran.out
    assert "excess span 1" in ran.err
    for what in ("jobs", "containers", "endpoints"):
        document = run("top", what, "-o", "json").document
        assert document[what]
        assert run("top", what, "-o", "wide").code == 0
    ran = run("top", "-w", "--count", "1", "-o", "json")
    assert len(ran.out.splitlines()) == 1
    head, row = run("top", "containers", "-w", "--count", "1").out.splitlines()
    assert head.split()[-1] == "HISTORY"
    assert row.split()[-1] == "█"


def test_top_has_a_column_for_what_some_gpu_tells(run: Run, busy: Rack) -> None:
    head, row = run("top", "containers").out.splitlines()
    assert head.split()[-2:] == ["TEMP", "POWER"]
    assert row.split()[-4:] == ["61", "°C", "350", "W"]
    assert "TEMP" not in run("top", "endpoints").out
    (container,) = run("top", "containers", "-o", "json").document["containers"]
    assert (container["source"], container["temperature_c"]) == ("nvml", 61.0)


def test_plan_text_says_what_it_is_worth_and_who_is_left_alone(
    run: Run, rack: Rack, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run("plan", "-o", "json").document
    document["worth"] = {"verdict": "open", "reason": "gain 0 to 900 GPU seconds for 3 of pauses"}
    document["budgets"] = [
        {"job": "red", "policy": "live", "tolerance_s": 4.0, "dark_s": 0.045, "verdict": "ok"}
    ]
    document["left_alone"] = [{"job": "blue", "reason": "it is pinned by its owner"}]
    document["makes_room_for"] = "green"
    document["predicted_gain"][0] |= {
        "step_speedup_low": 1.0,
        "step_speedup_high": 2.5,
        "remaining_s": 2000.0,
        "saved_high_s": 1200.0,
    }
    print_plan(document)
    shown = " ".join(capsys.readouterr().out.split())
    for words in (
        "worth it open: gain 0 to 900 GPU seconds for 3 of pauses",
        "tolerance red dark 0.045 s, tolerates 4 s (live)",
        "left alone blue it is pinned by its owner",
        "makes room for job green",
        "a step 1.00 to 2.50 times as fast, saves at most 1200 s if it runs for another 2000 s",
    ):
        assert words in shown
    print_plan({**document, "moves": []})
    assert "left alone blue" in capsys.readouterr().out


def test_force_is_passed_on(run: Run, rack: Rack) -> None:
    asked = kept(rack.desks.plans, "make_plan")
    run("plan", "--force")
    run("defrag", "--yes")
    assert [call.args[0].force for call in asked] == [True, False]


class Slow:
    """A planner that has no answer until the command has reported twice."""

    def __init__(self, rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reports: list[str] = []
        self._enough = threading.Event()
        self._say = output.message
        self._make, self._roll_out = rack.desks.plans.make_plan, rack.desks.rollouts.begin
        monkeypatch.setattr(plans, "SLOW_S", 0.0)
        monkeypatch.setattr(plans, "REPORT_EVERY_S", 0.01)
        monkeypatch.setattr(output, "message", self.say)
        answer(rack.desks.plans, make_plan=self.make_plan)
        answer(rack.desks.rollouts, begin=self.roll_out)

    def say(self, message: str) -> None:
        self._say(message)
        self.reports.append(message)
        if len([one for one in self.reports if "so far" in one]) == 2:
            self._enough.set()

    async def make_plan(self, request: PlanRequest) -> PlanView:
        await self._reported()
        return await self._make(request)

    async def roll_out(self, request: RolloutRequest) -> RolloutView:
        await self._reported()
        return await self._roll_out(request)

    async def _reported(self) -> None:
        if not await asyncio.to_thread(self._enough.wait, 60):
            raise AssertionError(f"no progress was reported: {self.reports}")


@pytest.mark.parametrize("command", [("plan",), ("defrag", "--yes")])
def test_a_plan_that_takes_long_shows_progress(
    run: Run, rack: Rack, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    slow = Slow(rack, monkeypatch)
    ran = run(*command, "--time-limit", "7", "-o", "json")
    assert ran.code == 0
    assert ran.document
    assert slow.reports[:3] == [
        "computing a plan: the search takes 7 s at most (--time-limit)",
        "computing a plan: 0 s so far",
        "computing a plan: 0 s so far",
    ]
    assert slow.reports[0] in ran.err


def test_batches_that_take_long_show_progress(
    run: Run, rack: Rack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    roll_out(rack.desks, "committed")
    saved = tmp_path / "plan.json"
    assert run("plan", "--out", str(saved)).code == 0
    slow = Slow(rack, monkeypatch)
    assert run("apply", str(saved), "--max-dark", "2").code == 0
    assert slow.reports[0].startswith("computing the batches: ")
    assert slow.reports[1:3] == ["computing the batches: 0 s so far"] * 2


def test_a_plan_that_takes_no_time_shows_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "SLOW_S", 3600.0)
    assert "computing" not in run("plan").err


def test_a_plan_of_a_file_shows_progress_too(
    offline: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, begun = tmp_path / "state.yaml", threading.Event()
    file.write_text(STATE, encoding="utf-8")
    say, plan_state = output.message, plan_file.plan_state

    def said(message: str) -> None:
        say(message)
        begun.set()

    def slow(path: Path, request: dict[str, Any]) -> dict[str, Any]:
        assert begun.wait(60), "no progress was reported"
        return plan_state(path, request)

    monkeypatch.setattr(plans, "SLOW_S", 0.0)
    monkeypatch.setattr(output, "message", said)
    monkeypatch.setattr(plan_file, "plan_state", slow)
    ran = offline("plan", "--state", str(file))
    assert ran.code == 0
    assert "computing a plan: " in ran.err
