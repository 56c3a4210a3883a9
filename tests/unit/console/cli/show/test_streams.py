"""What the command does when its caller closed a stream, or gave one that takes no output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

LIGHTLOOM = f"{sys.executable} -c 'import sys; from console.cli.main import main; sys.exit(main())'"
TEXT = "caf\u00e9 \u2713 \U0001f600"
JOB = f'resources: {{gpus: 1}}\nenv: {{NAME: "{TEXT}"}}\n'


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell line in which ``lightloom`` is the command; PATH has nothing of the caller's."""
    return subprocess.run(
        ["/bin/bash", "-c", line.replace("lightloom ", f"{LIGHTLOOM} ")],
        capture_output=True,
        check=False,
        timeout=120,
        cwd=Path(__file__).parents[5],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8", **environment},
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB, encoding="utf-8")
    return file


@pytest.mark.parametrize("stdout", [">&-", ">/dev/full"])
@pytest.mark.parametrize(
    "command", ["version", "version -o json", "schema site", "--help", "submit --help", "--version"]
)
def test_output_that_cannot_be_written_is_one_plain_line(command: str, stdout: str) -> None:
    done = shell(f"lightloom {command} {stdout}")
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    if command.endswith("json"):
        (line,) = lines
        assert json.loads(line)["message"].startswith("the output cannot be written: ")
    else:
        assert lines[0].startswith("error (failed): the output cannot be written: ")
        assert len(lines) == 2
    assert "report it" not in done.stderr.decode()


def test_a_pipe_that_is_closed_early_ends_the_command_in_silence() -> None:
    done = shell("lightloom schema site | head -c 10; exit ${PIPESTATUS[0]}")
    assert done.stderr == b""
    assert done.stdout.startswith(b"{")


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_messages_that_cannot_be_written_change_nothing(stderr: str) -> None:
    assert shell(f"lightloom version {stderr}").returncode == 0
    failed = shell(f"lightloom frobnicate {stderr}")
    assert (failed.returncode, failed.stdout) == (2, b"")
    assert shell("lightloom version <&-").returncode == 0
    assert shell("lightloom version <&- >&- 2>&-").returncode == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437"])
def test_characters_that_the_encoding_lacks_are_escaped(job: Path, encoding: str) -> None:
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        done = shell(f"lightloom submit -f {job} --dry-run -o {form}", PYTHONIOENCODING=encoding)
        assert (done.returncode, done.stderr) == (0, b"")
        assert read(done.stdout.decode(encoding))["env"] == {"NAME": TEXT}
    bad = shell(f"lightloom get {TEXT.split()[1]}", PYTHONIOENCODING=encoding)
    assert bad.returncode == 2
    assert "\\u2713" in bad.stderr.decode(encoding)


def test_a_utf8_terminal_gets_the_characters(job: Path) -> None:
    done = shell(f"lightloom submit -f {job} --dry-run -o json", PYTHONUTF8="1")
    assert TEXT in done.stdout.decode()
