"""A notice as a command of the site file, run on the controller's machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from subprocess import DEVNULL, PIPE

from controller.state.records import Notice

TIMEOUT_S = 30.0
ID_VARIABLE = "LIGHTLOOM_NOTICE_ID"
_REAP_S = 5.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Command:
    """The way to one command; exit code 0 confirms a notice."""

    def __init__(self, command: Sequence[str]) -> None:
        """``command`` is a program's absolute path and its arguments; no shell reads it."""
        self._command = command

    async def deliver(self, notice: Notice, now: float) -> str:
        """Run the command with the job's facts on stdin. Returns why it is not confirmed.

        Its environment has nothing of the controller's and nothing of the job's. It is killed,
        with its children, when it takes too long or the controller stops.
        """
        env = {"PATH": _PATH, "LANG": "C.UTF-8", ID_VARIABLE: notice.id}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=DEVNULL,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return f"its command cannot be run ({error.strerror})"
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await process.communicate(notice.body.encode())
        except TimeoutError:
            return f"its command did not end in {TIMEOUT_S:g} s"
        finally:
            await _end(process)
        code = process.returncode
        return "" if code == 0 else f"its command ended with exit code {code}"


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REAP_S):
            await process.wait()
