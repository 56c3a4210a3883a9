"""The rack's controller as something that dies: killed, told where to die, started again."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from controller.base import failpoints
from testbed.rack import RackError, RackStatus, procfs
from testbed.token import rack_token

ANSWER_S = 60.0
PATIENCE_S = 180.0
POLL_S = 0.01
ALONE = "--no-keeper"
"""One process that stays dead until it is started again."""


class Mortal:
    """Takes over a rack that is up: kills its controller and is from then on its keeper."""

    def __init__(self, rack: RackStatus, run_dir: Path, *options: str) -> None:
        """``options`` go to every controller that is started."""
        self.log = run_dir / "logs" / "controller-again.log"
        self.deathbed = run_dir / "failpoint"
        """Where the running controller reads at which point it is to die."""
        first = next(part.pid for part in rack.parts if part.name == "controller")
        self._argv = [*_words(first, "cmdline"), ALONE, *options]
        self._env = dict(pair.split("=", 1) for pair in _words(first, "environ") if "=" in pair)
        self._env[failpoints.VARIABLE] = f"@{self.deathbed}"
        kill_with_children(first)
        self._process: subprocess.Popen[bytes] | None = None
        self.http = httpx.Client(
            base_url=f"{rack.url}/api/v1",
            headers={"Authorization": f"Bearer {rack_token(run_dir)}"},
            timeout=ANSWER_S,
            trust_env=False,
        )

    def spawn(self) -> None:
        """Start a controller and return at once."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, env=self._env, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def start(self) -> float:
        """Start one; return the seconds until every device was reached and all was in place."""
        began = time.monotonic()
        self.spawn()
        self.until(self.whole)
        return time.monotonic() - began

    def whole(self) -> bool:
        """Whether the controller reaches every device and has nothing left to put right."""
        return bool(self.get("/health")["status"] == "ok")

    def die_at(self, point: str) -> None:
        """Tell the running controller where to die."""
        self.deathbed.write_text(point, encoding="utf-8")

    def died(self) -> int:
        """Wait for the death and return the status."""
        if self._process is None:
            raise RackError("failed", "no controller was started", object="process/controller")
        return self._process.wait(timeout=PATIENCE_S)

    def kill(self) -> None:
        """End the controller with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self.died()

    def stop(self) -> None:
        """Let the controller leave, and hang up."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=PATIENCE_S)
        self.http.close()

    def get(self, path: str, **params: Any) -> Any:
        """Read one document; a controller that is away reads as one."""
        try:
            return self.http.get(path, params=params).raise_for_status().json()
        except httpx.TransportError:
            return {"status": "away", "items": [], "state": "away"}

    def post(self, path: str, body: Any = None, **params: Any) -> Any:
        """Send a change."""
        answer = self.http.post(path, json=body, params=params)
        if answer.is_error:
            raise RackError("failed", answer.text, object=path)
        return answer.json()

    def log_lines(self, job: str, *, tail: int | None = None) -> list[dict[str, Any]]:
        """Return what a job's ranks have written, or the last ``tail`` lines of each."""
        params = {} if tail is None else {"tail": tail}
        text = self.http.get(f"/jobs/{job}/logs", params=params).raise_for_status().text
        lines = [json.loads(line) for line in text.splitlines() if line]
        return [line for line in lines if "text" in line]  # an agent may be away at this moment

    def until(self, condition: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
        """Wait until ``condition`` is true; RackError with the controller's last words."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() >= deadline:
                last = self.log.read_text(encoding="utf-8")[-4000:]
                raise RackError("timeout", f"waited {limit_s:g} s; {last}", object=str(self.log))
            time.sleep(POLL_S)


def kill_with_children(pid: int) -> None:
    """Kill a keeper and return when its child, which the kernel kills with it, is gone as well.

    Until then the child holds its addresses and its store. RackError when one does not go.
    """
    handles = [os.pidfd_open(one) for one in (pid, *procfs.children(pid))]
    try:
        os.kill(pid, signal.SIGKILL)
        for handle in handles:
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            if not poller.poll(PATIENCE_S * 1000):
                raise RackError("timeout", f"process {pid} does not end", object="process")
    finally:
        for handle in handles:
            os.close(handle)


def _words(pid: int, what: str) -> list[str]:
    """Return the NUL-separated words of /proc/PID/cmdline or environ."""
    data = Path(f"/proc/{pid}/{what}").read_bytes()
    return [word.decode() for word in data.split(b"\0") if word]
