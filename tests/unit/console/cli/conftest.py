"""A real HTTP server on loopback over the fake service, and the command run in-process."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from console.cli.main import main
from tests.parts.api.apps import app_of
from tests.parts.api.fake_service import FakeService


@dataclass(slots=True, frozen=True)
class Ran:
    """One command line that ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout, which must be one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, str]:
        """The last line of stderr, which must be a JSON error."""
        found = json.loads(self.err.splitlines()[-1])
        assert set(found) == {"code", "message", "hint", "object"}
        return dict(found)


Run = Callable[..., Ran]


@pytest.fixture(scope="session")
def _server() -> Iterator[tuple[FastAPI, str]]:
    """One server for all tests; each puts its own service behind it."""
    app = app_of()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            time.sleep(0.005)
        yield app, f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(timeout=60)
        assert not thread.is_alive()


@pytest.fixture
def service(_server: tuple[FastAPI, str]) -> FakeService:
    fake = FakeService()
    _server[0].state.desks = fake.desks
    return fake


@pytest.fixture
def url(_server: tuple[FastAPI, str], service: FakeService) -> str:
    assert _server[0].state.desks is service.desks
    return _server[1]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LIGHTLOOM_URL", "LIGHTLOOM_TOKEN", "LIGHTLOOM_TIMEOUT", "LIGHTLOOM_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("testbed.token.running_racks", list)


@pytest.fixture
def offline(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line that meets no controller."""

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Ran(code, captured.out, captured.err)

    return run


@pytest.fixture
def run(offline: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line against the fake controller."""
    monkeypatch.setenv("LIGHTLOOM_URL", url)
    return offline
