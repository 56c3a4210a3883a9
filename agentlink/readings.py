"""Readings as they stand in messages between controller and agents. Pure.

An older agent or controller has fields of its own for the first of them, by the same names:
:func:`fields` fills these, and :func:`read` falls back on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from google.protobuf.message import Message

from protos import agent_pb2 as pb
from readings.catalogue import of
from readings.reading import Object, Unit, Value, Values

_Accepts = Mapping[int, tuple[str, Callable[[Any], Value | None]]]
_MOST = 256
"""Entries that are read of one list; agents send one for each reading at most."""


def write(values: Values, *objects: Object) -> pb.Readings:
    """Return the message of the readings of some kinds of objects."""
    message = pb.Readings()
    for reading in of(*objects):
        match values.get(reading.name):
            case tuple() as words:
                message.words[reading.id].words.extend(words)
            case int() | float() as value:
                message.values[reading.id] = value
    return message


def fields(kind: type[Message], values: Values) -> dict[str, Any]:
    """Return the values for which a message has a field of that name."""
    return {name: value for name, value in values.items() if name in kind.DESCRIPTOR.fields_by_name}


def read(
    readings: pb.Readings, *objects: Object, older: Iterable[Message] = ()
) -> dict[str, Value]:
    """Return the readings of some kinds of objects within their bounds; others are ignored.

    ``older`` messages are read without ``readings``, by the names of their fields.
    """
    values: dict[str, Any] = {}
    figures, words = _known(objects)
    for number, figure in islice(readings.values.items(), _MOST):
        if entry := figures.get(number):
            name, accept = entry
            if (value := accept(figure)) is not None:
                values[name] = value
    for number, message in islice(readings.words.items(), _MOST):
        if entry := words.get(number):
            name, accept = entry
            values[name] = accept(message.words)
    return values or dict(_older(older, objects))


@cache
def _known(objects: tuple[Object, ...]) -> tuple[_Accepts, _Accepts]:
    """Return names and bounds by number, of figures and of words."""
    figures, words = (
        {one.id: (one.name, one.accept) for one in of(*objects) if (one.unit is Unit.WORDS) is text}
        for text in (False, True)
    )
    return figures, words


def _older(messages: Iterable[Message], objects: tuple[Object, ...]) -> Iterator[tuple[str, Value]]:
    for message in messages:
        for reading in of(*objects):
            field = message.DESCRIPTOR.fields_by_name.get(reading.name)
            if field is None or (field.has_presence and not message.HasField(field.name)):
                continue
            if (value := reading.accept(getattr(message, field.name))) is not None:
                yield reading.name, value
