"""The REST API over a controller, or over none."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from controller.api.app import create_app
from controller.service.service import Service
from tests.parts.api.fake_service import FakeService


def app_of(service: Service | FakeService | None = None, *parts: Any, **options: Any) -> FastAPI:
    """Return the API over ``service``; over none it answers only what asks no desk."""
    desks: Any = None if service is None else service.desks
    return create_app(desks, *parts, **options)
