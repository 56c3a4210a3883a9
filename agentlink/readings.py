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

_Accept = Callable[[Any], Value | None]
_MOST = 256
"""Entries that are read of one list; agents send one for each reading at most."""


def write(values: Values, *objects: Object) -> list[pb.Reading]:
    """Return the messages of the readings of some kinds of objects."""
    found = []
    for reading in of(*objects):
        match values.get(reading.name):
            case None:
                pass
            case tuple() as words:
                found.append(pb.Reading(id=reading.id, words=words))
            case value:
                found.append(pb.Reading(id=reading.id, value=value))
    return found


def fields(kind: type[Message], values: Values) -> dict[str, Any]:
    """Return the values for which a message has a field of that name."""
    return {name: value for name, value in values.items() if name in kind.DESCRIPTOR.fields_by_name}


def read(
    readings: Iterable[pb.Reading], *objects: Object, older: Iterable[Message] = ()
) -> dict[str, Value]:
    """Return the readings of some kinds of objects within their bounds; others are ignored.

    ``older`` messages are read where there are no ``readings``, by the names of their fields.
    """
    values: dict[str, Value] = {}
    known = _known(objects)
    for message in islice(readings, _MOST):
        if (entry := known.get(message.id)) is not None:
            name, accept, words = entry
            if (value := accept(message.words if words else message.value)) is not None:
                values[name] = value
    return values or dict(_older(older, objects))


@cache
def _known(objects: tuple[Object, ...]) -> Mapping[int, tuple[str, _Accept, bool]]:
    """Return by number the name of a reading, its bounds, and whether it is in words."""
    return {one.id: (one.name, one.accept, one.unit is Unit.WORDS) for one in of(*objects)}


def _older(messages: Iterable[Message], objects: tuple[Object, ...]) -> Iterator[tuple[str, Value]]:
    for message in messages:
        for reading in of(*objects):
            field = message.DESCRIPTOR.fields_by_name.get(reading.name)
            if field is None or (field.has_presence and not message.HasField(field.name)):
                continue
            if (value := reading.accept(getattr(message, field.name))) is not None:
                yield reading.name, value
