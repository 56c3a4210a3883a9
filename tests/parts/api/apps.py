"""The REST API over a controller, or over none."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from controller.api.app import create_app
from controller.service.service import Service


def app_of(service: Service | None = None, *parts: Any, **options: Any) -> FastAPI:
    """Return the API over ``service``; over none it answers only what asks no desk."""
    desks: Any = None if service is None else service.desks
    return create_app(desks, *parts, **options)
