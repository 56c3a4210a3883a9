"""Controls crashes of the rack's controller for tests: kill, crash points and restart."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from controller.base import failpoints
from testbed.rack import RackError, RackStatus, procfs
from testbed.token import rack_token

ANSWER_S = 60.0
PATIENCE_S = 180.0
POLL_S = 0.05
"""Between two checks: one costs this process and the controller some 10 ms of processor."""
ALONE = "--no-keeper"
"""Option for a controller in one process, which stays dead until it is started again."""


class Mortal:
    """Takes over a running rack: kills its controller and manages the controller from then on."""

    def __init__(self, rack: RackStatus, run_dir: Path, *options: str) -> None:
        """``options`` are passed to every controller that is started."""
        self.log = run_dir / "logs" / "controller-again.log"
        self.deathbed = run_dir / "failpoint"
        """File from which the running controller reads its crash point."""
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

    def spawn(self, *options: str, tree: Path | None = None) -> None:
        """Start a controller, with further ``options``, and return immediately.

        ``tree`` has the program of another release.
        """
        other = {} if tree is None else {"PYTHONPATH": str(tree)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._argv, *options],
                env={**self._env, **other},
                cwd=tree,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def start(self) -> float:
        """Start a controller; return the seconds until it reaches all devices and has no drift."""
        began = time.monotonic()
        self.spawn()
        self.until(self.whole)
        return time.monotonic() - began

    def whole(self) -> bool:
        """Whether the controller reaches every device and has nothing left to correct."""
        return bool(self.get("/health")["status"] == "ok")

    def die_at(self, point: str) -> None:
        """Set the crash point of the running controller."""
        self.deathbed.write_text(point, encoding="utf-8")

    def died(self) -> int:
        """Wait for the controller's exit and return its status."""
        if self._process is None:
            raise RackError("failed", "no controller was started", object="process/controller")
        return self._process.wait(timeout=PATIENCE_S)

    @property
    def pid(self) -> int:
        """The running controller's. Raises RackError when none was started."""
        if self._process is None:
            raise RackError("failed", "no controller was started", object="process/controller")
        return self._process.pid

    def kill(self) -> None:
        """Kill the controller with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self.died()

    def stop(self) -> None:
        """Stop the controller and close the connection to it."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=PATIENCE_S)
        self.http.close()

    def get(self, path: str, **params: Any) -> Any:
        """Read one document; returns a placeholder while the controller is unreachable."""
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
        """Return the log lines of a job's ranks, or the last ``tail`` lines of each."""
        params = {} if tail is None else {"tail": tail}
        text = self.http.get(f"/jobs/{job}/logs", params=params).raise_for_status().text
        lines = [json.loads(line) for line in text.splitlines() if line]
        return [line for line in lines if "text" in line]  # an agent may be unreachable now

    def until(self, condition: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
        """Wait until ``condition`` is true. Raises RackError with the controller's last lines."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() >= deadline:
                last = self.log.read_text(encoding="utf-8")[-4000:]
                raise RackError("timeout", f"waited {limit_s:g} s; {last}", object=str(self.log))
            time.sleep(POLL_S)


@contextmanager
def taken_over(rack: RackStatus, run_dir: Path) -> Iterator[Mortal]:
    """Run a rack's controller as one that can be killed, and stop it at the end."""
    made = Mortal(rack, run_dir)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def kill_with_children(pid: int) -> None:
    """Kill a keeper and wait until its child, which the kernel kills with it, is gone as well.

    Until then the child holds its addresses and its store. Raises RackError if one remains.
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
