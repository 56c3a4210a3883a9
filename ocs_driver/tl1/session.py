"""Keeps one serialised, logged-in TL1 session per switch.

The session sends keep-alives (switches log idle sessions out after 10 to 60 minutes),
reconnects with increasing pauses when the connection is lost, and never repeats a command
whose outcome is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from base.addresses import join_address
from ocs_driver.address import OcsAddress
from ocs_driver.errors import (
    OcsBadReply,
    OcsDenied,
    OcsError,
    OcsLogin,
    OcsTimeout,
    OcsUnreachable,
)
from ocs_driver.tl1.connection import Tl1Connection
from ocs_driver.tl1.messages import Response, Tl1Command, Tl1Report, parameter
from ocs_driver.turns import CommandTurns

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Tl1Timing:
    """All waits of a session, in seconds."""

    connect_s: float = 5.0
    login_s: float = 10.0
    answer_s: float = 30.0
    logout_s: float = 1.0
    keepalive_s: float = 45.0
    login_race_s: float = 0.5
    backoff_first_s: float = 0.2
    backoff_longest_s: float = 30.0
    refused_login_s: float = 60.0
    """Pause after a refused login: switches lock accounts."""


@dataclass(slots=True, frozen=True)
class Login:
    """Credentials; the password never reaches a log."""

    user: str
    password: str

    @classmethod
    def of(cls, address: OcsAddress, password: str | None) -> Login:
        """Combine the URL's user and the password. Raises OcsLogin if either is missing."""
        if not address.user or password is None:
            raise OcsLogin(
                "no_credentials",
                str(address),
                "name the user in the URL and give the password by reference "
                "(LIGHTLOOM_OCS_PASSWORD or the site file)",
            )
        return cls(address.user, password)

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"


