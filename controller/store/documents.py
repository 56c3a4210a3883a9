"""Frozen dataclasses as JSON documents, field by field; see ``controller.state.kinds.forms``.

What a document lacks has its default, so that a field can be added; what no field is named after is
not read, so that the release before can go on with a store.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

Value = TypeVar("Value")


class Documents(Generic[Value]):
    """Writes and reads the values of one type."""

    def __init__(self, kind: Any, later: Collection[str] = ()) -> None:
        """``later`` names fields that are left out where they have their default."""
        self._adapter: TypeAdapter[Value] = TypeAdapter(kind)
        self._later = {f.name: f.default for f in fields(kind) if f.name in later} if later else {}

    def write(self, value: Value) -> str:
        """Return a value's document."""
        body = self._adapter.dump_python(value, mode="json", warnings=False)
        for name, usual in self._later.items():
            if getattr(value, name) == usual:
                del body[name]
        return json.dumps(body)

    def read(self, text: str, beside: Mapping[str, Any] | None = None) -> Value:
        """Read a document, with what stands beside it. ValueError when it is damaged."""
        body = json.loads(text)
        return self._adapter.validate_python(body if beside is None else {**beside, **body})
