"""A real Prometheus scrapes the API; promtool judges names, rules and alerts."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
import uvicorn
import yaml

from controller.people.authz import Role
from tests.parts.api.people import Site, people_site

DEPLOY = Path(__file__).parents[2] / "console" / "deploy"
RULES = DEPLOY / "prometheus"
LIMIT_S = 60.0
LISTENING = re.compile(r'msg="Listening on" address=\S+:(\d+)')
Found = TypeVar("Found")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, str]]:
    """A controller's API with people on loopback, and its address."""
    ready: list[Site] = []
    directory = tmp_path_factory.mktemp("site")

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            site = await stack.enter_async_context(people_site(directory))
            _, site.secrets["scraper"] = await site.accounts.create("s", Role.VIEWER, ["*"])
            moved = await site.desks.plans.attach("gpu1", "as1", wait_s=LIMIT_S)
            undone = moved.model_copy(update={"state": "rolled_back"})
            site.app.state.counters.transaction(undone)
            ready.append(site)
            await server.serve(sockets=[listener])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        async def application(scope: object, receive: object, send: object) -> None:
            await ready[0].app(scope, receive, send)  # type: ignore[arg-type]

        server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off"))
        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            wait(lambda: server.started)
            yield ready[0], address
        finally:
            server.should_exit = True
            thread.join(timeout=LIMIT_S)


def wait(condition: Callable[[], Found]) -> Found:
    deadline = time.monotonic() + LIMIT_S
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline
        time.sleep(0.1)


def scrape(served: tuple[Site, str]) -> str:
    site, address = served
    headers = {"Authorization": f"Bearer {site.secrets['scraper']}"}
    reply = httpx.get(
        f"http://{address}/metrics", headers=headers, trust_env=False, timeout=LIMIT_S
    )
    assert reply.status_code == 200
    return reply.text


def test_a_real_prometheus_scrapes_and_computes(served: tuple[Site, str], tmp_path: Path) -> None:
    site, address = served
    config = yaml.safe_load((RULES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [address]}]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    (tmp_path / "lightloom.token").write_text(site.secrets["scraper"])
    shutil.copy(RULES / "lightloom.rules.yml", tmp_path)
    command = [
        *("prometheus", f"--config.file={tmp_path / 'prometheus.yml'}"),
        *(f"--storage.tsdb.path={tmp_path / 'data'}", "--web.listen-address=127.0.0.1:0"),
    ]
    log = tmp_path / "log"
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=written)
    try:
        port = int(wait(lambda: LISTENING.findall(log.read_text()))[0])
        assert value_of(port, 'lightloom_jobs{state="running"}') == 2
        assert value_of(port, "lightloom:endpoints_busy:ratio") == pytest.approx(3 / 6)
        assert value_of(port, "lightloom:excess_span:sum") == 1
        # A scrape that was not answered within its second is repeated: this asks for a good one.
        assert value_of(port, 'up{job="lightloom"} == 1') == 1
        rules = wait(lambda: evaluated(port))
        assert all(rule["health"] == "ok" for rule in rules), rules
    finally:
        process.terminate()
        process.wait(timeout=LIMIT_S)


def evaluated(port: int) -> list[dict[str, object]]:
    """Return all rules once each was evaluated; the groups begin at different moments."""
    found = httpx.get(f"http://127.0.0.1:{port}/api/v1/rules", trust_env=False, timeout=LIMIT_S)
    groups = found.json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return [] if any(rule["health"] == "unknown" for rule in rules) else rules


def value_of(port: int, query: str) -> float:
    """Return the value of a query as soon as there is one."""

    def ask() -> list[dict[str, list[str]]]:
        try:
            reply = httpx.get(
                f"http://127.0.0.1:{port}/api/v1/query",
                params={"query": query},
                trust_env=False,
                timeout=LIMIT_S,
            )
            return list(reply.json()["data"]["result"])
        except (httpx.HTTPError, KeyError, ValueError):
            return []

    return float(wait(ask)[0]["value"][1])


def test_promtool_finds_nothing_wrong(served: tuple[Site, str], tmp_path: Path) -> None:
    for arguments in (
        ("check", "rules", "lightloom.rules.yml"),
        ("test", "rules", "lightloom.rules.test.yml"),
    ):
        done = subprocess.run(
            ["promtool", *arguments],
            cwd=RULES,
            check=False,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    named = subprocess.run(
        ["promtool", "check", "metrics"],
        input=scrape(served),
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    # dBm is the one unit that is not a base unit: light is told in it everywhere.
    complaints = [line for line in named.stderr.splitlines() if "optical_power_dbm" not in line]
    assert not complaints


def test_rules_and_dashboard_name_metrics_that_exist(served: tuple[Site, str]) -> None:
    text = scrape(served)
    rules = (RULES / "lightloom.rules.yml").read_text()
    recorded = set(re.findall(r"record: (\S+)", rules))
    dashboard = json.loads((DEPLOY / "grafana" / "lightloom.json").read_text())
    queries = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
    used = set(re.findall(r"\blightloom[_:][a-z0-9_:]+", rules + " ".join(queries)))
    exposed = set(re.findall(r"^(lightloom_[a-z0-9_]+)", text, re.MULTILINE))
    exposed |= {name for name in used if f"# TYPE {name} " in text}
    assert used - recorded <= exposed
    assert recorded <= used
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_metrics_need_a_token_that_sees_everything(served: tuple[Site, str]) -> None:
    site, address = served
    url = f"http://{address}/metrics"
    assert httpx.get(url, trust_env=False, timeout=LIMIT_S).status_code == 401
    for who, status in (("user-alpha", 403), ("viewer-beta", 403), ("operator", 200)):
        headers = {"Authorization": f"Bearer {site.secrets[who]}"}
        reply = httpx.get(url, headers=headers, trust_env=False, timeout=LIMIT_S)
        assert reply.status_code == status
