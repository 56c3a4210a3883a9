"""Ctrl-C at a terminal while a verb waits: what it began goes on, and the user is told so."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from controller.schema.checkpoints import DrainView
from tests.parts.api.desks import answer
from tests.parts.api.rollouts import roll_out
from tests.parts.controller.rack import Rack
from tests.parts.terminal import Program
from tests.unit.console.cli.conftest import Run

CTRL_C = "\x03"


def interrupted(url: str, *arguments: str, at: str) -> str:
    """Run a verb, press Ctrl-C once it has said ``at``; return the lines that follow."""
    program = Program(*arguments, environment={"LIGHTLOOM_URL": url})
    program.until(at)
    program.type(CTRL_C)
    assert program.end() == 130
    assert "Traceback" not in program.said
    return program.said.partition("error (interrupted): ")[2]


def test_a_job_runs_on(url: str) -> None:
    told = interrupted(url, "submit", "-n", "1", "--name", "blue", "--wait", at="job/blue ")
    assert told.startswith("job blue goes on without this command")
    assert "lightloom logs -f blue" in told
    assert "lightloom cancel blue" in told


@pytest.mark.parametrize(
    ("options", "at", "carrier", "ident"),
    [((), "t2 running", "transaction", "t2"), (("--max-dark", "1"), "o1 batch", "rollout", "o1")],
)
def test_a_transaction_and_a_rollout_go_on(
    run: Run,
    url: str,
    rack: Rack,
    tmp_path: Path,
    *,
    options: tuple[str, ...],
    at: str,
    carrier: str,
    ident: str,
) -> None:
    roll_out(rack.desks, "running")
    view = rack.desks.plans.transaction("t1")
    goes_on = {"id": "t2", "state": "running", "phase": "switch", "finished_at": None}
    answer(rack.desks.plans, transaction=view.model_copy(update=goes_on))
    file = tmp_path / "p.json"
    run("plan", "--out", str(file))
    told = interrupted(url, "apply", str(file), "--yes", "--wait", *options, at=at)
    assert told.startswith(f"{carrier} {ident} goes on without this command")
    assert f"lightloom describe {carrier} {ident}" in told
    assert f"lightloom abort {ident}" in told


def test_a_drain_goes_on(url: str, rack: Rack) -> None:
    waits = {"red": "a protected checkpoint"}
    view = DrainView(object="switch/ocs0", state="draining", since=1.0, jobs=waits)
    answer(rack.desks.drains, drain=view, views=[view])
    told = interrupted(url, "drain", "switch", "ocs0", "--wait", at="waits for")
    assert told.startswith("the drain of switch/ocs0 goes on without this command")
    assert "lightloom undrain switch ocs0" in told


def test_a_change_that_was_sent_may_be_carried_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        url = f"http://{host}:{port}"
        program = Program("cancel", "red", environment={"LIGHTLOOM_URL": url})
        taken, _ = silent.accept()
        with taken:
            assert taken.recv(4) == b"POST"
            program.type(CTRL_C)
            assert program.end() == 130
    assert "the request was sent, and may be carried out" in program.said
