"""REST documents of commands in running ranks."""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from controller.schema.base import RequestModel, View
from controller.schema.visibility import Plain

IDLE_S = 15 * 60.0
TOTAL_S = 8 * 3600.0
MAX_INPUT_BYTES = 48 * 2**10
"""Input in one request."""
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"


class WindowRequest(RequestModel):
    """The size of a terminal, in characters."""

    rows: int = Field(ge=1, le=4096)
    columns: int = Field(ge=1, le=4096)


class ExecRequest(RequestModel):
    """A command for one rank; it begins when its output is opened."""

    rank: int = Field(default=0, ge=0, lt=2**31)
    command: list[str] = Field(min_length=1, max_length=256)
    stdin: bool = False
    """Whether input follows; without it the command reads the end of its input at once."""
    terminal: bool = False
    """Run it in a terminal: then stderr is part of stdout."""
    window: WindowRequest | None = None
    idle_s: float = Field(default=IDLE_S, gt=0, le=IDLE_S)
    """Seconds without input and output after which it is ended; a freeze of the job does not
    count."""
    total_s: float = Field(default=TOTAL_S, gt=0, le=TOTAL_S)
    """Seconds after which it is ended."""


class ExecView(View):
    """A command that is ready; it is dropped when its output is not opened in time."""

    id: Plain
    job: Plain
    rank: int
    open_s: float
    """Seconds in which its output must be opened."""


class ExecInputRequest(RequestModel):
    """Input for a command. Requests are numbered from 1; a repeated one is not passed on again."""

    seq: int = Field(ge=1, lt=2**53)
    stdin: Annotated[str, StringConstraints(pattern=_BASE64, max_length=MAX_INPUT_BYTES * 4 // 3)]
    """Bytes in base64."""
    end: bool = False
    """No input follows these bytes."""
    window: WindowRequest | None = None
    """The new size of the terminal."""

    @property
    def data(self) -> bytes:
        """The bytes."""
        return base64.b64decode(self.stdin)


class ExecInputView(View):
    """What a command has been given."""

    next: int
    """The number of the next request."""


class ExecOutputView(View):
    """A piece of a command's output."""

    stream: Literal["stdout", "stderr"]
    data: str
    """Bytes in base64."""


class ExecEndView(View):
    """The end of a command, the last line of its output."""

    exit_code: int | None
    """None if a limit ended it."""
    reason: str = ""
    """Which limit that was; empty if it ended by itself."""
