"""``checkpoints``, ``recoveries``, ``drain`` and what ``submit``, ``describe``, ``advise`` say."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from console.cli.show.recovery import lines, phases, steps
from controller.base.errors import ServiceError
from controller.schema.checkpoints import (
    CheckpointsView,
    DrainView,
    RecoveriesView,
    RecoveryView,
    VerificationView,
)
from controller.schema.submit.request import CheckpointRequest, JobRequest, LocalCheckpoints
from tests.parts.api.desks import answer, kept, restore, show
from tests.parts.api.survival import (
    INTERVAL,
    OF_SITE,
    RECOVERIES,
    RECOVERY,
    checkpoints_view,
    verified,
)
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run

KEPT = asdict(CheckpointRequest(local=LocalCheckpoints(size_bytes=3 * 2**30)))
HEADS = ["STEP", "RUN", "STATE", "PARTS", "BYTES", "WRITTEN", "PROTECTED", "PERSISTENT", "REASON"]


ENDS = ["gpu0", "gpu2", "gpu1", "gpu3"]


@pytest.fixture(autouse=True)
def known(rack: Rack) -> None:
    """What is known of red's checkpoints and of what it has lost."""

    async def verify(_: str, step: int | None) -> VerificationView:
        return verified(step)

    desk = rack.desks.checkpoints
    answer(desk, checkpoints=checkpoints_view(ENDS), checkpoint_advice=INTERVAL)
    answer(desk, verify_checkpoints=verify)
    answer(rack.desks.recoveries, of_job=RECOVERIES, of_site=OF_SITE)


def draining(rack: Rack, about: str, jobs: dict[str, str]) -> DrainView:
    """Let something drain, for which jobs wait."""
    state = "draining" if jobs else "drained"
    view = DrainView.model_validate({"object": about, "state": state, "since": 1.0, "jobs": jobs})
    answer(rack.desks.drains, drain=view, views=[view])
    return view


def test_checkpoints_mark_the_step_that_would_be_loaded(run: Run) -> None:
    ran = run("checkpoints", "red")
    assert ran.code == 0, ran.err
    head, *steps = ran.out.split("\n\n")[0].splitlines()
    assert head.split() == HEADS
    assert [line.split()[0] for line in steps] == ["400*", "300", "200"]
    assert [line.split()[2] for line in steps] == ["written", "protected", "persistent"]
    assert "gpu4 waits for job beta-blue" in steps[0]
    assert "after 2 s" in steps[1]
    assert "protected: copies or parities are apart" in ran.out
    assert "a restart loads step 400 (*)" in ran.out
    assert "no answer from s1" in ran.out
    assert "not a step by rule rename: rank 0: 'notes.txt'" in ran.out
    assert "rule rename takes step-N or step-N.EXT" in ran.out


def test_show_is_the_same_and_a_job_may_be_called_as_a_verb(run: Run, rack: Rack) -> None:
    assert run("checkpoints", "show", "red").code == 0
    assert run("submit", "-n", "1", "--name", "verify").code == 0
    assert "a restart loads" in run("checkpoints", "job/verify").out


def test_checkpoints_wide_has_every_part(run: Run) -> None:
    ran = run("checkpoints", "red", "-o", "wide")
    parts = ran.out.split("\n\n")[1].splitlines()
    assert parts[0].split()[:5] == ["STEP", "RANK", "ENDPOINT", "BYTES", "HELD-BY"]
    assert parts[5].split()[:3] == ["300", "0", "gpu0"]
    assert "gpu0,gpu2" in parts[5]
    assert run("checkpoints", "red", "-o", "json").document["restore_step"] == 400


def test_a_watch_prints_changes_only(run: Run) -> None:
    ran = run("checkpoints", "red", "-w", "--count", "3", "--interval", "0.1", "-o", "json")
    assert len(ran.out.splitlines()) == 1


def test_a_job_without_checkpoints_is_said_with_the_remedy(run: Run, rack: Rack) -> None:
    refusal = ServiceError(
        "conflict", "job red keeps no checkpoints", object="job/red", hint="--checkpoint-size"
    )
    answer(rack.desks.checkpoints, checkpoints=refusal)
    ran = run("checkpoints", "red", "-o", "json")
    assert (ran.code, ran.error["code"], ran.error["hint"]) == (6, "conflict", "--checkpoint-size")


def test_verify_names_what_is_damaged_and_fails(run: Run, rack: Rack) -> None:
    asked = kept(rack.desks.checkpoints, "verify_checkpoints")
    ran = run("checkpoints", "verify", "red")
    assert ran.code == 1
    assert "model.pt: crc32c" in ran.out
    assert "1 part of job red damaged" in ran.err
    one = run("checkpoints", "verify", "red", "--step", "200")
    assert one.code == 1  # a server did not answer
    assert "s1 did not answer" in one.err
    assert [(*call.args, *call.named.values()) for call in asked] == [("red", None), ("red", 200)]