class Tl1Session:
    """Sends commands and returns responses; handles login, keep-alive and reconnects.

    ``tail`` is the suffix of the session's own commands, for dialects that require the general
    block. ``turns`` orders the commands.
    ``on_link`` gets True when a session is established and False when it is lost.
    """

    _INFLIGHT = 64
    """Commands in flight: enough to hide round trips, few enough for any buffer."""
    _PORTION = 16
    """Commands of a read that a change may have to wait for."""

    def __init__(
        self,
        host: str,
        port: int,
        login: Login,
        *,
        timing: Tl1Timing | None = None,
        tail: str = "",
        turns: CommandTurns | None = None,
        on_report: Callable[[Tl1Report], None] = lambda report: None,
        on_link: Callable[[bool], None] = lambda up: None,
    ) -> None:
        self.name = join_address(host, port)
        self._host = host
        self._port = port
        self._login = login
        self._timing = timing or Tl1Timing()
        self._tail = tail
        self.sid = ""
        """The switch's own name, from its response to the login."""
        self._on_report = on_report
        self._on_link = on_link
        self._turns = turns or CommandTurns(self.name)
        self._link: Tl1Connection | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._used_at = 0.0
        self._failures = 0
        self._next_try_at = 0.0
        self._refusal: OcsLogin | None = None

    async def open(self) -> None:
        """Connect and log in; Raises OcsUnreachable or OcsLogin on failure."""
        until = asyncio.get_running_loop().time() + self._timing.connect_s + self._timing.login_s
        async with self._turns.command():
            await self._ensure(until)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name=f"tl1-keeper-{self.name}")

    async def close(self) -> None:
        """Log out and close. Never fails."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        async with self._turns.command():
            link, self._link = self._link, None
            if link is None:
                return
            if not link.closed.is_set():
                logout = Tl1Command("CANC-USER", parameter(self._login.user), self._tail)
                with contextlib.suppress(OcsError):
                    await link.exchange([logout], self._timing.logout_s)
            await link.close()

    async def ask(self, command: Tl1Command, timeout_s: float | None = None) -> Response:
        """Send a read-only command and return its response. OcsDenied when refused, OcsBadReply.

        A read may be repeated, so the session reconnects once on a lost connection.
        """
        (response,) = await self.read_bulk([command], timeout_s)
        return accept_list(command, response, self.name)

    async def read_bulk(
        self, commands: Sequence[Tl1Command], timeout_s: float | None = None
    ) -> list[Response]:
        """Send read-only commands; reconnects once on a lost connection.

        They go in portions, so that a waiting change runs between two of them.
        """
        until = self._until(timeout_s)
        answers: list[Response] = []
        mended = False
        while len(answers) < len(commands):
            some = commands[len(answers) : len(answers) + self._PORTION]
            try:
                answers += await self._portion(some, until)
            except OcsTimeout as error:
                if error.code != "connection_lost" or mended:
                    raise
                mended = True
        return answers

    async def bulk(
        self, commands: Sequence[Tl1Command], timeout_s: float | None = None
    ) -> list[Response]:
        """Send all commands back to back and return their responses, including refusals.

        Raises OcsUnreachable or OcsLogin when nothing was sent, OcsTimeout when the outcome
        is unknown and the caller must read the switch again.
        """
        return await self._portion(commands, self._until(timeout_s))

    def _until(self, timeout_s: float | None) -> float:
        limit = self._timing.answer_s if timeout_s is None else timeout_s
        return asyncio.get_running_loop().time() + limit

    async def _portion(self, commands: Sequence[Tl1Command], until: float) -> list[Response]:
        async with self._turns.command(until):
            answers: list[Response] = []
            for start in range(0, len(commands), self._INFLIGHT):
                answers += await self._send(commands[start : start + self._INFLIGHT], until)
            return answers

    # -- below: this task holds the turn -----------------------------------------

    async def _send(self, commands: Sequence[Tl1Command], until: float) -> list[Response]:
        answers = await self._exchange(commands, until)
        for remedy in (self._wait_for_login, self._log_in_again):
            refused = [i for i, answer in enumerate(answers) if login_not_active(answer)]
            if not refused:
                return answers
            await remedy()
            # Refused commands were not executed, so repeating them is safe.
            again = await self._exchange([commands[i] for i in refused], until)
            for i, answer in zip(refused, again, strict=True):
                answers[i] = answer
        return answers

    async def _exchange(self, commands: Sequence[Tl1Command], until: float) -> list[Response]:
        link = await self._ensure(until)
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        return await link.exchange(commands, self._left(until))

    def _left(self, until: float) -> float:
        """Return the seconds until ``until``. Raises OcsUnreachable when no time is left."""
        left = until - asyncio.get_running_loop().time()
        if left <= 0:
            raise OcsUnreachable("out_of_time", self.name, "no time left to send the command")
        return left

    async def _wait_for_login(self) -> None:
        """Wait for firmware that reports "Login Not Active" shortly after a successful login."""
        await asyncio.sleep(self._timing.login_race_s)

    async def _log_in_again(self) -> None:
        """Log in again after the switch has logged the session out."""
        if self._link is not None:
            self._link.abort()

    async def _ensure(self, until: float) -> Tl1Connection:
        """Return a logged-in connection; reconnect if necessary."""
        if self._link is not None and not self._link.closed.is_set():
            return self._link
        loop = asyncio.get_running_loop()
        if self._link is not None:
            if self._link.flooded:
                self._next_try_at = loop.time() + self._timing.backoff_longest_s
            await self._link.close()
            self._link = None
            self._on_link(False)
        if loop.time() < self._next_try_at:
            await self._back_off(until)
        try:
            link = await self._connect(until)
        except OcsError as error:
            self._failures += 1
            self._refusal = error if isinstance(error, OcsLogin) else None
            pause = min(
                self._timing.backoff_first_s * 2 ** min(self._failures - 1, 16),
                self._timing.backoff_longest_s,
            )
            if self._refusal is not None:
                pause = self._timing.refused_login_s
            self._next_try_at = loop.time() + pause
            raise
        self._failures, self._next_try_at, self._refusal = 0, 0.0, None
        self._link = link
        self._on_link(True)
        return link

    async def _back_off(self, until: float) -> None:
        """Wait until the next attempt is due; raise at once if that is too late."""
        if self._refusal is not None:
            raise self._refusal
        if self._next_try_at >= until:
            wait = self._next_try_at - asyncio.get_running_loop().time()
            raise OcsUnreachable("backing_off", self.name, f"next attempt in {wait:.1f} s")
        await asyncio.sleep(self._next_try_at - asyncio.get_running_loop().time())

    async def _connect(self, until: float) -> Tl1Connection:
        link = await Tl1Connection.open(
            self._host,
            self._port,
            min(self._timing.connect_s, self._left(until)),
            self._on_report,
        )
        command = Tl1Command(
            "ACT-USER",
            aid=parameter(self._login.user),
            tail=f"::{parameter(self._login.password)}",
            secret=True,
        )
        try:
            limit = min(self._timing.login_s, self._left(until))
            (answer,) = await link.exchange([command], limit)
            self.sid = answer.sid
            if session_limit(answer):
                raise OcsUnreachable(
                    "session_limit",
                    self.name,
                    f"the switch has no free session ({answer.reason}); end another one",
                )
            if not answer.ok and "already logged in" not in answer.reason.lower():
                raise OcsLogin(
                    answer.code or "login_refused",
                    f"{self._login.user}@{self.name}",
                    f"the switch refused the login: {answer.reason}",
                )
        except OcsTimeout as error:
            await link.close()
            # No command was sent yet, so no outcome is unknown.
            raise OcsUnreachable(
                "no_login_answer",
                self.name,
                f"connected, but no response to the login ({error.hint}): is this the TL1 port?",
            ) from None
        except BaseException:
            await link.close()
            raise
        _log.info("logged in to %s as %s", self.name, self._login.user)
        return link

    # -- keeper --------------------------------------------------------------------

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        ping = Tl1Command("RTRV-HDR", tail=self._tail)
        while True:
            link = self._link
            if link is None:
                rest = max(self._next_try_at - loop.time(), self._timing.backoff_first_s)
                await asyncio.sleep(rest)
            else:
                rest = self._used_at + self._timing.keepalive_s - loop.time()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(rest, 0.0)):
                        await link.closed.wait()
                idle = loop.time() - self._used_at >= self._timing.keepalive_s
                if not link.closed.is_set() and not idle:
                    continue
            try:
                # Any response, even a refusal, shows that the session is alive.
                await self.bulk([ping])
            except OcsError as error:
                _log.warning("keep-alive: %s", error)


def login_not_active(response: Response) -> bool:
    """Whether a command was refused because the session is not (or no longer) logged in."""
    if response.completion != "DENY":
        return False
    return response.code == "PLNA" or "login not active" in response.reason.lower()


def session_limit(response: Response) -> bool:
    """Whether a login was refused because too many users are logged in."""
    reason = response.reason.lower()
    return response.completion == "DENY" and (
        response.code == "SSRE" or ("session" in reason and "max" in reason)
    )


def refusals(
    commands: Sequence[Tl1Command], responses: Sequence[Response], name: str
) -> list[OcsError | None]:
    """Return the error of each denied command, None for the others."""
    found: list[OcsError | None] = []
    for command, response in zip(commands, responses, strict=True):
        try:
            accept(command, response, name)
            found.append(None)
        except OcsDenied as error:
            found.append(error)
    return found


def accept(command: Tl1Command, response: Response, name: str) -> Response:
    """Return the response if the command was completed, else raise OcsDenied."""
    if response.ok:
        return response
    code = response.code or response.completion
    raise OcsDenied(code, name, f"{command} returned {response.completion}: {response.reason}")


def accept_list(command: Tl1Command, response: Response, name: str) -> Response:
    """Return a response whose body is rows and comments. Raises OcsDenied, OcsBadReply.

    A completed read without rows is an empty list; one with another text is refused.
    """
    if accept(command, response, name).text:
        said = response.text[0][:60]
        raise OcsBadReply(name, f"the reply to {command} has a line that is not a row: {said!r}")
    return response
