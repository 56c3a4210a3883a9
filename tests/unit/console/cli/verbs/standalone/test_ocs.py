"""``ocs`` verbs and programs that verbs hand over to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import ocs_driver
from ocs_driver import (
    OcsConflict,
    OcsDenied,
    OcsError,
    OcsLogin,
    OcsTimeout,
    OcsUnreachable,
    describe,
)
from tests.unit.console.cli.conftest import Run

URL = "calient+tl1://admin@127.0.0.1:3082"
CIRCUIT = {
    "a": "1.1.1",
    "b": "2.1.1",
    "duplex": True,
    "state": "tuned",
    "name": "x",
    "owner": "lightloom",
}


def _port(name: str, health: str) -> dict[str, Any]:
    return {
        "port": name,
        "health": health,
        "power_in_dbm": -3.25 if health == "tuned" else None,
        "power_out_dbm": None,
        "label": "",
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the switch; the last request is noted."""
    noted: dict[str, Any] = {"ok": True}

    async def show(url: str, *, password: str | None) -> dict[str, Any]:
        noted.update(url=url, password=password)
        return {
            "device": {"vendor": "Calient", "model": "S320", "serial": "", "firmware": "6"},
            "ports": [_port("1.1.1", "tuned"), _port("1.1.2", "blocked")],
            "circuits": [CIRCUIT],
        }

    async def change(url: str, a: str, b: str, **options: Any) -> dict[str, Any]:
        noted.update(options, url=url, pair=(a, b))
        result = {"action": "make", "a": a, "b": b, "duplex": True, "code": "", "message": "dust"}
        outcome = "done" if noted["ok"] else "failed"
        return {
            "ok": noted["ok"],
            "results": [{**result, "outcome": outcome}],
            "circuits": [],
        }

    monkeypatch.setattr(describe, "show", show)
    monkeypatch.setattr(describe, "connect", change)
    monkeypatch.setattr(describe, "disconnect", change)
    return noted


def test_show(offline: Run, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTLOOM_OCS_PASSWORD", "pw")
    document = offline("ocs", "show", URL, "-o", "json").document
    assert set(document) == {"device", "ports", "circuits"}
    assert (asked["url"], asked["password"]) == (URL, "pw")
    text = offline("ocs", "show", URL).out
    assert "-3.2 dBm" in text
    assert "1.1.2" not in text
    assert "1.1.2" in offline("ocs", "show", URL, "-o", "wide").out


def test_connect_and_disconnect(offline: Run, asked: dict[str, Any]) -> None:
    ran = offline("ocs", "connect", URL, "1.1.1", "2.1.1", "--simplex", "--mode", "update")
    assert ran.code == 0
    assert (asked["pair"], asked["duplex"], asked["mode"]) == (
        ("1.1.1", "2.1.1"),
        False,
        ocs_driver.Mode.UPDATE,
    )
    ran = offline("ocs", "disconnect", URL, "1.1.1", "2.1.1", "-o", "json")
    assert ran.document["ok"] is True
    assert asked["mode"] is ocs_driver.Mode.SAFE


def test_a_circuit_that_fails(offline: Run, asked: dict[str, Any]) -> None:
    asked["ok"] = False
    ran = offline("ocs", "connect", URL, "1.1.1", "2.1.1", "-o", "json")
    assert ran.code == 1
    assert ran.document["ok"] is False
    assert "dust" in ran.error["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OcsUnreachable("unreachable", "10.0.0.5:3082", "no route"), 1),
        (OcsTimeout("timeout", "10.0.0.5:3082", "no answer"), 124),
        (OcsLogin("PICC", "10.0.0.5:3082", "wrong password"), 4),
        (OcsConflict("busy", "1.1.1", "port in use"), 6),
        (OcsDenied("SNVS", "1.1.1", "not valid"), 1),
        (OcsError("bad_url", "x", "write it so"), 2),
        (TimeoutError(), 124),
    ],
)
def test_switch_errors(
    offline: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    async def refused(*_: object, **__: object) -> dict[str, Any]:
        await asyncio.sleep(0)
        raise error

    monkeypatch.setattr(describe, "show", refused)
    ran = offline("ocs", "show", URL, "-o", "json")
    assert ran.code == code
    assert ran.error["message"]


def test_urls_with_passwords_or_of_unknown_switches_are_refused(offline: Run) -> None:
    ran = offline("ocs", "show", "calient+tl1://admin:secret@127.0.0.1:3082", "-o", "json")
    assert ran.code == 2
    assert "secret" not in ran.err
    assert offline("ocs", "show", "abacus+tl1://127.0.0.1:1").code == 2


@pytest.mark.parametrize("verb", [["ocs", "emulate"], ["controller"], ["agent"]])
def test_programs_have_options_of_their_own(
    offline: Run, verb: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["lightloom"])
    ran = offline(*verb, "--help")
    assert ran.code == 0
    assert ran.out.startswith("usage:")
    assert offline(*verb, "--frobnicate").code == 2