def test_advise_says_the_interval(run: Run, rack: Rack) -> None:
    assert run("checkpoints", "advise", "red").out.splitlines()[0] == (
        "job red: write a checkpoint every 90 s (45 steps), now every 200 s"
    )
    assert "every 90 s" not in run("advise", "red").out  # it keeps none
    show(rack.desks.jobs, "red", checkpoint=KEPT)
    assert "job red: write a checkpoint every 90 s" in run("advise", "red").out
    assert run("advise", "-o", "json").document["checkpoints"][0]["interval_s"] == 90.0


def test_drop_asks_and_refuses_the_newest(run: Run, rack: Rack) -> None:
    async def drop(job: str, step: int, *, force: bool) -> CheckpointsView:
        if not force:
            raise ServiceError("conflict", f"step {step} is the newest complete one of job {job}")
        return checkpoints_view(ENDS, without=[step])

    answer(rack.desks.checkpoints, drop_checkpoint=drop)
    asked = kept(rack.desks.checkpoints, "drop_checkpoint")
    assert run("checkpoints", "drop", "red", "200").code == 2  # no terminal to confirm on
    assert asked == []
    assert run("checkpoints", "drop", "red", "300", "--yes").code == 6
    ran = run("checkpoints", "drop", "red", "300", "--yes", "--force")
    assert ran.code == 0
    assert "a restart would load step 400" in ran.out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"cause": "drain", "objects": ["server/srv1"], "how": "queue", "swaps": {}},
            "server/srv1 drained: back to the queue",
        ),
        (
            {"cause": "program", "how": "again", "swaps": {}},
            "a rank on endpoint/gpu3 failed: started again on the same endpoints",
        ),
        ({"cause": "server", "objects": ["server/srv1"]}, "server/srv1 lost: spare gpu5 for gpu3"),
    ],
)
def test_only_what_is_lost_is_called_lost(
    run: Run,
    rack: Rack,
    change: dict[str, Any],
    said: str,
) -> None:
    found = [RECOVERY.model_copy(update=change)]
    view = RecoveriesView(job="red", ettr=None, gpu_hours_lost={}, recoveries=found)
    answer(rack.desks.recoveries, of_job=view)
    (line,) = [line for line in run("recoveries", "red").out.splitlines() if line.startswith("1. ")]
    assert line.endswith(said)


def test_recoveries_of_a_job_are_bars(run: Run) -> None:
    ran = run("recoveries", "red")
    assert ran.code == 0, ran.err
    assert "endpoint/gpu3 lost: spare gpu5 for gpu3" in ran.out
    drawn = [line for line in ran.out.splitlines() if line.endswith(" s") and "█" in line]
    assert [line.split()[0] for line in drawn] == [
        *("detect", "decide", "stop", "light", "fetch", "start")
    ]
    assert "░" in ran.out
    assert "steps 310 → 300, 10 lost, 12.00 s until the first new step, 2.50 s of it" in ran.out
    assert "ETTR 0.930" in ran.out
    late = run("recoveries", "red", "--since", "1h")
    assert "has lost no rank" in late.err
    assert run("recoveries", "red", "-o", "json").document["recoveries"][0]["number"] == 1


def test_recoveries_of_the_site_by_cause(run: Run) -> None:
    ran = run("recoveries", "--since", "2d")
    rows = [line.split() for line in ran.out.split("\n\n")[1].splitlines()]
    assert rows == [
        ["CAUSE", "TIMES", "GPU-HOURS-LOST"],
        ["endpoint", "1", "0.02"],
        ["program", "2", "0.01"],
    ]


@pytest.mark.parametrize("words", [("node", "s0"), ("node/s0",), ("node", "node/s0")])
def test_drain_and_undrain(run: Run, rack: Rack, words: tuple[str, ...]) -> None:
    answer(rack.desks.drains, undrain=draining(rack, "node/s0", {"red": "a protected checkpoint"}))
    ran = run("drain", *words)
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0] == "node/s0 draining"
    assert ran.out.splitlines()[2].split()[0] == "red"
    listed = run("get", "drains", "-o", "wide").out.splitlines()[1]
    assert listed.split()[:2] == ["node/s0", "draining"]
    assert "red: a protected checkpoint" in listed
    assert run("undrain", *words).out == "node/s0 is back in use\n"
    restore(rack.desks.drains, "undrain")
    assert run("undrain", *words).code == 5


def test_drain_waits_until_no_job_uses_it(run: Run, rack: Rack) -> None:
    draining(rack, "switch/ocs0", {"red": "a protected checkpoint"})
    late = run("drain", "switch", "ocs0", "--wait", "--timeout", "0.1")
    assert late.code == 124
    assert "job red waits for a protected checkpoint" in late.err
    draining(rack, "aggregator/as0", {})
    ran = run("drain", "aggregator", "as0", "--now", "--wait")
    assert (ran.code, ran.out) == (0, "aggregator/as0 drained\n")


