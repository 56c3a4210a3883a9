"""The daemon as a process: it serves, refuses a second self, and leaves when told to."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest

from base.addresses import split_address
from tests.unit.controller.daemon.started import site_file, start

PATIENCE_S = 60


def test_serves_refuses_a_second_and_leaves_on_sigterm(tmp_path: Path) -> None:
    site = site_file(tmp_path)
    first = start(site, tmp_path / "state")
    assert first.stdout is not None
    ready = json.loads(first.stdout.readline())
    assert ready["event"] == "listening"
    token_file = tmp_path / "state" / "admin.token"
    assert token_file.stat().st_mode & 0o777 == 0o600
    token = token_file.read_text().strip()
    with httpx.Client(
        base_url=f"http://{ready['api']}/api/v1", timeout=PATIENCE_S, trust_env=False
    ) as http:
        assert http.get("/health").status_code == 401
        http.headers["Authorization"] = f"Bearer {token}"
        health = http.get("/health").json()
        assert health["site"] == "paper"
        assert health["status"] in ("starting", "degraded")
        refused = http.post("/jobs", json={"count": 7})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    second = start(site, tmp_path / "state")
    out, err = second.communicate(timeout=PATIENCE_S)
    assert (second.returncode, out) == (1, "")
    assert "another controller uses" in err
    first.send_signal(signal.SIGTERM)
    _, err = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 0
    assert "Traceback" not in err
    assert "secret" not in err
    assert token not in err


def test_what_it_prints_of_ipv6_is_an_address_that_it_reads(tmp_path: Path) -> None:
    here = ("--api-listen", "[::1]:0", "--openflow-listen", "[::1]:0")
    process = start(site_file(tmp_path), tmp_path / "state", *here)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    assert [split_address(ready[part])[0] for part in ("api", "openflow")] == ["::1", "::1"]
    url = f"http://{ready['api']}/api/v1/health"
    assert httpx.get(url, timeout=PATIENCE_S, trust_env=False).status_code == 401
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--api-listen", "0.0.0.0:0"), 1, "loopback only"),
        (("--api-listen", "0.0.0.0:0", "--insecure-no-auth"), 1, "loopback only"),
        (("--tls-cert", "/dev/null"), 1, "a certificate and a key"),
        (("--api-listen", "nowhere"), 1, "host:port"),
        (("--public-url", "ctl.example"), 1, "not a public URL"),
        (("--public-url", "http://ctl.example"), 1, "in the clear"),
        (("--trusted-proxy", "*"), 1, "not the address of a proxy"),
        (("--openflow-listen", "nowhere"), 1, "host:port"),
        (("--openflow-listen", "::1:6653"), 1, "in brackets"),
        (("--api-listen", "127.0.0.1:99999"), 1, "ports are 0 to 65535"),
        (("--openflow-netns", "no-such-namespace"), 1, "cannot listen for OpenFlow"),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    process = start(site_file(tmp_path), tmp_path / "state", *arguments)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (code, "")
    assert text in err
    assert "Traceback" not in err


def test_bad_site_file_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("kind: Sight\n")
    process = start(path, tmp_path / "state")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (2, "")
    assert str(path) in err
    assert "Traceback" not in err
