"""``exec``: a command in a running rank, with this terminal's input and output."""

from __future__ import annotations

import base64
import os
import selectors
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.ask.options import connect
from console.cli.errors import CliError, usage
from console.cli.show import streams
from console.cli.show import terminal as local
from console.cli.show.text import duration_s

if TYPE_CHECKING:
    from console.cli.ask.client import ControllerClient

Document = dict[str, Any]
_INPUT_BYTES = 48 * 1024
_SILENCE_S = 60.0
"""The controller sends something at least every 15 s."""
_PAUSE_S = 0.2
_BROKEN_PIPE = 141
_AGAIN = frozenset({"unavailable", "timeout"})
"""Too many requests, or a command that takes no input now: the same number is sent again."""


def execute(
    ctx: typer.Context,
    *,
    job: Annotated[str, typer.Argument(help="The job's name.")],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD...", help="What to run.")],
    rank: Annotated[int, typer.Option(min=0, help="In the container of this rank.")] = 0,
    stdin: Annotated[
        bool, typer.Option("-i", "--stdin", help="Pass on what you type, or a pipe.")
    ] = False,
    terminal: Annotated[
        bool, typer.Option("-t", "--tty", help="Run it in a terminal; -it for a shell.")
    ] = False,
    idle_timeout: Annotated[
        str | None,
        typer.Option(
            "--idle-timeout",
            metavar="TIME",
            help="End it after this time without input and output. [default: 15m, the most]",
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time-limit",
            metavar="TIME",
            help="End it after this time in any case. [default: 8h, the most]",
        ),
    ] = None,
) -> int:
    """Run a command in the container of a running job's rank.

    The exit code is the command's; 124 when a time limit ended it, 130 after Ctrl-C. The command
    ends when you leave. With -it Ctrl-C goes to the command.
    """
    if terminal and not (sys.stdout.isatty() and (sys.stdin.isatty() or not stdin)):
        raise usage("-t needs a terminal for input and output", "use -i alone with pipes and files")
    request: Document = {
        "rank": rank,
        "command": command,
        "stdin": stdin,
        "terminal": terminal,
        "window": local.size() if terminal else None,
    }
    if idle_timeout is not None:
        request["idle_s"] = duration_s(idle_timeout)
    if time_limit is not None:
        request["total_s"] = duration_s(time_limit)
    with connect(ctx) as client:
        base = f"/jobs/{client.part(job.removeprefix('job/'))}/exec"
        made = client.post(base, request, extra_s=60.0)
        return _run(client, f"{base}/{made['id']}", stdin=stdin, terminal=terminal)


def _run(client: ControllerClient, path: str, *, stdin: bool, terminal: bool) -> int:
    with ExitStack() as stack:
        if stdin or terminal:
            feeder = _Feeder(client, f"{path}/input", stdin=stdin)
            stack.callback(feeder.stop)
            if terminal:
                stack.enter_context(local.resized(feeder.resized))
            if stdin and terminal:
                stack.enter_context(local.raw())
            feeder.start()
        try:
            return _shown(client, path)
        except BrokenPipeError:
            # What is left in the buffer cannot be written at the end of the process either.
            streams.discard(sys.stdout)
            return _BROKEN_PIPE


def _shown(client: ControllerClient, path: str) -> int:
    """Write output as it comes; return the exit code. CliError without one."""
    for entry in client.live(path, silence_s=_SILENCE_S):
        if "stream" in entry:
            target = sys.stderr.buffer if entry["stream"] == "stderr" else sys.stdout.buffer
            target.write(base64.b64decode(entry["data"]))
            target.flush()
        elif entry["exit_code"] is not None:
            return int(entry["exit_code"]) & 0xFF
        else:
            raise CliError("timeout", f"the command was ended: {entry['reason']}")
    raise CliError(
        "unreachable",
        "the controller ended the command",
        hint="it is stopping, or your token has expired",
    )


class _Feeder:
    """Sends input and window sizes, one request after the other, from a thread of its own."""

    def __init__(self, client: ControllerClient, path: str, *, stdin: bool) -> None:
        self._client = client
        self._path = path
        self._stdin = stdin
        self._woken, self._wake = os.pipe()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="input", daemon=True)

    def start(self) -> None:
        """Begin to read and to send."""
        self._thread.start()

    def resized(self) -> None:
        """Send the new size of the terminal."""
        os.write(self._wake, b"r")

    def stop(self) -> None:
        """End the thread; a request in progress ends with its connection."""
        self._over.set()
        os.write(self._wake, b"s")

    def _feed(self) -> None:
        try:
            self._feed_all()
        except Exception:
            if not self._over.is_set():
                raise
            # A client that is closed during a request can raise anything.

    def _feed_all(self) -> None:
        number = 1
        with selectors.PollSelector() as selector:  # epoll refuses files
            selector.register(self._woken, selectors.EVENT_READ)
            if self._stdin:
                selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            while not self._over.is_set():
                ready = {key.fd for key, _ in selector.select()}
                body: Document = {"seq": number, "stdin": ""}
                if self._woken in ready:
                    os.read(self._woken, _INPUT_BYTES)
                    body["window"] = local.size()
                else:
                    data = _read_stdin()
                    body["stdin"] = base64.b64encode(data).decode()
                    if not data:
                        body["end"] = True
                        selector.unregister(sys.stdin.fileno())
                if not self._sent(body):
                    return
                number += 1

    def _sent(self, body: Document) -> bool:
        """Send one input until it is taken; False when the command takes no more."""
        while not self._over.is_set():
            try:
                self._client.post(self._path, body)
            except CliError as error:
                if error.code not in _AGAIN:
                    return False
                time.sleep(_PAUSE_S)
            else:
                return True
        return False


def _read_stdin() -> bytes:
    """Return what was typed; nothing at the end, also of a terminal that is gone."""
    try:
        return os.read(sys.stdin.fileno(), _INPUT_BYTES)
    except OSError:
        return b""