def test_a_drain_says_what_it_waits_for_when_that_changes(run: Run, rack: Rack) -> None:
    """And not each second, because a second less is left."""
    waits = [f"its next protected checkpoint, for {left} s at most" for left in (30, 29, 28)]
    waits.append("its start elsewhere")
    views = [{"state": "draining", "jobs": {"red": text}} for text in waits]
    views.append({"state": "drained", "jobs": {}})

    drain = draining(rack, "node/s0", {"red": "a protected checkpoint"})
    answer(rack.desks.drains, views=lambda: [drain.model_copy(update=views.pop(0))])
    ran = run("drain", "node", "s0", "--wait")
    assert ran.code == 0
    said = [line for line in ran.err.splitlines() if line.startswith("node/s0: job red waits for")]
    assert [line.partition(" waits for ")[2] for line in said][1:] == [waits[0], waits[-1]]


@pytest.mark.parametrize("words", [("endpoint", "gpu0"), ("node",), ("rack/r1",)])
def test_what_cannot_be_drained(run: Run, words: tuple[str, ...]) -> None:
    assert run("drain", *words).code == 2


def test_submit_has_short_cuts(run: Run, requests: list[JobRequest]) -> None:
    ran = run(
        *("submit", "-n", "2", "--name", "new", "--checkpoint-size", "2GiB", "--spares", "1?"),
        *("--checkpoint", "dcp", "--checkpoint-store", "results:20", "--on-loss", "shrink"),
    )
    assert ran.code == 0, ran.err
    asked = requests[-1]
    assert asked.checkpoint is not None
    assert (asked.checkpoint.complete, asked.checkpoint.local.size_bytes) == ("dcp", 2 * 2**30)
    assert asked.checkpoint.shared is not None
    assert (asked.checkpoint.shared.store, asked.checkpoint.shared.every) == ("results", 20)
    assert (asked.spares, asked.spares_needed, asked.on_loss) == (1, False, "shrink")


def test_short_cuts_override_parts_of_the_file(
    run: Run, requests: list[JobRequest], tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "resources: {gpus: 2}\ncheckpoint: {complete: keras, local: {where: disk, size: 1GiB}}\n"
    )
    assert run("submit", "-f", str(file), "--checkpoint-size", "4GiB").code == 0
    asked = requests[-1].checkpoint
    assert asked is not None
    assert (asked.complete, asked.local.where, asked.local.size_bytes) == (
        "keras",
        "disk",
        4 * 2**30,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--checkpoint", "dcp"),
        ("--checkpoint-size", "much"),
        ("--checkpoint-size", "0"),
        ("--checkpoint-size", "1GiB", "--checkpoint-store", "models:"),
        ("--spares", "one"),
    ],
)
def test_short_cuts_that_are_wrong(
    run: Run, requests: list[JobRequest], words: tuple[str, ...]
) -> None:
    ran = run("submit", "-n", "2", *words, "-o", "json")
    assert ran.code == 2
    assert ran.error["hint"]
    assert not requests


def test_describe_shows_how_checkpoints_are_kept(run: Run, rack: Rack) -> None:
    about = {"checkpoint": KEPT, "spares": ["gpu5"], "spares_asked": 1, "recovery": "light"}
    show(rack.desks.jobs, "red", **about)
    shown = run("describe", "job", "red").out
    assert "3 GiB of memory a rank, 2 steps kept" in shown
    assert "spares asked" in shown
    assert any(line.split() == ["recovery", "light"] for line in shown.splitlines())


def test_a_recovery_that_goes_on_shows_what_is_known() -> None:

    fields = {
        name: None
        for name in RecoveryView.model_fields
        if name.endswith("_s") and name not in ("detect_s", "decide_s", "stop_s")
    }
    going = RECOVERY.model_copy(update={**fields, "finished_at": None, "step_restored": None})
    found = phases(going.model_dump())
    assert [phase.name for phase in found] == ["detect", "decide", "stop"]
    assert found[-1].ends_s == pytest.approx(1.0)
    assert len(lines(going.model_dump())) == 3
    assert steps(going.model_dump()) == "310 → start, 10 lost"
    assert lines({}) == []


def test_fetching_runs_beside_stopping_and_light() -> None:

    by_name = {phase.name: phase for phase in phases(RECOVERY.model_dump())}
    assert by_name["fetch"].begins_s == by_name["stop"].begins_s
    assert by_name["start"].begins_s == by_name["light"].ends_s
    slow = RECOVERY.model_copy(update={"fetch_s": 9.0})
    by_name = {phase.name: phase for phase in phases(slow.model_dump())}
    assert by_name["start"].begins_s == by_name["fetch"].ends_s


def test_what_is_not_known_of_the_program_is_one_phase_up_to_the_first_step() -> None:
    dark = RECOVERY.model_copy(update={"import_s": None, "first_step_s": None})
    last = phases(dark.model_dump())[-1]
    assert (last.name, last.whose) == ("program", "program")
    assert last.ends_s == pytest.approx(RECOVERY.total_s)
    assert "program" in lines(dark.model_dump())[-1] and "░" in lines(dark.model_dump())[-1]
    imported = RECOVERY.model_copy(update={"first_step_s": None})
    found = phases(imported.model_dump())
    assert [phase.name for phase in found[-2:]] == ["import", "first step"]
    assert found[-1].ends_s == pytest.approx(RECOVERY.total_s)
