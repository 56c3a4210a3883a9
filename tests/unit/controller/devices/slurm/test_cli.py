"""Slurm's programs, played by scripts that print what real ones printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from controller.devices.observed import ObservedError
from controller.devices.slurm import cli
from controller.devices.slurm.cli import CliTransport, states_of
from controller.devices.slurm.documents import items_of
from controller.devices.slurm.token import TokenFile
from tests import recorded

RELEASES = ("24.11", "26.05")


class Programs:
    """A folder with ``scontrol`` and ``squeue``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._asked = folder / "asked"

    def will(self, program: str, script: str) -> None:
        """Replace a program by a script of the shell, which also notes how it was called."""
        file = self.folder / program
        note = f'printf "%s|" "$0" "$@" >> {shlex.quote(str(self._asked))}'
        file.write_text(f"#!/bin/sh\n{note}\n{script}\n")
        file.chmod(0o755)

    def prints(self, program: str, release: str, name: str) -> None:
        """Print what a real program printed."""
        file = recorded.SLURM / f"cli-{release}" / name
        self.will(program, f"cat {shlex.quote(str(file))}")

    def fails(self, program: str, words: str, code: int = 1) -> None:
        self.will(program, f"echo {shlex.quote(words)} >&2; exit {code}")

    def lives(self, pid: Path) -> bool:
        """Whether the process whose number a file has still exists."""
        return Path("/proc", pid.read_text().strip()).exists()

    def asked(self) -> str:
        return self._asked.read_text()


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.fixture
def transport(tmp_path: Path) -> CliTransport:
    return CliTransport(tmp_path)


@pytest.mark.real_time
@pytest.mark.parametrize("release", RELEASES)
async def test_reading(programs: Programs, transport: CliTransport, release: str) -> None:
    programs.prints("scontrol", release, "job-running.json")
    assert len(list(items_of(await transport.job(1), "jobs"))) == 1
    assert "|show|job|1|--json|" in programs.asked()
    programs.prints("scontrol", release, "nojob.json")
    assert list(items_of(await transport.job(7), "jobs")) == []
    programs.prints("scontrol", release, "nodes.json")
    assert len(list(items_of(await transport.nodes(), "nodes"))) == 4
    programs.prints("scontrol", release, "config.txt")
    assert (await transport.release()).startswith(release)
    assert (await transport.config())["TopologyPlugin"] == "topology/tree"
    programs.prints("scontrol", release, "topology-a.txt")
    assert "lightloom_core" in await transport.topology()
    programs.prints("squeue", release, "job-het.json")
    assert len(list(items_of(await transport.jobs(), "jobs"))) == 2


@pytest.mark.real_time
@pytest.mark.parametrize("release", RELEASES)
async def test_states(programs: Programs, transport: CliTransport, release: str) -> None:
    programs.prints("squeue", release, "states.txt")
    first = await transport.states()
    programs.prints("squeue", release, "states2.txt")
    second = await transport.states()
    assert set(first) == {1, 2, 3, 4, 5}
    assert set(second) == {1, 2, 3, 4, 5, 6, 7, 8, 9}
    assert [number for number in first if first[number] != second[number]] == [5]


@pytest.mark.real_time
async def test_changes(programs: Programs, transport: CliTransport) -> None:
    programs.will("scontrol", "exit 0")
    assert await transport.comment(4711, "lightloom go: $(id) 'x'")
    assert "|update|jobid=4711|admincomment=lightloom go: $(id) 'x'|" in programs.asked()
    await transport.place("n[0-1]", "default:lightloom_core:as0")
    assert "|nodename=n[0-1]|topology=default:lightloom_core:as0|" in programs.asked()
    await transport.reconfigure()
    assert programs.asked().endswith("scontrol|reconfigure|")
    await transport.close()


@pytest.mark.real_time
async def test_a_job_that_has_gone_gets_no_comment(
    programs: Programs, transport: CliTransport
) -> None:
    programs.fails("scontrol", "Invalid job id specified for job 7\nslurm_update error")
    assert not await transport.comment(7, "x")
    assert list(items_of(await transport.job(7), "jobs")) == []


@pytest.mark.real_time
async def test_rights(programs: Programs, transport: CliTransport) -> None:
    programs.fails("scontrol", "slurm_update error: Invalid node name specified")
    assert await transport.administrates()
    programs.fails("scontrol", "slurm_update error: Invalid user id")
    assert not await transport.administrates()
    programs.fails("scontrol", "slurm_update error: Unable to contact slurm controller")
    with pytest.raises(ObservedError):
        await transport.administrates()


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "unavail"),
        ("slurm_load_jobs error: Protocol authentication error", "forbidden"),
        ("slurm_reconfigure error: Invalid user id", "forbidden"),
        ("Access/permission denied for job 1", "forbidden"),
        ("squeue: error: something\x1b[31m else", "invalid"),
        ("", "invalid"),
    ],
)
async def test_what_fails(
    programs: Programs, transport: CliTransport, words: str, code: str
) -> None:
    programs.fails("squeue", words)
    with pytest.raises(ObservedError) as error:
        await transport.states()
    assert error.value.code.startswith(code)
    assert error.value.message.isprintable()


@pytest.mark.real_time
async def test_a_program_that_is_not_there(transport: CliTransport) -> None:
    with pytest.raises(ObservedError, match="cannot run") as error:
        await transport.states()
    assert error.value.code == "unavailable"
    assert "engine.programs" in error.value.hint


@pytest.mark.real_time
async def test_a_program_that_hangs_is_killed(programs: Programs, tmp_path: Path) -> None:
    programs.will("squeue", f"echo $$ > {tmp_path}/pid; sleep 600 & wait")
    with pytest.raises(ObservedError) as error:
        await CliTransport(tmp_path, timeout_s=1).states()
    assert error.value.code == "timeout"
    assert not programs.lives(tmp_path / "pid")


@pytest.mark.real_time
async def test_output_is_bounded(
    programs: Programs, transport: CliTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "STATES_BYTES", 100_000)
    programs.will("squeue", "yes '1|PENDING'")
    with pytest.raises(ObservedError, match="more than 100000 bytes"):
        await transport.states()


@pytest.mark.real_time
async def test_the_environment_is_clean(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/tmp/other.conf")
    (tmp_path / "token").write_text("a.b.c")
    (tmp_path / "token").chmod(0o600)
    programs.will("scontrol", "env")
    token = TokenFile(tmp_path / "token")
    prefix = ("/usr/bin/env", "SLURM_CONF=/srv/slurm.conf")
    config = await CliTransport(tmp_path, prefix, token).config()
    assert config["SLURM_JWT"] == "a.b.c"
    assert config["SLURM_CONF"] == "/srv/slurm.conf"
    assert "HOME" not in config


@pytest.mark.parametrize("body", [b"x|PENDING", b"no bar", b"99999999999|PENDING"])
def test_lines_that_are_not_squeues(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a line of squeue"):
        states_of([body])
