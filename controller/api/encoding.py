"""Encodes large answers item by item, so that none of them blocks the loop."""

from __future__ import annotations

from fastapi import Response
from pydantic_core import to_json

from controller.base.slices import Turns
from controller.schema.base import View

JSON = "application/json"


async def whole(view: View) -> Response:
    """Return the answer with ``view``, one of whose lists may be long."""
    parts = []
    with Turns() as turns:
        for name in type(view).model_fields:
            value = getattr(view, name)
            if isinstance(value, list) and value and isinstance(value[0], View):
                items = []
                for item in value:
                    items.append(item.model_dump_json().encode())
                    await turns.breathe()
                encoded = b"[" + b",".join(items) + b"]"
            else:
                encoded = to_json(value)
            parts.append(to_json(name) + b":" + encoded)
            await turns.breathe()
    return Response(b"{" + b",".join(parts) + b"}", media_type=JSON)
