"""Verbs for jobs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator

import pytest

from console.cli.show.describe import print_object
from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, EngineFault, LogLine
from controller.schema.submit.request import JobRequest
from tests.parts.api.desks import answer, kept, show
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run, Served

STEPS = tuple(f'{{"step":{n}}}' for n in range(3))


def test_submit_defaults_to_the_image_and_its_command(run: Run, requests: list[JobRequest]) -> None:
    ran = run("submit", "-n", "2", "--name", "blue")
    assert ran.code == 0
    assert ran.out.startswith("job/blue pending")
    assert "lightloom describe job blue" in ran.err
    assert requests[0].command == ()
    assert requests[0].image is None


def test_submit_passes_everything_on(run: Run, requests: list[JobRequest]) -> None:
    ran = run(
        *("submit", "-n", "2", "--name", "blue", "--project", "vision", "--locality", "strict"),
        *("--policy", "live", "--rank-order", "placed", "--image", "img:2", "--model", "M40"),
        *("--endpoints", "gpu[0-1]", "--env", "APP_A=1", "--env", "APP_B=x=y", "-o", "json"),
        *("--dark-tolerance", "2.5"),
        *("--", "python3", "run.py", "-n", "9", "-o", "yaml"),
    )
    assert ran.document["name"] == "blue"
    request = requests[0]
    assert request.endpoints == ["gpu0", "gpu1"]
    assert request.env == {"APP_A": "1", "APP_B": "x=y"}
    assert request.command == ["python3", "run.py", "-n", "9", "-o", "yaml"]
    assert (request.project, request.policy, request.locality) == ("vision", "live", "strict")
    assert (request.rank_order, request.image, request.model) == ("placed", "img:2", "M40")
    assert request.dark_tolerance_s == 2.5


def test_submit_names_secrets_and_what_a_time_limit_does(
    run: Run, requests: list[JobRequest]
) -> None:
    ran = run(
        *(
            "submit",
            "-n",
            "1",
            "--project",
            "vision",
            "--env",
            "APP_A=1",
            "--secret",
            "WANDB_API_KEY=wandb",
        ),
        *("--time-limit", "1h", "--time-limit-action", "end"),
    )
    assert ran.code == 0, ran.err
    request = requests[0]
    assert (request.plain_env, request.secrets) == ({"APP_A": "1"}, {"WANDB_API_KEY": "wandb"})
    assert (request.time_limit_s, request.time_limit_action) == (3600.0, "end")


def test_a_secrets_value_on_the_command_line_is_not_repeated(run: Run) -> None:
    ran = run("submit", "-n", "1", "--secret", "s3cr3t-value")
    assert ran.code == 2
    assert "s3cr3t" not in ran.err


def test_get_secrets_lists_names(run: Run) -> None:
    assert run("get", "secrets").out.split() == ["PROJECT", "NAME", "vision", "wandb"]
    assert run("get", "secrets", "-o", "json").document["items"] == [
        {"project": "vision", "name": "wandb"}
    ]
    assert run("get", "secret", "vision/wandb").code == 0


def test_submit_limits_what_a_container_may_use(run: Run, requests: list[JobRequest]) -> None:
    ran = run(
        *("submit", "-n", "1", "--cpu-limit", "0.5", "--memory-limit", "32GiB"),
        *("--io-limit", "500MB/s", "--", "true"),
    )
    assert ran.code == 0, ran.err
    request = requests[-1]
    assert (request.cpu, request.memory_bytes, request.io_bps) == (0.5, 32 * 2**30, 500_000_000)
    assert run("submit", "-n", "1", "--name", "free", "--", "true").code == 0
    request = requests[-1]
    assert (request.cpu, request.memory_bytes, request.io_bps) == (None, None, None)


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        (("--cpu-limit", "0"), "for example 4 or 0.5"),
        (("--cpu-limit", "nan"), "for example 4 or 0.5"),
        (("--cpu-limit", "many"), "--cpu-limit"),
        (("--memory-limit", "lots"), "for example 32GiB"),
        (("--memory-limit", "0"), "for example 32GiB"),
        (("--memory-limit", "2EiB"), ""),
        (("--io-limit", "-1"), "for example 500MB/s"),
    ],
)
def test_a_limit_that_is_none(
    run: Run, requests: list[JobRequest], option: tuple[str, str], fix: str
) -> None:
    ran = run("submit", "-n", "1", *option, "--", "true")
    assert ran.code == 2
    assert fix in ran.err
    assert not requests


def test_submit_more_than_the_site_has(run: Run) -> None:
    ran = run("submit", "-n", "7")
    assert ran.code == 2
    assert "6" in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit",),
        ("submit", "-n", "many"),
        ("submit", "-n", "0"),
        ("submit", "-n", "1", "--name", "Not A Name"),
        ("submit", "-n", "1", "--env", "NOVALUE"),
        ("submit", "-n", "1", "--env", "A=1", "--secret", "A=wandb"),
        ("submit", "-n", "1", "--secret", "A="),
        ("submit", "-n", "1", "--secret", "A=../x"),
        ("submit", "-n", "1", "--time-limit-action", "stop"),
        ("submit", "-n", "1", "--endpoints", "gpu[3-1]"),
        ("submit", "-n", "1", "--policy", "shoot"),
        ("submit", "-n", "1", "--dark-tolerance", "0"),
        ("submit", "-n", "1", "--dark-tolerance", "soon"),
        ("submit", "-n", "1", "-o", "wide"),
    ],
)
def test_wrong_command_lines(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("error (")


def test_submit_the_same_name_twice(run: Run) -> None:
    assert run("submit", "-n", "1", "--name", "red").code == 6


@pytest.mark.parametrize(("end", "code"), [("completed", 0), ("failed", 1), ("cancelled", 1)])
def test_submit_and_wait(run: Run, served: Served, rack: Rack, *, end: str, code: int) -> None:
    async def finish() -> None:
        await rack.until(lambda: "blue" in rack.see.jobs)
        await rack.state("blue", "running")
        if end == "cancelled":
            await rack.desks.jobs.cancel("blue")
        else:
            rack.engine.exit("blue", 0, code)

    finishing = asyncio.run_coroutine_threadsafe(finish(), served.loop)
    ran = run("submit", "-n", "1", "--name", "blue", "--wait", "-o", "json")
    finishing.result(60)
    assert ran.code == code
    assert ran.document["state"] == end
    if code:
        assert ran.error["object"] == "job/blue"


def test_submit_and_wait_too_long(run: Run) -> None:
    ran = run("submit", "-n", "1", "--name", "blue", "--wait", "--wait-timeout", "0.1")
    assert ran.code == 124


@pytest.mark.parametrize(
    ("verb", "state"), [("cancel", "cancelled"), ("pause", "paused"), ("resume", "running")]
)
def test_job_verbs(run: Run, verb: str, state: str) -> None:
    if verb == "resume":
        assert run("pause", "red").code == 0
    assert run(verb, "red", "-o", "json").code == 0
    assert run("wait", "job/red", "--for", f"state={state}", "--timeout", "20").code == 0
    assert run(verb, "blue").code == 5


def test_a_forbidden_verb(run: Run, rack: Rack) -> None:
    refusal = ServiceError("forbidden", "not your job", object="job/red")
    answer(rack.desks.jobs, cancel=refusal)
    ran = run("cancel", "red", "-o", "json")
    assert ran.code == 4
    assert ran.error == {
        "code": "forbidden",
        "message": "not your job",
        "hint": "",
        "object": "job/red",
    }


def test_logs(run: Run, rack: Rack) -> None:
    asked = kept(rack.engine, "logs")
    rack.engine.output = {("red", rank): STEPS for rank in range(4)}
    assert run("logs", "red", "--rank", "1").out.splitlines() == [
        '{"step":0}',
        '{"step":1}',
        '{"step":2}',
    ]
    ran = run("logs", "red", "-f", "-o", "json")
    assert len([json.loads(line) for line in ran.out.splitlines()]) == 12
    assert asked[-1].args[3]
    rack.engine.output = {("red", rank): () for rank in range(4)}
    ran = run("logs", "red")
    assert (ran.code, ran.out) == (0, "")
    assert "job red has no output so far" in ran.err


def test_logs_since_a_moment_with_a_text_and_their_times(run: Run, rack: Rack) -> None:
    now = time.time()
    nothing = {("red", rank): () for rank in range(1, 4)}
    rack.engine.output = nothing
    rack.engine.printed = {("red", 0): [(now - 3600 * n, f"loss {n}") for n in (3, 1)]}
    assert run("logs", "red", "--since", "2h").out == "[0] loss 1\n"
    assert run("logs", "red", "--search", "loss 3").out == "[0] loss 3\n"
    assert "no such output" in run("logs", "red", "--search", "gain").err
    rack.engine.printed = {("red", 0): [(1.8e9, "x")]}
    ran = run("logs", "red", "--timestamps", "--since", "2027-01-01T00:00:00Z")
    assert ran.out == "2027-01-15T08:00:00.000Z [0] x\n"
    assert run("logs", "red", "--since", "2027-01-16T00:00:00+00:00").out == ""
    ran = run("logs", "red", "--since", "yesterday")
    assert (ran.code, "'yesterday' is not a moment" in ran.err) == (2, True)


def test_output_that_is_missing_is_named_on_stderr(run: Run, rack: Rack) -> None:
    why = "srv1 does not answer"
    rack.engine.lost.add("srv1")
    ran = run("logs", "red", "--rank", "3")
    assert ran.err.splitlines() == [why]
    assert why not in ran.out
    last = json.loads(run("logs", "red", "-o", "json").out.splitlines()[-1])
    assert (last["rank"], last["stream"], last["text"]) == (3, "missing", why)


def test_describe_names_the_first_cause_of_a_failed_job(run: Run, rack: Rack) -> None:
    failure = {
        "rank": 1,
        "endpoint": "gpu2",
        "epoch": 7,
        "exit_code": 3,
        "cause": "rank 1 exited with code 3",
        "others": "lightloom stopped ranks 0, 2",
        "lines": ["Traceback (most recent call last):", "\x1b[2JValueError: no such file"],
    }
    show(rack.desks.jobs, "red", state="failed", failure=failure)
    out = run("describe", "job", "red").out
    assert "rank 1 exited with code 3" in out
    assert "lightloom stopped ranks 0, 2" in out
    assert "last lines of rank 1:\n  Traceback (most recent call last):\n" in out
    assert "\x1b" not in out  # a job's text cannot control a terminal
    shown = run("describe", "job", "red", "-o", "json").document["failure"]
    assert shown["lines"] == failure["lines"]


def test_the_logs_of_an_ended_job_are_those_of_all_ranks(run: Run, rack: Rack) -> None:
    rack.engine.exit("red", 1, 1)
    assert run("wait", "job/red", "--for", "state=failed", "--timeout", "20").code == 0
    lines = run("logs", "red").out.splitlines()
    assert {line.partition(" ")[0] for line in lines} == {"[0]", "[1]", "[2]", "[3]"}


def test_logs_that_break_off(run: Run, rack: Rack) -> None:
    async def broken(*_: object, **__: object) -> AsyncIterator[LogLine]:
        yield LogLine(0, 1.0, "stdout", "one")
        raise EngineError([EngineFault("unavailable", "server/srv0", "agent srv0 is gone")])

    answer(rack.engine, logs=broken)
    ran = run("logs", "red")
    assert ran.code == 1
    assert len(ran.out.splitlines()) == 1
    assert "agent srv0 is gone" in ran.err


def test_logs_of_what_is_not_there(run: Run) -> None:
    assert run("logs", "blue").code == 5
    assert run("logs", "red", "--rank", "4").code == 5


def test_wait_until_it_is_so(run: Run, served: Served, rack: Rack) -> None:
    def finish() -> None:
        for rank in range(4):
            rack.engine.exit("red", rank, 0)

    served.loop.call_soon_threadsafe(served.loop.call_later, 0.2, finish)
    ran = run("wait", "job/red", "--for", "state=completed", "--timeout", "20")
    assert (ran.code, ran.out) == (0, "job/red\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("job/red", "--for", "state=completed", "--timeout", "0"), 124),
        (("job/blue", "--for", "state=completed"), 5),
        (("job/red", "--for", "completed"), 2),
        (("red", "--for", "state=completed"), 2),
        (("job/red", "--for", "colour=red"), 2),
        (("endpoint/gpu0", "--for", "home=as0"), 0),
    ],
)
def test_wait_ends_otherwise(run: Run, arguments: tuple[str, ...], code: int) -> None:
    assert run("wait", *arguments).code == code


def test_wait_for_what_cannot_happen_any_more(run: Run, rack: Rack) -> None:
    show(rack.desks.jobs, "red", state="failed", reason="rank 2 exited with 1")
    ran = run("wait", "job/red", "--for", "state=completed", "-o", "json")
    assert ran.code == 3
    assert ran.error["code"] == "unmet"


def test_submit_passes_on_what_the_queue_decides_by(run: Run, requests: list[JobRequest]) -> None:
    ran = run(
        *("submit", "-n", "2", "--priority", "3", "--project", "vision", "--time-limit", "1h30m"),
        *("--pinned", "--preemptible", "--memory", "12", "--name", "p1", "--", "true"),
    )
    assert ran.code == 0, ran.err
    request = requests[-1]
    assert (request.priority, request.project, request.time_limit_s) == (3, "vision", 5400.0)
    assert (request.pinned, request.preemptible) == (True, True)
    assert request.min_memory_bytes == 12 * 2**30


@pytest.mark.parametrize(
    "option", [("--priority", "101"), ("--time-limit", "soon"), ("--memory", "-1")]
)
def test_bad_queue_options_are_usage_errors(run: Run, option: tuple[str, str]) -> None:
    assert run("submit", "-n", "2", *option, "--", "true").code == 2


def test_a_waiting_job_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    wait = {
        "position": 2,
        "queued": 5,
        "code": "locality",
        "reason": "needs 4 endpoints under 1 aggregator, the best now is 2",
        "remedy": "a regroup moves 1 running endpoint",
        "reserved_at": None,
        "earliest_start": time.time() + 3600,
        "moves_needed": 1,
        "plan": {
            "moves": 3,
            "running_moves": 1,
            "jobs_paused": ["red"],
            "paused_gpus": 2,
            "command": "lightloom plan --job blue",
        },
    }
    job = {"name": "blue", "state": "pending", "wait": wait, "placement": None, "steps": None}
    print_object("job", "blue", job, [])
    shown = capsys.readouterr().out
    assert "wait:" in shown
    assert "placement" not in shown
    assert "1 running endpoint of 3 moved, stalling red: lightloom plan --job blue" in shown
    assert "(in 59m" in shown or "(in 1h00m)" in shown
