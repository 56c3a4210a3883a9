"""What passes between a process and its worker: pickles of one package's values, within a bound.

A value may be made of plain data, frozen dataclasses, enumerations and errors of that package.
Nothing else is loaded, so that neither side can make the other call a function.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import struct
from collections.abc import Callable
from enum import Enum
from typing import IO, Any

MOST_BYTES = 256 << 20
"""Most bytes of one value: a site of 100,000 endpoints has some 10 MB."""

_HEAD = struct.Struct("<Q")


class FrameError(Exception):
    """A value that does not belong here, or is too large."""


def packed(value: object) -> bytes:
    """Return the frame of a value. FrameError."""
    try:
        body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise FrameError(f"{type(value).__name__} cannot be sent: {error}") from None
    if len(body) > MOST_BYTES:
        raise FrameError(f"{len(body)} bytes are too many, at most {MOST_BYTES}")
    return _HEAD.pack(len(body)) + body


def body_of(stream: IO[bytes]) -> bytes:
    """Read the body of the next frame. EOFError at the stream's end, FrameError if too large."""
    (size,) = _HEAD.unpack(_exactly(stream, _HEAD.size))
    if size > MOST_BYTES:
        raise FrameError(f"{size} bytes are announced, at most {MOST_BYTES} are allowed")
    return _exactly(stream, size)


def unpacked(body: bytes, package: str) -> Any:
    """Return the value of a body whose classes are of ``package``. FrameError."""
    try:
        return _Loader(body, package).load()
    except FrameError:
        raise
    except Exception as error:  # pickle raises whatever a wrong body causes
        raise FrameError(f"it cannot be read: {type(error).__name__}: {error}") from None


def belongs(kind: object, package: str) -> bool:
    """Whether values of a class may be in a frame."""
    if kind is ValueError:
        return True
    if not isinstance(kind, type) or not f"{kind.__module__}.".startswith(f"{package}."):
        return False
    if dataclasses.is_dataclass(kind):
        return bool(kind.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return issubclass(kind, Enum | ValueError)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


class _Loader(pickle.Unpickler):
    def __init__(self, body: bytes, package: str) -> None:
        super().__init__(io.BytesIO(body))
        self._package = package

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return a class of the package; everything else is refused before it is imported."""
        if (module, name) == ("builtins", "ValueError"):
            return ValueError
        if f"{module}.".startswith(f"{self._package}."):
            found: Callable[..., Any] = super().find_class(module, name)
            if belongs(found, self._package):
                return found
        raise FrameError(f"{module}.{name} is not a value of {self._package}")
