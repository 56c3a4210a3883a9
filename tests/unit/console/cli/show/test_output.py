"""Structured output: complete for programs, harmless on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from console.cli.errors import CliError
from console.cli.show import output as out
from console.cli.show.output import OutputFormat
from controller.schema.fabric import EventView
from tests.parts.api.desks import answer, show
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run

EVIL = "a\x9b31mb\u202egnp\u2066\x7f\x85\u2028\ufeff\x1b[2J\tc\U000e0041 ü→日😀"
SHOWN = ("ü→日😀", "ü", "日")


def drives_a_terminal(text: str) -> bool:
    return not text.replace("\n", "").isprintable()


@given(st.dictionaries(st.text(), st.recursive(st.text() | st.none(), st.lists, max_leaves=5)))
def test_every_document_is_harmless_and_comes_back(value: dict[str, object]) -> None:
    for form, load in ((OutputFormat.JSON, json.loads), (OutputFormat.YAML, yaml.safe_load)):
        text = out.text_of(value, form)
        assert not drives_a_terminal(text), form
        assert load(text) == value, form


@pytest.mark.parametrize("form", [OutputFormat.JSON, OutputFormat.YAML])
def test_ordinary_text_stays_readable(form: OutputFormat) -> None:
    assert all(word in out.text_of({"name": word}, form) for word in SHOWN)


def test_a_lone_surrogate_is_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    out.json_line({"text": "\ud800"})
    assert json.loads(capsys.readouterr().out) == {"text": "\ud800"}


def test_lines_and_errors_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    out.json_line({"text": EVIL})
    out.complain(CliError("failed", EVIL, hint=EVIL), as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out) == {"text": EVIL}
    assert json.loads(said.err)["message"] == EVIL
    assert not drives_a_terminal(said.out + said.err)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_what_a_user_named_drives_no_operators_terminal(run: Run, rack: Rack, form: str) -> None:
    show(rack.desks.jobs, "red", project="alpha", reason=EVIL)
    done = run("get", "jobs", "-o", form)
    assert done.code == 0
    assert not drives_a_terminal(done.out)
    assert "\\x9B" in done.out or "\\u009b" in done.out


def test_events_are_exported_harmlessly_to_a_terminal(url: str, rack: Rack) -> None:
    """A real one: what is piped on arrives as it was."""

    def events(since: int, limit: int) -> list[EventView]:
        said = EventView(
            id=1, time=1.0, severity="info", object="job/red", reason="Said", message=EVIL, epoch=1
        )
        return [said] if since < 1 else []

    answer(rack.desks.fabric, events=events)
    words = ["--url", url, "events", "export", "--format", "csv"]
    code = f"import sys; from console.cli.main import main; sys.exit(main({words!r}))"
    command = [sys.executable, "-c", code]
    piped = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout.decode()
    assert EVIL.split("\x85", maxsplit=1)[0] in piped
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs)
    os.close(theirs)
    pieces = []
    with contextlib.suppress(OSError):  # the terminal's end
        while piece := os.read(ours, 65536):
            pieces.append(piece)
    os.close(ours)
    assert process.wait(120) == 0
    shown = b"".join(pieces).decode().replace("\r\n", "\n")
    assert "\\u202e" in shown
    assert not drives_a_terminal(shown)
