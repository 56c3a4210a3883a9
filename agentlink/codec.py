"""Reads and writes the messages of protos/agent.proto as frozen dataclasses. Pure.

A field of a value is the field of the same name in the message; :class:`agentlink.bounds.Field`
names another. ``X | None`` is absent where the message can be without it, and 0 or empty where it
cannot. A union of values stands for a ``oneof``: each of them has one of its fields. What a message
does not have, the value has by its default or from the caller. Bounds hold for what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache, partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from agentlink.bounds import NEWER, Field, First, Refused, require

_V = TypeVar("_V")
_M = TypeVar("_M", bound=Message)
_Convert = Callable[[Any], Any]
_Descriptor = Any
"""Types of a message: two implementations of protobuf have two types."""


def read(value: type[_V], message: Message, **given: object) -> _V:
    """Return the value of a message; ``given`` are fields that are not read. Raises Refused."""
    kind: Any = value
    try:
        readers = _readers(kind, message.DESCRIPTOR)
        found = {name: get(message) for name, get in readers if name not in given}
    except Refused as refused:
        for name, hint in _hints(kind).items():
            if hint.field.names and refused.obj is None:
                refused.obj = getattr(message, name)[:80]
        raise
    return value(**found, **given)


def write(kind: type[_M], value: object, **given: object) -> _M:
    """Return the message of a value; ``given`` are fields that it does not have.

    Raises ValueError for what cannot be sent.
    """
    return kind(**(_plain(value, kind.DESCRIPTOR) | given))


class _Hint:
    """An annotation, taken apart."""

    def __init__(self, hint: Any) -> None:
        self.optional = False
        self.field = Field()
        self.first: First | None = None
        self.bounds: list[_Convert] = []
        while True:
            if get_origin(hint) is Annotated:
                hint, *marks = get_args(hint)
                for mark in marks:
                    if isinstance(mark, Field):
                        self.field = mark
                    elif isinstance(mark, First):
                        self.first = mark
                    else:
                        self.bounds.append(mark)
            elif NoneType in get_args(hint) and get_origin(hint) in (Union, UnionType):
                self.optional = True
                rest = [one for one in get_args(hint) if one is not NoneType]
                hint = rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007
            else:
                break
        self.bare = hint

    @property
    def choices(self) -> tuple[type, ...]:
        """The values of a union."""
        one_of = get_args(self.bare) if get_origin(self.bare) in (Union, UnionType) else ()
        return one_of if all(map(is_dataclass, one_of)) else ()


@cache
def _hints(value: Any) -> dict[str, _Hint]:
    return {name: _Hint(hint) for name, hint in get_type_hints(value, include_extras=True).items()}


def _path(name: str, hint: _Hint) -> list[str]:
    return (hint.field.name or name).split(".")


@cache
def _readers(value: Any, message: _Descriptor) -> list[tuple[str, _Convert]]:
    found = []
    for name, hint in _hints(value).items():
        path = _path(name, hint)
        if hint.choices:
            found.append((name, _choice(hint, message)))
        elif hint.field.flat:
            found.append((name, partial(read, hint.bare)))
        elif path[0] in message.fields_by_name:
            found.append((name, _getter(message, path, hint)))
    return found


def _choice(hint: _Hint, message: _Descriptor) -> _Convert:
    """Return what reads the value of a union that has the field that is set."""
    of: dict[str, type] = {}
    for value in hint.choices:
        for name, one in _hints(value).items():
            root = message.fields_by_name.get(_path(name, one)[0])
            if root is not None and root.containing_oneof is not None:
                of[root.name], oneof = value, root.containing_oneof.name

    def get(found: Message) -> object:
        which = found.WhichOneof(oneof)
        if which is None:
            raise Refused(hint.field.missing, NEWER)
        return read(of[which], found)

    return get


def _getter(message: _Descriptor, path: list[str], hint: _Hint) -> _Convert:
    field = message.fields_by_name[path[0]]
    if len(path) > 1:
        inner, outer = _getter(field.message_type, path[1:], hint), attrgetter(path[0])
        return lambda found: inner(outer(found))
    get, convert, name = attrgetter(field.name), _converter(field, hint), field.name
    if hint.optional and field.has_presence:
        return lambda found: convert(get(found)) if found.HasField(name) else None
    if hint.optional:
        return lambda found: convert(value) if (value := get(found)) else None
    if missing := hint.field.missing:

        def get_required(found: Message) -> object:
            require(found.HasField(name), missing)
            return convert(get(found))

        return get_required
    return get if convert is _same else lambda found: convert(get(found))


def _same(value: object) -> object:
    return value


def _converter(field: FieldDescriptor, hint: _Hint) -> _Convert:
    """Return what makes the value of a field, its bounds included."""
    bare, bounds = hint.bare, hint.bounds
    if get_origin(bare) is tuple and field.is_repeated:
        return partial(_entries, _single(field, _Hint(get_args(bare)[0])), hint.first, bounds)
    if get_origin(bare) is Mapping:
        return dict
    return _single(field, hint)


def _single(field: FieldDescriptor, hint: _Hint) -> _Convert:
    """Return what makes the value of one entry of a field, its bounds included."""
    bare, bounds = hint.bare, hint.bounds
    if hint.choices:
        first: _Convert = _choice(hint, field.message_type)
    elif field.message_type is not None:
        first = partial(read, bare)
    elif field.enum_type is not None:
        first = partial(_known, hint, _members(field.enum_type, bare))
    elif isinstance(bare, type) and issubclass(bare, StrEnum):
        first = partial(_known, hint, {str(member): member for member in bare})
    elif len(bounds) == 1:
        return bounds[0]
    else:
        first = _same
    if not bounds:
        return first

    def convert(found: object) -> object:
        found = first(found)
        for bound in bounds:
            found = bound(found)
        return found

    return convert


def _entries(
    convert: _Convert, first: First | None, bounds: list[_Convert], found: Any
) -> tuple[object, ...]:
    for bound in bounds:
        found = bound(found)
    if first is None:
        return tuple(found) if convert is _same else tuple(map(convert, found))
    return tuple(possible(convert, found[: first.entries]))


def possible(convert: _Convert, found: Iterable[Any]) -> Iterable[Any]:
    """Return what can be read of a list, without what is refused."""
    for one in found:
        try:
            yield convert(one)
        except Refused:
            continue


def _known(hint: _Hint, members: Mapping[object, object], found: object) -> object:
    member = members.get(found)
    if member is None:
        if hint.field.otherwise is not None:
            return hint.field.otherwise
        text = hint.field.unknown or f"{hint.bare.__name__.lower()} {{}} is unknown"
        raise Refused(text.format(repr(found[:40]) if isinstance(found, str) else found), NEWER)
    return member


@cache
def _members(enum: EnumDescriptor, kind: type[StrEnum]) -> dict[object, StrEnum]:
    """Return the members of an enumeration by number; names there end in theirs."""
    return {
        value.number: member
        for member in kind
        for value in enum.values
        if value.name.endswith(f"_{member.name}")
    }


@cache
def _writers(value: Any, message: _Descriptor) -> list[tuple[str, list[str], _Convert | None]]:
    found: list[tuple[str, list[str], _Convert | None]] = []
    for name, hint in _hints(value).items():
        path = _path(name, hint)
        if hint.choices or hint.field.flat:
            found.append((name, [], None))
        elif path[0] in message.fields_by_name:
            field = message.fields_by_name[path[0]]
            for inner in path[1:]:
                field = field.message_type.fields_by_name[inner]
            found.append((name, path, _writer(field, hint)))
    return found


def _plain(value: object, message: _Descriptor) -> dict[str, Any]:
    """Return the fields of a value's message."""
    plain: dict[str, Any] = {}
    kind: Any = type(value)
    for name, path, convert in _writers(kind, message):
        field = getattr(value, name)
        if field is None:
            continue
        if not path:
            plain |= _plain(field, message)
            continue
        inner = plain
        for outer in path[:-1]:
            inner = inner.setdefault(outer, {})
        inner[path[-1]] = field if convert is None else convert(field)
    return plain


def _writer(field: FieldDescriptor, hint: _Hint) -> _Convert | None:
    """Return what makes the field of a value; None for what is sent as it is."""
    bare = hint.bare
    if get_origin(bare) is tuple and field.is_repeated:
        one = _writer(field, _Hint(get_args(bare)[0]))
        return None if one is None else lambda entries: [one(entry) for entry in entries]
    if field.message_type is not None and not field.message_type.GetOptions().map_entry:
        return lambda found: _plain(found, field.message_type)
    if field.enum_type is not None:
        return {member: number for number, member in _members(field.enum_type, bare).items()}.get
    return None
