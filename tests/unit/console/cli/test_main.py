"""Start-up time, settings, reachability: what every verb has in common."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.cli.ask.settings import Flags, resolve
from console.cli.errors import EXIT_CODES, CliError
from console.cli.main import main
from console.cli.show.output import asks_for_json
from tests.parts.api.desks import answer, never
from tests.parts.controller.rack import Rack
from tests.unit.console.cli.conftest import Run

VERBS = [
    *("submit", "get", "describe", "logs", "cancel", "pause", "resume", "wait", "plan", "apply"),
    *("defrag", "top", "demo", "controller", "agent", "schema", "doctor", "version"),
    *("checkpoints", "recoveries", "drain", "undrain"),
    *("testbed", "ocs", "attach", "detach", "abort", "repair", "quarantine", "simulate"),
]


def test_help_is_cheap() -> None:
    program = (
        "import sys\n"
        "from console.cli.main import main\n"
        "code = main(['--help'])\n"
        "heavy = {'grpc', 'fastapi', 'tensorflow', 'httpx', 'docker', 'os_ken', 'numpy',"
        " 'pydantic', 'asyncio', 'testbed', 'matplotlib', 'yaml'}\n"
        "enums = {'scheduler', 'scheduler.model', 'controller', 'controller.devices',"
        " 'controller.devices.engine', 'controller.schema', 'controller.schema.submit',"
        " 'controller.schema.submit.request', 'controller.schema.submit.marks'}\n"
        "own = {m for m in sys.modules if m.split('.')[0] in ('scheduler', 'controller')}\n"
        "print(sorted(heavy & set(sys.modules) | own - enums), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "[]\n"
    for verb in VERBS:
        assert f"\n  {verb} " in ran.stdout


def test_the_version_as_an_option(offline: Run) -> None:
    ran = offline("--version")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == offline("version").out
    assert re.fullmatch(r"lightloom \d+\.\d+\.\d+\n", ran.out)


@pytest.mark.parametrize("verb", [v for v in VERBS if v not in ("controller", "agent")])
def test_every_verb_has_help(offline: Run, verb: str) -> None:
    ran = offline(verb, "--help")
    assert ran.code == 0
    assert ran.out.startswith("Usage: lightloom")


def test_no_verb_prints_help_as_usage_error(offline: Run) -> None:
    for arguments in ((), ("testbed",), ("ocs",), ("quarantine",)):
        ran = offline(*arguments)
        assert ran.code == 2
        assert ran.out == ""
        assert ran.err.startswith("Usage:")


def test_unknown_verbs_and_options(offline: Run) -> None:
    assert offline("frob").code == 2
    ran = offline("get", "jobs", "--frob", "-o", "json")
    assert ran.code == 2
    assert ran.error["code"] == "usage"


def test_no_controller(offline: Run) -> None:
    with socket.socket() as kept:  # bound, so that no other process listens there
        kept.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{kept.getsockname()[1]}"
        ran = offline("--url", url, "get", "jobs", "-o", "json")
    assert ran.code == 7
    assert ran.error["code"] == "unreachable"
    assert "lightloom testbed up" in ran.error["hint"]
    assert "lightloom controller" in ran.error["hint"]


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1", "http://127.0.0.1:x"])
def test_urls_that_are_none(offline: Run, url: str) -> None:
    assert offline("--url", url, "get", "jobs").code == 2


def _answer_once(listener: socket.socket, reply: bytes) -> None:
    peer, _ = listener.accept()
    with peer:
        peer.recv(65536)
        peer.sendall(reply)


@pytest.fixture
def stranger(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, request.param))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(timeout=10)


@pytest.mark.parametrize(
    ("stranger", "code"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 1),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n\r\noops", 1),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}", 1),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", 1),
        (b"", 7),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 7),
    ],
    indirect=["stranger"],
)
def test_something_else_answers(offline: Run, stranger: str, code: int) -> None:
    ran = offline("--url", stranger, "get", "jobs", "-o", "json")
    assert ran.code == code
    assert ran.error["object"] == stranger


def test_a_controller_that_does_not_answer(offline: Run, url: str, rack: Rack) -> None:
    answer(rack.desks.jobs, jobs=never)
    ran = offline("--url", url, "--request-timeout", "0.1", "get", "jobs", "-o", "json")
    assert ran.code == 124
    assert ran.error["code"] == "timeout"


def test_a_proxy_is_not_asked_for_this_machine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert run("get", "jobs").code == 0


def test_a_crash_of_the_controller_is_told_in_one_line(run: Run, rack: Rack) -> None:
    answer(rack.desks.jobs, jobs=RuntimeError("a secret inside"))
    ran = run("get", "jobs")
    assert ran.code == 1
    assert "secret" not in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_a_defect_of_the_command_is_told_in_one_line(
    offline: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr("console.cli.doctor.checks.examine", broken)
    ran = offline("doctor", "-o", "json")
    assert ran.code == 1
    assert "ZeroDivisionError" in ran.error["message"]
    monkeypatch.setenv("LIGHTLOOM_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_a_part_that_is_not_installed(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")

    monkeypatch.setattr("console.cli.doctor.checks.examine", broken)
    ran = offline("doctor", "-o", "json")
    assert ran.error["code"] == "unavailable"
    assert "lightloom[testbed]" in ran.error["hint"]


def test_interrupt(offline: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("console.cli.doctor.checks.examine", interrupted)
    ran = offline("doctor")
    assert (ran.code, ran.out) == (130, "")


def test_errors_of_other_parts_keep_code_and_hint(
    offline: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PartError(Exception):
        code, message, object, hint = "forbidden", "needs root", "rack", "use sudo"

    def broken() -> None:
        raise PartError

    monkeypatch.setattr("console.cli.doctor.checks.examine", broken)
    ran = offline("doctor", "-o", "json")
    assert ran.code == 4
    assert ran.error == {
        "code": "forbidden",
        "message": "needs root",
        "object": "rack",
        "hint": "use sudo",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("submit", "-n", "0"), "Invalid value for '-n' / '--count': must be 1 or more"),
        (("submit", "-n", "x"), "Invalid value for '-n' / '--count': must be a whole number"),
        (("submit", "-n", "1", "--priority", "101"), "'--priority': must be 100 or less"),
        (("submit", "-n", "1", "--policy", "lvie"), "'restart'; did you mean 'live'?"),
        (("get", "jbs"), "'jbs' is not a kind of object; did you mean 'jobs'?"),
        (("describe", "jobb", "red"), "'jobb' is not a kind of object; did you mean 'job'?"),
    ],
)
def test_a_wrong_value_is_told_in_plain_words(
    offline: Run, arguments: tuple[str, ...], message: str
) -> None:
    ran = offline(*arguments, "-o", "json")
    assert ran.code == 2
    assert message in ran.error["message"]


def test_a_name_that_is_not_there_asks_for_the_one_that_is_meant(run: Run) -> None:
    ran = run("describe", "endpoint", "gpu00", "-o", "json")
    assert ran.code == 5
    assert ran.error["message"] == "no endpoint is called gpu00; did you mean 'gpu0'?"


def test_a_request_that_the_controller_refuses_is_told_in_plain_words(run: Run) -> None:
    ran = run("submit", "-n", "1", "--name", "Red_1", "-o", "json")
    assert ran.code == 2
    assert ran.error["message"].startswith("name: must be a name of 1 to 63 lower-case letters")
    assert "schema" not in ran.error["hint"]


def test_settings_flag_environment_file_default(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert resolve(environment=env).url == "http://127.0.0.1:8470"
    file = tmp_path / "lightloom" / "config.yaml"
    file.parent.mkdir()
    file.write_text("url: http://file:1/\ntoken: from-file\ntimeout_s: 7\n")
    file.chmod(0o600)
    found = resolve(environment=env)
    assert (found.url, found.token, found.timeout_s) == ("http://file:1", "from-file", 7.0)
    env |= {"LIGHTLOOM_URL": "http://env:2", "LIGHTLOOM_TOKEN": "from-env"}
    assert resolve(environment=env).url == "http://env:2"
    flags = Flags(url="http://flag:3", timeout_s=9)
    found = resolve(flags, environment=env)
    assert (found.url, found.token, found.timeout_s) == ("http://flag:3", "from-env", 9)


@pytest.mark.parametrize(
    ("content", "mode", "word"),
    [
        ("url: [", 0o600, "YAML"),
        ("- a\n", 0o600, "keys"),
        ("uri: http://x\n", 0o600, "uri"),
        ("token: abc\n", 0o644, "chmod 600"),
        ("timeout_s: soon\n", 0o600, "soon"),
        ("timeout_s: 010\n", 0o600, "010"),
        ("timeout_s: 1_0\n", 0o600, "1_0"),
    ],
)
def test_settings_files_that_cannot_be_used(
    tmp_path: Path, content: str, mode: int, word: str
) -> None:
    file = tmp_path / "lightloom" / "config.yaml"
    file.parent.mkdir()
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(CliError) as caught:
        resolve(environment={"XDG_CONFIG_HOME": str(tmp_path)})
    assert caught.value.exit_code == 2
    assert word in caught.value.message + caught.value.hint


def test_a_token_of_digits_stays_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "lightloom" / "config.yaml"
    file.parent.mkdir()
    digits = "0012345"
    file.write_text(f"token: {digits}\n")
    file.chmod(0o600)
    assert resolve(environment={"XDG_CONFIG_HOME": str(tmp_path)}).token == digits


def test_a_broken_settings_file_stops_only_who_needs_it(offline: Run, tmp_path: Path) -> None:
    file = tmp_path / "config" / "lightloom" / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("nonsense: 1\n")
    assert offline("get", "jobs").code == 2
    assert offline("schema").code == 0


def test_offline_verbs(offline: Run) -> None:
    assert offline("schema", "site").document["title"] == "SiteModel"
    assert "version" in offline("version", "-o", "json").document
    assert offline("version").out.startswith("lightloom ")
    report = offline("doctor", "-o", "json").document
    assert {"name", "state", "found", "fix"} == set(report["checks"][0])
    assert offline("--no-color", "doctor").out.startswith("CHECK")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["get", "jobs", "-o", "json"], True),
        (["get", "jobs", "-ojson"], True),
        (["get", "jobs", "--output=json"], True),
        (["get", "jobs", "--output", "json"], True),
        (["get", "jobs", "-o", "yaml"], False),
        (["submit", "--", "x", "-o", "json"], False),
        (["json", "-o"], False),
    ],
)
def test_json_errors_are_known_before_parsing(arguments: list[str], expected: bool) -> None:
    assert asks_for_json(arguments) is expected


def test_exit_codes_are_the_contract() -> None:
    assert EXIT_CODES == {
        "failed": 1,
        "unavailable": 1,
        "invalid": 2,
        "usage": 2,
        "unmet": 3,
        "forbidden": 4,
        "not_found": 5,
        "conflict": 6,
        "unreachable": 7,
        "timeout": 124,
        "interrupted": 130,
    }
