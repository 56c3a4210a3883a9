"""The log has JSON lines only, from all parts of the program."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from container_mgr.__main__ import log_processors
from controller.daemon import logs


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    logging.getLogger("ocs_driver").setLevel(logging.NOTSET)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_no_local_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    logs.configure(stream)
    monkeypatch.setattr("sys.stderr", stream)
    for processors in (structlog.get_config()["processors"], log_processors()):
        structlog.configure(processors=processors)
        try:
            secret = "-".join(["canary", "17"])
            raise ValueError(f"broken after {len(secret)}")
        except ValueError:
            structlog.get_logger("controller.x").exception("died")
    assert stream.getvalue().count("broken after 9") == 2
    assert "canary-17" not in stream.getvalue()


def test_every_line_is_one_document() -> None:
    stream = io.StringIO()
    logs.configure(stream)
    structlog.get_logger("controller.x").info("moved", endpoint="gpu0\n{}")
    logging.getLogger("ocs_driver.tl1.session").info("logged in to %s", "ocs0")
    logging.getLogger("some.library").warning("odd: %s", "a\nb")
    logging.getLogger("some.library").info("chatter")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("asyncio").exception("a task died")
        structlog.get_logger("controller.x").exception("died_too")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"]) for line in lines] == [
        ("moved", "info"),
        ("logged in to ocs0", "info"),
        ("odd: a\nb", "warning"),
        ("a task died", "error"),
        ("died_too", "error"),
    ]
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert lines[1]["logger"] == "ocs_driver.tl1.session"
    assert all("ValueError: broken" in line["exception"] for line in lines[3:])


def test_an_agent_writes_json_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=log_processors(), logger_factory=structlog.PrintLoggerFactory())
    structlog.get_logger("container_mgr.x").warning("gpu_lost", endpoint="gpu0")
    line = json.loads(capsys.readouterr().out)
    assert (line["event"], line["level"], line["endpoint"]) == ("gpu_lost", "warning", "gpu0")
