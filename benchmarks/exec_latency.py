"""Measures a command in a rank against the same command with the engine alone.

``python -m benchmarks.exec_latency`` (root) brings up the emulated rack and prints one JSON
document: p50 and p99, in milliseconds, of ``docker exec CONTAINER true``, of the API, and of
``lightloom exec JOB -- true``, whose process mostly loads Python. All take turns in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from testbed import rack
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller
from testbed.token import rack_token

JOB = "bench"
CLI = (sys.executable, "-c", "import sys; from console.cli.main import main; sys.exit(main())")
LIMIT_S = 120.0


def running(controller: Controller) -> None:
    """Submit the job and wait until it runs."""
    controller.post("/jobs", {"name": JOB, "count": 1, "command": ["sleep", "3600"]})
    end = time.monotonic() + LIMIT_S
    while next(j for j in controller.items("/jobs") if j["name"] == JOB)["state"] != "running":
        if time.monotonic() >= end:
            raise TimeoutError(f"job {JOB} does not run")
        time.sleep(0.1)


def by_api(http: httpx.Client) -> None:
    """Prepare a command and read its output to the end."""
    made = http.post(f"/jobs/{JOB}/exec", json={"command": ["true"]})
    made.raise_for_status()
    lines = http.get(f"/jobs/{JOB}/exec/{made.json()['id']}").text.split()
    if json.loads(lines[-1])["exit_code"] != 0:
        raise RuntimeError(lines[-1])


def measure(ways: dict[str, Callable[[], None]], turns: int) -> dict[str, dict[str, float]]:
    """Time every way once a turn; return p50 and p99 in milliseconds."""
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, act in ways.items():
            began = time.perf_counter()
            act()
            seen[name].append((time.perf_counter() - began) * 1e3)
    return {
        name: {
            "p50_ms": round(statistics.median(found), 1),
            "p99_ms": round(statistics.quantiles(found, n=100)[98], 1),
        }
        for name, found in seen.items()
    }


def main() -> None:
    """Bring up a rack, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    turns = parser.parse_args().turns
    run_dir = Path(f"/run/lightloom/bench-{os.getpid()}")
    status = rack.up(PAPER_SITE, run_dir, progress=lambda line: None)
    try:
        headers = {"Authorization": f"Bearer {rack_token(run_dir)}"}
        with (
            Controller(status.url) as controller,
            httpx.Client(base_url=f"{status.url}/api/v1", headers=headers, timeout=60) as http,
        ):
            running(controller)
            env = {**os.environ, "LIGHTLOOM_URL": status.url}
            docker = ("docker", "-H", status.docker_host, "exec")
            containers: list[dict[str, Any]] = controller.items("/containers")
            name = next(c["container_id"] for c in containers if c["job"] == JOB)
            ways: dict[str, Callable[[], None]] = {
                "docker exec": lambda: _run(*docker, name, "true", env=env),
                "API": lambda: by_api(http),
                "lightloom exec": lambda: _run(*CLI, "exec", JOB, "--", "true", env=env),
            }
            figures = measure(ways, turns)
    finally:
        rack.down(run_dir, progress=lambda line: None)
    bare = figures["docker exec"]["p50_ms"]
    ratios = {name: round(found["p50_ms"] / bare, 2) for name, found in figures.items()}
    document = {
        "turns": turns,
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "ms": figures,
        "p50_of_docker_exec": ratios,
    }
    print(json.dumps(document, indent=2))


def _run(*command: str, env: dict[str, str]) -> None:
    subprocess.run(command, env=env, check=True, timeout=60, capture_output=True)


if __name__ == "__main__":
    main()
