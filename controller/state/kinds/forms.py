"""The form of a kept record's field in its document, where plain JSON does not suffice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, get_origin

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(slots=True, frozen=True)
class AsList:
    """A dataclass as the list of its fields: short where a document has thousands."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Write a list; read one, too."""
        names = [field.name for field in fields(source)]

        def write(value: Any) -> list[Any]:
            return [getattr(value, name) for name in names]

        def read(value: Any) -> Any:
            return dict(zip(names, value, strict=True)) if isinstance(value, list) else value

        return _form(handler(source), read, write)


@dataclass(slots=True, frozen=True)
class JsonForm:
    """A value in a form of its own: ``read`` makes it from what ``write`` returns."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Write the form; read it, too."""
        kind = get_origin(source) or source

        def read(value: Any) -> Any:
            return value if isinstance(value, kind) else self.read(value)

        return _form(handler(source), read, self.write)


HEX = JsonForm(bytes.hex, bytes.fromhex)
"""Bytes as hexadecimal digits."""


class Flat:
    """A dataclass whose fields of these types are not nested: their own fields stand beside it."""

    def __init__(self, **nested: type[Any]) -> None:
        """``nested`` gives the fields from the outside to the inside, with their types."""
        self._nested = {
            name: [field.name for field in fields(kind)] for name, kind in nested.items()
        }

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Write one level; read it."""

        def write(value: Any, inner: core_schema.SerializerFunctionWrapHandler) -> dict[str, Any]:
            found: dict[str, Any] = inner(value)
            for name in self._nested:
                found |= found.pop(name)
            return found

        def read(value: Any) -> Any:
            if not isinstance(value, dict):
                return value
            found = dict(value)
            for name, own in reversed(self._nested.items()):
                found[name] = {key: found.pop(key) for key in own if key in found}
            return found

        return core_schema.no_info_before_validator_function(
            read,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(write),
        )


def _form(inner: CoreSchema, read: Callable[[Any], Any], write: Callable[[Any], Any]) -> CoreSchema:
    return core_schema.no_info_before_validator_function(
        read, inner, serialization=core_schema.plain_serializer_function_ser_schema(write)
    )
