"""Prints: data, and only data, on stdout; messages on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from console.cli.errors import CliError
from console.cli.show import streams
from console.cli.show.text import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table


_WIDTH = 1000
_ESCAPE, _RESET = "\x1b", "\x1b[0m"
_TRAILING = re.compile(r"(?: |\x1b\[[0-9;]*m)+$")


class OutputFormat(StrEnum):
    """The output formats of ``-o``."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"

    @property
    def structured(self) -> bool:
        """True for the formats that programs read."""
        return self in (OutputFormat.JSON, OutputFormat.YAML)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """True when the command line asks for ``-o json``, also when it cannot be parsed."""
    own = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    pairs = pairwise(own)
    return any(a in ("-ojson", "--output=json") for a in own) or any(
        flag in ("-o", "--output") and value == "json" for flag, value in pairs
    )


def document(value: Any, output: OutputFormat) -> None:
    """Print one JSON or YAML document on stdout."""
    sys.stdout.write(text_of(value, output))
    sys.stdout.flush()


def text_of(value: Any, output: OutputFormat) -> str:
    """Return one JSON or YAML document."""
    if output is OutputFormat.YAML:
        import yaml  # noqa: PLC0415 - start-up time

        text = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))
        if harmless(text) == text and streams.encodable(text):
            return text
        return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=False))
    return _json(value, indent=2)


def harmless(text: str) -> str:
    """Return JSON or CSV with all characters that could control a terminal as ``\\uXXXX``.

    These are all that are not printable, except line ends: C1 controls and DEL, which JSON does
    not escape, and format characters, which can show text in another order.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _json(value: Any, **form: Any) -> str:
    return harmless(json.dumps(value, ensure_ascii=False, **form)) + "\n"


def ask(question: str) -> None:
    """Ask for confirmation on the terminal. CliError without a terminal or a yes."""
    if not sys.stdin.isatty():
        raise CliError("usage", "cannot ask for confirmation without a terminal", hint="add --yes")
    streams.message(f"{question} [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CliError("unmet", "nothing was done")


def json_line(value: Any) -> None:
    """Print one document on one line, as a watch does at each change."""
    sys.stdout.write(_json(value, separators=(",", ":")))
    sys.stdout.flush()


def message(text: str) -> None:
    """Print a message on stderr: progress, advice."""
    streams.message(plain(text) + "\n")


def line(text: str) -> None:
    """Print one line of data on stdout."""
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def lines(texts: Iterable[str]) -> None:
    """Print lines of data on stdout."""
    for text in texts:
        line(text)


def complain(error: CliError, *, as_json: bool) -> None:
    """Print an error on stderr."""
    if as_json:
        streams.message(_json(error.document()))
        return
    about = f" [{error.object}]" if error.object and error.object not in error.message else ""
    lines = f"{error.message}{about}".splitlines() or [""]
    streams.message(f"error ({error.code}): " + "\n".join(map(plain, lines)) + "\n")
    if error.hint:
        streams.message(f"hint: {plain(error.hint)}\n")


def logs_to_stderr() -> None:
    """Send logs of level warning and above to stderr; LIGHTLOOM_DEBUG=1 shows all.

    For verbs that run other packages in this process: stdout remains data.
    """
    import logging  # noqa: PLC0415 - start-up time

    import structlog  # noqa: PLC0415 - start-up time

    level = logging.DEBUG if os.environ.get("LIGHTLOOM_DEBUG") else logging.WARNING
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty() and not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def console(width: int | None = _WIDTH) -> Console:
    """Return a rich console on stdout; styled only at a terminal and without NO_COLOR.

    ``width`` None is the terminal's own, for a screen that is drawn and not scrolled.
    """
    from rich.console import Console  # noqa: PLC0415 - start-up time

    return Console(
        file=sys.stdout,
        width=width,
        force_terminal=False if os.environ.get("NO_COLOR") and width is not None else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, head: bool = True) -> Table:
    """Return a table without borders, one row a line, with values escaped."""
    from rich.table import Table  # noqa: PLC0415 - start-up time
    from rich.text import Text  # noqa: PLC0415 - start-up time

    made = Table(
        box=None, pad_edge=False, show_header=head, header_style="bold", padding=(0, 3, 0, 0)
    )
    for column in columns:
        made.add_column(column, no_wrap=True)
    for row in rows:
        made.add_row(*(Text(plain(value)) for value in row))
    return made


def width_of(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """Return how many characters a line of a table takes."""
    return console().measure(table(columns, rows)).maximum


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, head: bool = True
) -> None:
    """Print a table on stdout."""
    show(table(columns, rows, head=head))


def show(renderable: RenderableType) -> None:
    """Print a renderable of rich on stdout, without blanks at the ends of lines.

    Lines are never folded to the terminal's width: folded columns are unreadable, and programs
    expect one row a line.
    """
    target = console()
    with target.capture() as captured:
        target.print(renderable)
    for text in captured.get().splitlines():
        kept = _TRAILING.sub("", text)
        sys.stdout.write(f"{kept}{_RESET if _ESCAPE in kept else ''}\n")
    sys.stdout.flush()
