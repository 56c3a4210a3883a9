"""The caller's streams: closed ones, full ones, and encodings that lack characters."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import IO

_ESCAPED = "lightloom.escaped"


def prepare() -> None:
    """Make every stream usable, before the first is used.

    A closed stdout becomes one that cannot be written, so that only who writes fails; a closed
    stderr loses its messages. A character that the encoding of a stream lacks is escaped as in
    JSON: ``\\u00e9``.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    codecs.register_error(_ESCAPED, _escaped)
    if type(sys.stdout) is io.TextIOWrapper:
        sys.stdout = _Output.of(sys.stdout)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=_ESCAPED)


class _Output(io.TextIOWrapper):
    """Remembers that it could not be written: a later flush need not fail again."""

    lost: OSError | None = None

    @classmethod
    def of(cls, stream: io.TextIOWrapper) -> _Output:
        encoding, by_line = stream.encoding, stream.line_buffering
        return cls(stream.detach(), encoding=encoding, errors=_ESCAPED, line_buffering=by_line)

    def write(self, text: str, /) -> int:
        with self._watched():
            return super().write(text)

    def flush(self) -> None:
        with self._watched():
            super().flush()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.lost = error
            raise


def encodable(text: str) -> bool:
    """Whether the encoding of stdout has every character of ``text``."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def message(text: str) -> None:
    """Write to stderr. What cannot be written there has no other place, and is lost."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def unwritten() -> OSError | None:
    """Return why output is lost; then the end of the process does not try to write it again."""
    _flushed(sys.stderr)
    before = sys.stdout.lost if isinstance(sys.stdout, _Output) else None
    now = _flushed(sys.stdout)
    if before is not None and now is None:
        discard(sys.stdout)
    return now or before


def discard(stream: IO[str]) -> None:
    """Lose what is left in a stream's buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _flushed(stream: IO[str]) -> OSError | None:
    try:
        stream.flush()
    except OSError as error:
        discard(stream)
        return error
    return None


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
